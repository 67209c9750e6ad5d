//! Which masters are asked, and what people read of those that failed.

use super::super::attempts::Failure;
use super::*;
use pluvio_wire::RecoveryStage;

/// An attempt in which these recovered their partitions, and these tried and could not.
fn attempted(recovered: &[u64], failed: &[(u64, &str)]) -> Attempted {
    let failure = |why: &str| Failure {
        tried: true,
        why: why.to_owned(),
    };
    Attempted {
        recovered: recovered.iter().map(|id| ServerId(*id)).collect(),
        failed: failed
            .iter()
            .map(|(id, why)| (ServerId(*id), failure(why)))
            .collect(),
        master_crashed: false,
    }
}

/// What people read beside what is going on.
fn text(masters: &FailedMasters) -> String {
    let stage = RecoveryStage::Replaying {
        masters: 2,
        failures: masters.summary(),
    };
    stage.to_string()
}

fn servers(ids: &[u64]) -> Vec<ServerId> {
    ids.iter().map(|id| ServerId(*id)).collect()
}

#[test]
fn an_empty_newcomer_is_asked_before_those_that_failed_in_whatever_attempt() {
    let _marks = pluvio_units::Marks::to_reach(&["recovery-only-who-has-not-failed"]);
    let mut masters = FailedMasters::default();
    let nobody = BTreeSet::new();
    for full in [2, 3, 4] {
        let chosen = masters.choose(servers(&[2, 3, 4]), &nobody, &Rooms::new());
        assert!(chosen.asked.contains(&ServerId(full)), "{chosen:?}");
        masters.learn(&attempted(&[], &[(full, "full")]));
    }
    // Also when it is busy with another recovery.
    for busy in [BTreeSet::new(), BTreeSet::from([ServerId(5)])] {
        let chosen = masters.choose(servers(&[3, 4, 5, 2]), &busy, &Rooms::new());
        assert_eq!((chosen.asked, chosen.cut_for), (servers(&[5]), 1));
    }
    masters.learn(&attempted(&[5], &[]));
    let chosen = masters.choose(servers(&[3, 4, 5, 2]), &nobody, &Rooms::new());
    assert_eq!(chosen.asked, servers(&[5]));
}

#[test]
fn when_all_have_failed_all_are_asked_and_who_failed_least_first() {
    let mut masters = FailedMasters::default();
    masters.learn(&attempted(&[], &[(2, "full"), (3, "full"), (4, "full")]));
    masters.learn(&attempted(&[], &[(2, "full"), (3, "full")]));
    masters.learn(&attempted(&[], &[(2, "full")]));
    let busy = BTreeSet::from([ServerId(4)]);
    let chosen = masters.choose(servers(&[2, 3, 4]), &busy, &Rooms::new());
    assert_eq!(chosen.asked, servers(&[4, 3, 2]));
    // A master that recovers a partition has not failed any more.
    masters.learn(&attempted(&[2], &[(3, "full"), (4, "full")]));
    let chosen = masters.choose(servers(&[4, 3, 2]), &busy, &Rooms::new());
    assert_eq!(chosen.asked, servers(&[2]));
}

#[test]
fn who_did_not_fail_is_asked_for_all_that_is_left_until_it_failed_at_that() {
    let mut masters = FailedMasters::default();
    let nobody = BTreeSet::new();
    let all = || servers(&[2, 3, 4, 5]);
    assert_eq!(masters.choose(all(), &nobody, &Rooms::new()).cut_for, 4);
    masters.learn(&attempted(&[5], &[(2, "full"), (3, "full"), (4, "full")]));
    let chosen = masters.choose(all(), &nobody, &Rooms::new());
    assert_eq!((chosen.asked, chosen.cut_for), (servers(&[5]), 1));
    masters.learn(&attempted(&[], &[(5, "full")]));
    let chosen = masters.choose(all(), &nobody, &Rooms::new());
    assert_eq!((chosen.asked.len(), chosen.cut_for), (4, 4));
    masters.learn(&attempted(&[5], &[(2, "full"), (3, "full"), (4, "full")]));
    let chosen = masters.choose(all(), &nobody, &Rooms::new());
    assert_eq!((chosen.asked, chosen.cut_for), (servers(&[5]), 4));
}

#[test]
fn who_refused_at_once_is_asked_again_after_the_others() {
    let mut masters = FailedMasters::default();
    let mut attempt = attempted(&[], &[(2, "not today")]);
    attempt.failed.get_mut(&ServerId(2)).unwrap().tried = false;
    masters.learn(&attempt);
    let busy = BTreeSet::from([ServerId(3)]);
    let chosen = masters.choose(servers(&[2, 3, 4]), &busy, &Rooms::new());
    assert_eq!(chosen.asked, servers(&[4, 3, 2]));
}

