//! Times of the coordinator.

use core::time::Duration;
use pluvio_wire::{SettingsWish, Versions};

/// Times of the coordinator. The defaults suit a cluster on one rack or one machine.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct CoordinatorOptions {
    /// How long a suspected server may be silent before it is declared crashed. Default 1 s: four
    /// pings of a quarter of it each, so that a server starved of processor time is not taken for
    /// dead. A server whose port refuses connections is declared crashed much sooner.
    pub dead_server_timeout: Duration,
    /// Each server that is declared crashed for silence doubles the silence that convicts the next
    /// one, up to this. Default 30 s. Many silent servers at once usually mean that something else
    /// is wrong, and recoveries would make it worse.
    pub silence_max: Duration,
    /// When no server has been silent for `dead_server_timeout` in this time, that much is enough
    /// again. Default 30 s.
    pub silence_forgotten: Duration,
    /// How often the coordinator itself pings a server chosen at random. Default 200 ms. Servers
    /// ping each other too; this finds the last of them.
    pub ping_interval: Duration,
    /// The least time between the moment when backups began to take part in a recovery and giving
    /// the crashed server's tablets away [RAMCloud §7.11]. Default 650 ms: a master answers for
    /// half a second after the backups of its heads stood by it. By then a zombie shows nothing any
    /// more. The rest is for clocks that run unevenly.
    pub zombie_grace: Duration,
    /// The pause before a log that is not complete is looked at again. Default 500 ms.
    pub incomplete_retry: Duration,
    /// The pause before tablets that could not be recovered are tried again. Default 2 s.
    pub recovery_retry: Duration,
    /// The longest one attempt to recover a server may take. Default 10 min. Masters that have not
    /// finished by then are not waited for any more.
    pub recovery_limit: Duration,
    /// A recovery partition of at least this many bytes is cut in two. The small part is recovered
    /// before the rest, so that its keys are read again early. Default [`u64::MAX`]: none is cut. A
    /// first part costs a tablet a master, and it has not been measured that it pays.
    pub early_bytes_min: u64,
    /// Whether recovered tablets answer reads before they have replicas of their own. Default
    /// true.
    pub serve_early: bool,
    /// The longest a tablet may be copied to another server. Default 1 h; then it stays where it
    /// is.
    pub migration_limit: Duration,
    /// How often balancing looks at the cluster, and how uneven it must be for a move.
    pub balance: BalanceOptions,
    /// The limit of one request to a server. Default 2 s.
    pub call_limit: Duration,
    /// Server lists of so many servers are sent whole, longer ones as differences from the list
    /// that a server has. Default 16: some 4 KB.
    pub whole_list_max: usize,
    /// Settings of a cluster that begins, or that has none yet. Default none: those of the first
    /// server that joins.
    pub settings: SettingsWish,
    /// The versions that this coordinator speaks. Default those of this program.
    pub versions: Versions,
}

impl CoordinatorOptions {
    /// The shortest `dead_server_timeout` that is kept to: each ping in that time gets 10 ms at
    /// least.
    pub const DEAD_SERVER_TIMEOUT_MIN: Duration = Duration::from_millis(40);
}

impl Default for CoordinatorOptions {
    fn default() -> Self {
        Self {
            dead_server_timeout: Duration::from_secs(1),
            silence_max: Duration::from_secs(30),
            silence_forgotten: Duration::from_secs(30),
            ping_interval: Duration::from_millis(200),
            zombie_grace: Duration::from_millis(650),
            incomplete_retry: Duration::from_millis(500),
            recovery_retry: Duration::from_secs(2),
            recovery_limit: Duration::from_secs(600),
            early_bytes_min: u64::MAX,
            serve_early: true,
            migration_limit: Duration::from_secs(3600),
            balance: BalanceOptions::default(),
            call_limit: Duration::from_secs(2),
            whole_list_max: 16,
            settings: SettingsWish::default(),
            versions: Versions::OWN,
        }
    }
}

/// When tablets move for the sake of balance (`docs/balance.md`).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct BalanceOptions {
    /// How often the cluster is looked at, and so the pause between two moves. Default 5 s.
    pub pause: Duration,
    /// How much fuller a server is than another one, in thousandths of its memory for live entries,
    /// before something moves between them. Default 100.
    pub gap: u64,
    /// The least difference in live bytes for a move. Default 16 MiB.
    pub bytes_min: u64,
    /// The most that moves at a time, about. Default 256 MiB.
    pub bytes_max: u64,
    /// How many more requests a second a server answers than another one before something moves
    /// between them; it must also be twice as many. Default 20 000.
    pub rate_gap: u64,
    /// For how long a tablet that was moved stays where it is, unless memory asks for another move.
    /// Default 10 min.
    pub rest: Duration,
}

impl Default for BalanceOptions {
    fn default() -> Self {
        Self {
            pause: Duration::from_secs(5),
            gap: 100,
            bytes_min: 16 << 20,
            bytes_max: 256 << 20,
            rate_gap: 20_000,
            rest: Duration::from_secs(600),
        }
    }
}
