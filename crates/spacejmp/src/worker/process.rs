//! The process of a worker: how it begins, and how it ends.
//!
//! The fork has what this process has, and gives it up before it does anything else.
//!
//! 1. It asks the kernel to be killed when its parent dies, and looks whether that has died.
//! 2. Handlers of signals are gone. Signals that a terminal or a service manager sends to all
//!    processes of a program are ignored. The parent decides, and the worker ends with it.
//! 3. All files but the desk's, standard output and standard error become `/dev/null`. They are not
//!    closed: something in memory may use their numbers, which are to mean no other file.
//!
//! It ends by `_exit` alone, so nothing of the parent is flushed or dropped a second time.

use crate::error::{Result, SpaceError};
use core::mem::MaybeUninit;
use core::ptr;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, WaitId, WaitIdOptions};
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;

/// Signals are less than this.
const SIGNALS: libc::c_int = 65;

/// Signals that are sent to all processes of a program, of which the parent is told.
const IGNORED: [libc::c_int; 4] = [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM];

/// Looks that no other thread could be at work in this process.
///
/// # Errors
/// [`SpaceError::Threads`], or the system's.
pub(super) fn check_threads() -> Result<()> {
    let path = "/proc/self/task";
    let failed = |source| SpaceError::System {
        doing: "count the threads in",
        path: path.into(),
        source,
    };
    match std::fs::read_dir(path).map_err(failed)?.count() {
        1 => Ok(()),
        threads => Err(SpaceError::Threads(threads)),
    }
}

/// In which process the call has returned.
pub(super) enum Forked {
    Parent(Child),
    Child { parent: Pid },
}

/// Makes a second process.
///
/// # Safety
/// There is one thread, so no lock of another one stays locked in the child. The child gives what
/// it shares up by [`end_after`].
#[allow(unsafe_code)] // forks
pub(super) unsafe fn fork() -> std::result::Result<Forked, Errno> {
    // A text that waits in the buffer would come twice if the worker writes one.
    let _nobody_listens = std::io::stdout().flush();
    let parent = rustix::process::getpid();
    // A handler that came in the child would use what is the parent's.
    let before = change_mask(libc::SIG_BLOCK, &all_signals());
    // SAFETY: the caller's promise.
    let id = unsafe { libc::fork() };
    if id == 0 {
        return Ok(Forked::Child { parent });
    }
    let failed = (id < 0).then(last_errno);
    change_mask(libc::SIG_SETMASK, &before);
    if let Some(errno) = failed {
        return Err(errno);
    }
    let id = Pid::from_raw(id).expect("a process has a number");
    match rustix::process::pidfd_open(id, PidfdFlags::empty()) {
        Ok(handle) => Ok(Forked::Parent(Child {
            id,
            handle,
            end: OnceLock::new(),
        })),
        Err(errno) => {
            // It has done nothing yet, and nobody else knows it.
            let _killed = rustix::process::kill_process(id, Signal::KILL);
            let _reaped = rustix::process::waitid(WaitId::Pid(id), WaitIdOptions::EXITED);
            Err(errno)
        }
    }
}

fn last_errno() -> Errno {
    let code = std::io::Error::last_os_error().raw_os_error();
    Errno::from_raw_os_error(code.unwrap_or(libc::EIO))
}

#[allow(unsafe_code)] // calls of the C library
fn all_signals() -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: the call makes the set.
    unsafe {
        libc::sigfillset(set.as_mut_ptr());
        set.assume_init()
    }
}

/// Changes which signals wait, and gives those that did before.
#[allow(unsafe_code)] // a call of the C library
fn change_mask(how: libc::c_int, set: &libc::sigset_t) -> libc::sigset_t {
    let mut before = *set;
    // SAFETY: both sets are ours.
    let done = unsafe { libc::pthread_sigmask(how, set, &raw mut before) };
    debug_assert_eq!(done, 0, "the arguments are right");
    before
}