#[test]
fn who_refuses_at_once_keeps_nobody_from_being_asked_again() {
    let mut masters = FailedMasters::default();
    let mut attempt = attempted(&[], &[(2, "full"), (3, "not today")]);
    attempt.failed.get_mut(&ServerId(3)).unwrap().tried = false;
    masters.learn(&attempt);
    let nobody = BTreeSet::new();
    let chosen = masters.choose(servers(&[2, 3]), &nobody, &Rooms::new());
    assert_eq!(chosen.asked, servers(&[3, 2]));
    let chosen = masters.choose(servers(&[2, 3, 4]), &nobody, &Rooms::new());
    assert_eq!(chosen.asked, servers(&[4, 3]));
}

#[test]
fn what_failed_on_a_server_that_is_gone_is_forgotten() {
    let mut masters = FailedMasters::default();
    masters.learn(&attempted(&[], &[(2, "full"), (3, "full")]));
    masters.choose(servers(&[3]), &BTreeSet::new(), &Rooms::new());
    assert_eq!(
        text(&masters),
        "replaying on 2 servers; failed on server 3 (full)"
    );
}

#[test]
fn the_stage_says_who_failed_and_why_and_is_not_long() {
    let mut masters = FailedMasters::default();
    assert_eq!(text(&masters), "replaying on 2 servers");
    masters.learn(&attempted(&[5], &[(2, "full"), (3, "full"), (4, "odd")]));
    assert_eq!(
        text(&masters),
        "replaying on 2 servers; failed on server 2, 3 (full), server 4 (odd)"
    );
    // The latest reason of each counts.
    masters.learn(&attempted(&[4], &[(2, "odd")]));
    assert_eq!(
        text(&masters),
        "replaying on 2 servers; failed on server 3 (full), server 2 (odd)"
    );
    let reasons: Vec<String> = (0..9).map(|i| i.to_string().repeat(10_000)).collect();
    let failed: Vec<(u64, &str)> = (1..1000_u64)
        .map(|id| (id, reasons[(id % 9) as usize].as_str()))
        .collect();
    masters.learn(&attempted(&[], &failed));
    let text = text(&masters);
    assert!(text.len() < 1000, "{text}");
    assert!(text.contains(" and 103 more ("), "{text}");
    assert!(text.ends_with(", others for other reasons"), "{text}");
}

/// Masters by their ids, each with its free bytes of a million.
fn rooms(free: &[(u64, u64)]) -> Rooms {
    let room = |free: u64| MasterRoom {
        live_bytes: 1_000_000 - free,
        live_bytes_max: 1_000_000,
    };
    free.iter()
        .map(|(id, free)| (ServerId(*id), room(*free)))
        .collect()
}

#[test]
fn the_emptiest_are_asked_first_and_chance_decides_among_equals() {
    let mut masters = FailedMasters::default();
    let rooms = rooms(&[(2, 100_000), (3, 900_000), (4, 920_000), (5, 500_000)]);
    let busy = BTreeSet::from([ServerId(4)]);
    let mut choose = |ids, busy: &BTreeSet<ServerId>| masters.choose(ids, busy, &rooms).asked;
    let nobody = BTreeSet::new();
    assert_eq!(
        choose(servers(&[2, 3, 4, 5]), &nobody),
        servers(&[3, 4, 5, 2])
    );
    assert_eq!(
        choose(servers(&[4, 2, 3, 5]), &nobody),
        servers(&[4, 3, 5, 2])
    );
    // One that recovers something already comes later, and one that says nothing has room.
    assert_eq!(
        choose(servers(&[6, 2, 3, 4, 5]), &busy),
        servers(&[6, 3, 5, 2, 4])
    );
}

#[test]
fn who_has_no_room_for_its_share_is_left_out_if_the_others_have() {
    let _marks = pluvio_units::Marks::to_reach(&["recovery-only-masters-with-room"]);
    let rooms = rooms(&[(2, 1000), (3, 500_000), (4, 900_000)]);
    let all = || Masters {
        asked: servers(&[2, 3, 4]),
        cut_for: 3,
    };
    let chosen = |bytes, finer| {
        let masters = all().with_room(&rooms, bytes, finer);
        (masters.asked, masters.cut_for)
    };
    assert_eq!(chosen(2000, 1), (servers(&[2, 3, 4]), 3));
    assert_eq!(chosen(300_000, 1), (servers(&[3, 4]), 2));
    assert_eq!(chosen(888_000, 1), (servers(&[3, 4]), 2));
    // Too much for one: the rest comes later, or in smaller parts.
    assert_eq!(chosen(10_000_000, 1), (servers(&[2, 3, 4]), 3));
    assert_eq!(chosen(10_000_000, 16), (servers(&[3, 4]), 2));
    // Tablets that a master failed at are cut as finely as before.
    let hurt = Masters {
        cut_for: 5,
        ..all()
    };
    assert_eq!(hurt.with_room(&rooms, 300_000, 1).cut_for, 5);
}
