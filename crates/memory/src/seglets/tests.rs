//! Taking from pools and parts, and refilling them.

use super::*;
use std::collections::BTreeSet;

fn pool() -> SegletPool {
    let reserves = Reserves {
        cleaner: 3,
        emergency: 2,
    };
    SegletPool::new(10, reserves).unwrap()
}

fn take(pool: &SegletPool, class: SegletClass, count: usize) -> Option<Vec<SegletIndex>> {
    pool.take(class, count, PartIndex(0))
}

fn free(default: u32, cleaner: u32, emergency: u32) -> FreeSeglets {
    FreeSeglets {
        default,
        cleaner,
        emergency,
    }
}

#[test]
fn reserves_are_out_of_reach_of_ordinary_appends() {
    let pool = pool();
    assert_eq!(pool.free(), free(5, 3, 2));
    assert!(take(&pool, SegletClass::Default, 6).is_none());
    let first = take(&pool, SegletClass::Default, 5).unwrap();
    assert_eq!(
        first[0],
        SegletIndex(0),
        "memory is touched from its start on"
    );
    assert!(take(&pool, SegletClass::Default, 1).is_none());
    assert_eq!(take(&pool, SegletClass::Default, 0), Some(vec![]));
    assert_eq!(pool.free(), free(0, 3, 2));
}

#[test]
fn what_is_to_be_left_is_left() {
    let pool = pool();
    let leaving =
        |count, leave| pool.take_leaving(SegletClass::Default, count, leave, PartIndex(0));
    assert_eq!(leaving(5, 1), None);
    assert_eq!(leaving(4, 1).unwrap().len(), 4);
    assert_eq!(leaving(1, 1), None);
    assert_eq!(pool.free(), free(1, 3, 2));
    assert_eq!(leaving(1, 0).unwrap().len(), 1);
}

#[test]
fn the_cleaner_takes_its_reserve_first_and_then_from_everybody() {
    let pool = pool();
    assert_eq!(take(&pool, SegletClass::Cleaner, 2).unwrap().len(), 2);
    assert_eq!(pool.free(), free(5, 1, 2));
    assert!(take(&pool, SegletClass::Cleaner, 7).is_none());
    assert_eq!(pool.free(), free(5, 1, 2), "all or nothing");
    assert_eq!(take(&pool, SegletClass::Cleaner, 4).unwrap().len(), 4);
    assert_eq!(pool.free(), free(2, 0, 2));
}

// shows: S2
#[test]
fn freed_seglets_refill_emergency_then_cleaner_then_default() {
    let pool = pool();
    let mut taken = take(&pool, SegletClass::Cleaner, 8).unwrap();
    taken.extend(take(&pool, SegletClass::Emergency, 2).unwrap());
    assert_eq!(pool.free(), free(0, 0, 0));
    let distinct: BTreeSet<_> = taken.iter().copied().collect();
    assert_eq!(distinct.len(), 10);
    for (given, expected) in [(2, free(0, 0, 2)), (3, free(0, 3, 2)), (5, free(5, 3, 2))] {
        pool.give_back(taken.drain(..given));
        assert_eq!(pool.free(), expected);
    }
    assert_eq!(pool.free().total(), pool.seglets());
}

#[test]
#[should_panic(expected = "seglet 0 was given back, but it is not taken")]
fn giving_a_seglet_back_twice_is_refused() {
    let pool = pool();
    let taken = take(&pool, SegletClass::Default, 1).unwrap();
    pool.give_back(taken.clone());
    pool.give_back(taken);
}

// shows: S3
#[test]
fn what_was_freed_longest_ago_is_discarded_first_and_used_last() {
    let pool = pool();
    assert_eq!(pool.free_with_pages(), 0, "nothing was touched yet");
    let taken = take(&pool, SegletClass::Default, 4).unwrap();
    pool.give_back(taken.iter().copied());
    assert_eq!(pool.free_with_pages(), 4);
    let oldest = pool.take_with_pages(3);
    assert_eq!(oldest, taken[..3]);
    assert_eq!(pool.free(), free(2, 3, 2));
    pool.give_back_blank(oldest);
    assert_eq!((pool.free(), pool.free_with_pages()), (free(5, 3, 2), 1));
    let next = take(&pool, SegletClass::Default, 2).unwrap();
    assert_eq!(next, [taken[3], taken[2]]);
    assert_eq!(pool.free_with_pages(), 0);
}

