//! Claims: small files by which commands say that they write a manifest, or remove packs.
//!
//! A backup relies on packs that are there. A prune removes packs that no manifest names. So each
//! writes a claim first, and then looks at all claims. A command that finds a fresh one of the
//! other kind takes its own back, and comes again. Of two that claim at the same time, at least one
//! sees the other.
//!
//! A killed command leaves its claim behind. It counts no more when it is [`STALE`]; so a command
//! writes its claim anew while it works, and gives up when it is [`LATE`]. Ages are told by the
//! clock of the place: that of a command may be wrong.

use crate::error::ArchiveError;
use crate::ground::{Ground, Room, Write};
use core::time::Duration;

/// From this age on a claim counts no more. It is more than [`LATE`] and the longest request of a
/// bucket together.
pub(crate) const STALE: Duration = Duration::from_secs(15 * 60);
/// A command does nothing more under a claim that it wrote so long ago.
const LATE: Duration = Duration::from_secs(5 * 60);
/// After this a claim is written anew.
const REFRESH: Duration = Duration::from_secs(60);

/// What is claimed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Purpose {
    /// To write a manifest, whose packs are to stay.
    Backup,
    /// To remove packs.
    Prune,
}

impl Purpose {
    fn prefix(self) -> &'static str {
        match self {
            Self::Backup => "backup-",
            Self::Prune => "prune-",
        }
    }
}

/// A clock that never goes back; counts from whenever.
pub(crate) type Ticks<'a> = &'a dyn Fn() -> Duration;

/// What tells the claims of commands apart.
pub(crate) fn unique(ticks: Ticks<'_>) -> String {
    format!("{:08x}-{:x}", std::process::id(), ticks().as_nanos())
}

/// A claim that is in force. Given back when it is dropped.
pub(crate) struct Claim<'a> {
    ground: &'a dyn Ground,
    ticks: Ticks<'a>,
    name: String,
    written: Duration,
    /// When it was written, by the clock of the place, in milliseconds since 1970.
    pub(crate) now_ms: u64,
}

impl<'a> Claim<'a> {
    /// Claims `purpose`; `unique` tells commands apart.
    ///
    /// # Errors
    /// [`ArchiveError::Busy`] while there is a claim of the other kind. Retryable.
    pub(crate) fn make(
        ground: &'a dyn Ground,
        ticks: Ticks<'a>,
        purpose: Purpose,
        unique: &str,
    ) -> Result<Self, ArchiveError> {
        let mut claim = Self {
            ground,
            ticks,
            name: format!("{}{unique}", purpose.prefix()),
            written: Duration::ZERO,
            now_ms: 0,
        };
        claim.write()?;
        let all = ground.list(Room::Claims)?;
        let own = all.iter().find(|listed| listed.name == claim.name);
        let own = own.ok_or_else(|| claim.lost())?;
        claim.now_ms = own.written_ms;
        for other in all.iter().filter(|other| !other.is_directory) {
            let age = Duration::from_millis(claim.now_ms.saturating_sub(other.written_ms));
            if age >= STALE {
                ground.remove((Room::Claims, &other.name))?;
            } else if !other.name.starts_with(purpose.prefix()) {
                let path = ground.path(Some((Room::Claims, &other.name)));
                return Err(ArchiveError::Busy(path));
            }
        }
        Ok(claim)
    }

    /// Keeps it in force.
    ///
    /// # Errors
    /// It was written too long ago: the command stood still. Nothing may be done under it.
    pub(crate) fn hold(&mut self) -> Result<(), ArchiveError> {
        match (self.ticks)().saturating_sub(self.written) {
            age if age >= LATE => Err(self.lost()),
            age if age >= REFRESH => self.write(),
            _ => Ok(()),
        }
    }

    fn write(&mut self) -> Result<(), ArchiveError> {
        // From before: the request may take long.
        self.written = (self.ticks)();
        let file = (Room::Claims, &*self.name);
        self.ground.write(file, b"pluvio\n", Write::Replace)
    }

    fn lost(&self) -> ArchiveError {
        ArchiveError::Late(self.ground.path(Some((Room::Claims, &self.name))))
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        // One that stays is stale soon.
        let _may_stay = self.ground.remove((Room::Claims, &self.name));
    }
}
