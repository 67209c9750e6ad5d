//! Tells the service manager that started this process what the process does: the protocol of
//! systemd's units with `Type=notify`. Without such a manager (no `NOTIFY_SOCKET`) nothing happens.
//!
//! - MAN-1: a manager that does not listen costs a trace, never the process.

use sd_notify::NotifyState;
use std::time::Duration;

/// What a process tells its service manager.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase<'a> {
    /// It waits for this, and is not ready.
    Waits(&'a str),
    /// It does its work.
    Ready,
    /// It ends, within this time.
    Stopping(Duration),
}

/// Tells the service manager, if there is one.
pub fn tell_manager(phase: Phase<'_>) {
    let told = match phase {
        Phase::Waits(what) => sd_notify::notify(&[NotifyState::Status(what)]),
        Phase::Ready => sd_notify::notify(&[NotifyState::Ready, NotifyState::Status("ready")]),
        Phase::Stopping(limit) => {
            // The longest time that fits is an hour and more.
            let limit = u32::try_from(limit.as_micros()).unwrap_or(u32::MAX);
            sd_notify::notify(&[
                NotifyState::Stopping,
                NotifyState::ExtendTimeoutUsec(limit),
                NotifyState::Status("stopping"),
            ])
        }
    };
    if let Err(error) = told {
        tracing::warn!(%error, ?phase, "cannot tell the service manager");
    }
}
