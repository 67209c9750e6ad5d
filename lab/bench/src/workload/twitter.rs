//! The published properties of production cache clusters, as far as the generators use them.
//!
//! Numbers measured by Yang, Yue and Rashmi ("A large scale analysis of hundreds of in-memory cache
//! clusters at Twitter", OSDI 2020). The table of their trace repository (CC BY 4.0) gives mean
//! sizes, shares of operations, skew. Clusters without a published skew are left out. Everything
//! that changes a value counts as a write.

/// One cluster.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Profile {
    /// The cluster's number.
    pub cluster: u32,
    /// Mean bytes of a key.
    pub key_bytes: u32,
    /// Mean bytes of a value.
    pub value_bytes: u32,
    /// Reads among a thousand operations.
    pub gets: u32,
    /// Deletes among a thousand operations; the rest are writes.
    pub deletes: u32,
    /// The exponent of Zipf's law.
    pub skew: f64,
}

/// The cluster with this number.
#[must_use]
pub fn profile(cluster: u32) -> Option<Profile> {
    let found = CLUSTERS.iter().find(|row| row.0 == cluster)?;
    let &(cluster, key_bytes, value_bytes, gets, deletes, skew) = found;
    Some(Profile {
        cluster,
        key_bytes,
        value_bytes,
        gets,
        deletes,
        skew,
    })
}

/// Cluster, bytes of keys and of values, reads and deletes of a thousand, skew.
const CLUSTERS: [(u32, u32, u32, u32, u32, f64); 51] = [
    (1, 80, 267, 1000, 0, 2.6774),
    (2, 21, 68, 1000, 0, 1.4908),
    (3, 19, 120, 1000, 0, 1.6414),
    (4, 67, 2439, 930, 0, 1.1004),
    (6, 44, 252, 980, 0, 1.882),
    (7, 17, 1936, 820, 0, 1.0666),
    (8, 23, 9497, 500, 0, 1.7366),
    (9, 32, 39, 1000, 0, 1.6796),
    (10, 22, 2333, 500, 0, 0.0),
    (11, 24, 170, 970, 0, 1.4891),
    (12, 44, 1030, 200, 0, 0.3048),
    (13, 44, 4266, 380, 0, 0.4565),
    (14, 96, 414, 650, 220, 1.2959),
    (15, 18, 102, 0, 0, 0.0242),
    (16, 18, 115, 949, 0, 1.7862),
    (17, 19, 212, 1000, 0, 2.1106),
    (18, 18, 37, 980, 0, 2.0994),
    (19, 42, 101, 750, 0, 0.735),
    (20, 26, 55, 970, 0, 1.3699),
    (21, 25, 1, 0, 0, 0.0521),
    (22, 54, 4, 720, 0, 0.7624),
    (23, 35, 224, 364, 20, 0.274),
    (24, 32, 699, 1000, 0, 1.3726),
    (25, 49, 28, 960, 0, 0.9929),
    (26, 122, 1745, 710, 0, 0.6299),
    (27, 66, 8, 850, 0, 1.065),
    (28, 45, 85, 938, 0, 1.503),
    (29, 36, 799, 869, 0, 1.2323),
    (30, 22, 689, 1000, 0, 1.4259),
    (31, 41, 15, 60, 0, 0.0),
    (32, 41, 138, 20, 0, 0.0),
    (33, 24, 1118, 990, 0, 1.354),
    (34, 33, 322, 940, 0, 1.1401),
    (35, 19, 1796, 960, 0, 0.0),
    (36, 23, 78, 949, 0, 1.2169),
    (37, 72, 20134, 630, 0, 0.4251),
    (38, 41, 185, 60, 0, 0.0),
    (39, 41, 80, 60, 0, 0.0),
    (40, 44, 155, 500, 0, 0.8551),
    (41, 44, 171, 500, 0, 0.8542),
    (42, 40, 4703, 960, 0, 1.5974),
    (44, 25, 22, 990, 0, 1.4084),
    (45, 10, 120, 850, 0, 0.6372),
    (47, 44, 267, 1000, 0, 2.0637),
    (48, 44, 70, 650, 0, 0.8191),
    (49, 44, 10658, 570, 0, 1.5095),
    (50, 18, 67485, 520, 0, 1.2816),
    (51, 44, 221, 900, 0, 1.9745),
    (52, 20, 273, 939, 0, 1.2117),
    (53, 36, 9213, 881, 0, 1.2061),
    (54, 19, 246, 970, 0, 1.611),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_sorted_and_adds_up() {
        assert!(CLUSTERS.is_sorted_by_key(|row| row.0));
        for (cluster, key, value, gets, deletes, skew) in CLUSTERS {
            assert!(gets + deletes <= 1000, "cluster {cluster}");
            assert!(
                key > 0 && value > 0 && (0.0..3.0).contains(&skew),
                "cluster {cluster}"
            );
        }
        assert_eq!(profile(14).map(|found| found.deletes), Some(220));
        assert_eq!(profile(999), None);
    }
}
