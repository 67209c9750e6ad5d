//! What can be set.

use core::time::Duration;
use pluvio_units::{ClusterId, ServerId};
use pluvio_wire::{ClusterSettings, Coordinators};
use std::sync::Arc;

/// The settings, and the identity of this master.
#[derive(Clone, Debug)]
pub struct ReplicationOptions {
    /// The cluster.
    pub cluster: ClusterId,
    /// This master.
    pub me: ServerId,
    /// The rack this master stands in, if known.
    pub rack: Option<String>,
    /// How many replicas are wanted and needed of each segment, and whether they are on their
    /// devices when acknowledged, instead of in page caches. Until the first server list that has
    /// the cluster's settings.
    pub settings: ClusterSettings,
    /// Whether it takes the settings of server lists. Else `settings` stay: for tests.
    pub follows_list: bool,
    /// Where the coordinators are.
    pub coordinators: Arc<Coordinators>,
    /// How long to wait for a backup's answer before the same is sent again. Generous: sending
    /// again does not help a slow disk, and who is dead is decided elsewhere.
    pub write_limit: Duration,
    /// How long a backup that has no space is left in peace.
    pub full_pause: Duration,
}

impl ReplicationOptions {
    /// Usual values. The settings are those of a cluster for which nobody has said anything.
    #[must_use]
    pub fn new(cluster: ClusterId, me: ServerId) -> Self {
        Self {
            cluster,
            me,
            rack: None,
            settings: ClusterSettings::USUAL,
            follows_list: true,
            coordinators: Arc::new(Coordinators::new(Vec::new())),
            write_limit: Duration::from_secs(2),
            full_pause: Duration::from_secs(4),
        }
    }
}
