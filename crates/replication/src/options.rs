//! What can be set.

use core::time::Duration;
use pluvio_units::{ClusterId, ServerId};
use pluvio_wire::Coordinators;
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
    /// Replicas wanted of each segment.
    pub replicas: u32,
    /// Replicas without which nothing is acknowledged, at least 1.
    pub min_replicas: u32,
    /// Replicas are on their devices when acknowledged, instead of in page caches.
    pub synced: bool,
    /// Where the coordinators are.
    pub coordinators: Arc<Coordinators>,
    /// How long to wait for a backup's answer before the same is sent again. Generous: sending
    /// again does not help a slow disk, and who is dead is decided elsewhere.
    pub write_limit: Duration,
    /// How long a backup that has no space is left in peace.
    pub full_pause: Duration,
}

impl ReplicationOptions {
    /// Usual values: three replicas, two of them needed, synced.
    #[must_use]
    pub fn new(cluster: ClusterId, me: ServerId) -> Self {
        Self {
            cluster,
            me,
            rack: None,
            replicas: 3,
            min_replicas: 2,
            synced: true,
            coordinators: Arc::new(Coordinators::new(Vec::new())),
            write_limit: Duration::from_secs(2),
            full_pause: Duration::from_secs(4),
        }
    }
}