/// In the child: works, and ends. Nothing of the parent's stack is returned to.
#[allow(unsafe_code)] // ends the process
pub(super) fn end_after(parent: Pid, files: [RawFd; 2], work: impl FnOnce()) -> ! {
    let worked = catch_unwind(AssertUnwindSafe(|| {
        give_up(parent, files)?;
        work();
        Ok::<(), Errno>(())
    }));
    let code = i32::from(!matches!(worked, Ok(Ok(()))));
    // SAFETY: the process is over.
    unsafe { libc::_exit(code) }
}

/// See the module.
fn give_up(parent: Pid, files: [RawFd; 2]) -> std::result::Result<(), Errno> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    if rustix::process::getppid() != Some(parent) {
        return Err(Errno::SRCH);
    }
    reset_signals();
    give_up_files(files)
}

#[allow(unsafe_code)] // calls of the C library
fn reset_signals() {
    for signal in 1..SIGNALS {
        let mut action = MaybeUninit::<libc::sigaction>::zeroed();
        // SAFETY: both calls use an action of ours. Numbers that are no signals, and those of the C
        // library itself, are refused.
        unsafe {
            if libc::sigaction(signal, ptr::null(), action.as_mut_ptr()) != 0 {
                continue;
            }
            let mut action = action.assume_init();
            action.sa_sigaction = match (IGNORED.contains(&signal), action.sa_sigaction) {
                (true, _) => libc::SIG_IGN,
                (false, libc::SIG_IGN) => libc::SIG_IGN,
                (false, _) => libc::SIG_DFL,
            };
            libc::sigaction(signal, &raw const action, ptr::null_mut());
        }
    }
    let mut none = all_signals();
    // SAFETY: the call changes a set of ours.
    unsafe { libc::sigemptyset(&raw mut none) };
    change_mask(libc::SIG_SETMASK, &none);
}

#[allow(unsafe_code)] // replaces files
fn give_up_files(kept: [RawFd; 2]) -> std::result::Result<(), Errno> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    let nothing: OwnedFd = rustix::fs::open("/dev/null", flags, Mode::empty())?;
    let listed = std::fs::read_dir("/proc/self/fd").map_err(|_| Errno::NOENT)?;
    let open: Vec<RawFd> = listed
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect();
    for file in open {
        let is_kept = kept.contains(&file) || [1, 2].contains(&file);
        // SAFETY: the call reads nothing. It also gives back the number of the list itself.
        if is_kept || file == nothing.as_raw_fd() || unsafe { libc::fcntl(file, libc::F_GETFD) } < 0
        {
            continue;
        }
        // SAFETY: the number stays open, as another file. Its owner in memory is the parent's.
        if unsafe { libc::dup3(nothing.as_raw_fd(), file, libc::O_CLOEXEC) } < 0 {
            return Err(last_errno());
        }
    }
    Ok(())
}

/// The process of a worker, in its parent. It is killed when it is dropped.
#[derive(Debug)]
pub(super) struct Child {
    id: Pid,
    handle: OwnedFd,
    /// How it died, once it was seen to be dead.
    end: OnceLock<String>,
}

impl Child {
    pub(super) fn id(&self) -> u32 {
        self.id.as_raw_nonzero().get().unsigned_abs()
    }

    /// Can be read when the process is dead.
    pub(super) fn handle(&self) -> BorrowedFd<'_> {
        self.handle.as_fd()
    }

    /// Waits until it is dead, and says how it died.
    pub(super) fn how_it_died(&self) -> &str {
        self.end.get_or_init(|| {
            loop {
                let id = WaitId::PidFd(self.handle.as_fd());
                let status = match rustix::process::waitid(id, WaitIdOptions::EXITED) {
                    Err(Errno::INTR) => continue,
                    Err(_) | Ok(None) => return "somebody else knows how".to_owned(),
                    Ok(Some(status)) => status,
                };
                return match (status.terminating_signal(), status.exit_status()) {
                    (Some(signal), _) => format!("killed by signal {signal}"),
                    (None, Some(code)) => format!("it has exited with {code}"),
                    (None, None) => "it is gone".to_owned(),
                };
            }
        })
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // It may be dead.
        let _killed = rustix::process::pidfd_send_signal(&self.handle, Signal::KILL);
        self.how_it_died();
    }
}
