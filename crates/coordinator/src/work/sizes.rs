//! How much tablets hold, and how much servers take: guesses that drains, balancing and migrations
//! plan with.
//!
//! Servers count objects by table. Hashes are spread evenly, so a tablet's share is that of its
//! range. A guess that is wrong costs a move that is given up, and no data.

use crate::state::{TableRecord, Width};
use pluvio_units::{HashRange, KeyHash, ServerId};
use pluvio_wire::{CountObjectsReply, ServerStatus};

/// Header and padding of an object's entry, about: counts of objects do not include them.
const ENTRY_BYTES: u64 = 64;

/// The bytes of a log that counted objects take, about.
pub(super) fn log_bytes(count: &CountObjectsReply) -> u64 {
    let entries = count.objects.saturating_mul(ENTRY_BYTES);
    count.bytes.saturating_add(entries)
}

/// The part of what a server has of a table that lies in one of its tablets there.
pub(super) fn share_of(table: &TableRecord, server: ServerId, range: HashRange, bytes: u64) -> u64 {
    let own = table.tablets.iter().filter(|t| t.owner == server);
    let all: u64 = own.map(|t| Width::of(t.range).0).sum();
    let part = u128::from(bytes) * u128::from(Width::of(range).0) / u128::from(all.max(1));
    u64::try_from(part).unwrap_or(u64::MAX)
}

/// Live bytes that a server takes at most. Some do not say.
pub(super) fn live_max(status: &ServerStatus) -> u64 {
    match status.memory_live_max {
        0 => status.memory_total / 2,
        live_max => live_max,
    }
}

/// Live bytes that a server has room for.
pub(super) fn free(status: &ServerStatus) -> u64 {
    live_max(status).saturating_sub(status.memory_live)
}

/// Which end of a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum End {
    Lower,
    Upper,
}

/// The end of a range that has `part` of its `whole` bytes, about.
pub(super) fn part_of(range: HashRange, part: u64, whole: u64, end: End) -> HashRange {
    let width = range.last.0 - range.first.0;
    let kept = u128::from(width) * u128::from(part) / u128::from(whole.max(1));
    let kept = u64::try_from(kept).unwrap_or(width).min(width);
    match end {
        End::Lower => HashRange::new(range.first, KeyHash(range.first.0 + kept)),
        End::Upper => HashRange::new(KeyHash(range.last.0 - kept), range.last),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_count_of_a_server_is_a_size() {
        let count = |objects, bytes| {
            log_bytes(&CountObjectsReply {
                objects,
                bytes,
                bounded: 0,
            })
        };
        assert_eq!(count(2, 100), 228);
        assert_eq!(count(u64::MAX, u64::MAX), u64::MAX);
    }

    #[test]
    fn parts_lie_at_the_ends_and_are_never_more_than_the_whole() {
        let range = HashRange::new(KeyHash(1000), KeyHash(2000));
        let part = |part, end| part_of(range, part, 10, end);
        assert_eq!(
            part(1, End::Lower),
            HashRange::new(KeyHash(1000), KeyHash(1100))
        );
        assert_eq!(
            part(1, End::Upper),
            HashRange::new(KeyHash(1900), KeyHash(2000))
        );
        assert_eq!(part(u64::MAX, End::Lower), range);
        assert_eq!(part_of(range, 5, 0, End::Upper), range);
    }
}