// shows: S3
#[test]
fn pages_of_the_cleaners_reserve_go_back_too() {
    let pool = pool();
    assert_eq!(pool.blank(), 10, "nothing was touched yet");
    assert_eq!(pool.take_reserve_with_pages(3), []);
    let taken = take(&pool, SegletClass::Cleaner, 4).unwrap();
    pool.give_back(taken);
    assert_eq!((pool.free(), pool.blank()), (free(5, 3, 2), 6));
    let reserve = pool.take_reserve_with_pages(2);
    assert_eq!((reserve.len(), pool.free()), (2, free(5, 1, 2)));
    pool.give_back_blank(reserve);
    let reserve = pool.take_reserve_with_pages(2);
    assert_eq!(reserve.len(), 1, "the others have none");
    pool.give_back_blank(reserve);
    assert_eq!((pool.free(), pool.blank()), (free(5, 3, 2), 9));
    assert_eq!(pool.free_with_pages(), 1, "one went to the default pool");
}

// shows: S3
#[test]
fn all_free_seglets_count_as_resident_once_the_region_was_fetched() {
    let pool = pool();
    let taken = take(&pool, SegletClass::Default, 1).unwrap();
    assert!(!pool.note_pages(3), "one is left");
    assert_eq!((pool.free_with_pages(), pool.blank()), (3, 1));
    pool.give_back(taken.iter().copied());
    assert!(pool.note_pages(3));
    assert_eq!((pool.free(), pool.free_with_pages()), (free(5, 3, 2), 5));
    assert_eq!(pool.blank(), 0, "the reserves have pages, too");
    let next = take(&pool, SegletClass::Default, 2).unwrap();
    assert_eq!(next[0], taken[0], "it was in use");
    assert!(pool.note_pages(0), "nothing is left to note");
}

#[test]
fn reserves_must_leave_something() {
    let reserves = Reserves {
        cleaner: u32::MAX,
        emergency: u32::MAX,
    };
    let error = SegletPool::new(10, reserves).unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("10 seglets of memory do not cover")
    );
}
/// Two parts of ten seglets each.
fn divided() -> SegletPool {
    let reserves = Reserves {
        cleaner: 4,
        emergency: 2,
    };
    SegletPool::divided(&[10, 10], reserves).unwrap()
}

fn of_part(pool: &SegletPool, seglets: &[SegletIndex], part: u16) -> usize {
    let of_part = seglets
        .iter()
        .filter(|s| pool.part_of(**s) == PartIndex(part));
    of_part.count()
}

// shows: S4
#[test]
fn each_part_has_its_seglets_and_takes_those_of_others_only_when_it_has_none() {
    let pool = divided();
    let mine = pool.take(SegletClass::Default, 7, PartIndex(1)).unwrap();
    assert_eq!(mine[0], SegletIndex(10), "from its part's start on");
    assert_eq!((of_part(&pool, &mine, 1), pool.taken_away()), (7, 0));
    let more = pool.take(SegletClass::Default, 5, PartIndex(1)).unwrap();
    assert_eq!((of_part(&pool, &more, 0), pool.taken_away()), (5, 5));
    assert_eq!(pool.poorest(), Some((PartIndex(1), 0)));
    let survivors = pool.take(SegletClass::Cleaner, 3, PartIndex(1)).unwrap();
    assert_eq!(of_part(&pool, &survivors, 1), 2, "half of the reserve");
    assert_eq!(pool.taken_away(), 6);
    assert!(pool.take(SegletClass::Default, 3, PartIndex(0)).is_none());
    assert_eq!(pool.free(), free(2, 1, 2));
}

// shows: S4
#[test]
fn reserves_come_to_be_of_all_parts_again() {
    let pool = divided();
    let all = pool.take(SegletClass::Cleaner, 18, PartIndex(0)).unwrap();
    let heads = pool.take(SegletClass::Emergency, 2, PartIndex(0)).unwrap();
    assert_eq!(pool.free().total(), 0);
    let all = [all, heads].concat();
    // First those of one part, which fill the reserves, then those of the other one.
    pool.give_back(all.iter().copied().filter(|s| s.0 < 10));
    assert_eq!(pool.free(), free(4, 4, 2));
    pool.give_back(all.iter().copied().filter(|s| s.0 >= 10));
    assert_eq!(pool.free(), free(14, 4, 2));
    assert_eq!(pool.free_with_pages(), 14);
    let all = pool.take(SegletClass::Default, 14, PartIndex(0)).unwrap();
    let kept = pool.take(SegletClass::Cleaner, 4, PartIndex(1)).unwrap();
    assert_eq!((of_part(&pool, &kept, 0), of_part(&pool, &kept, 1)), (2, 2));
    let heads = pool.take(SegletClass::Emergency, 2, PartIndex(1)).unwrap();
    assert_eq!(of_part(&pool, &heads, 1), 1);
    pool.give_back(heads.into_iter().chain(kept).chain(all));
    let near = pool.take(SegletClass::Cleaner, 4, PartIndex(1)).unwrap();
    assert_eq!(
        of_part(&pool, &near, 1),
        4,
        "its own instead of the other one's"
    );
    assert_eq!(pool.free(), free(14, 0, 2));
}
