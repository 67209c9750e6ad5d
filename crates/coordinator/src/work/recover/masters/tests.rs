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
        let chosen = masters.choose(servers(&[2, 3, 4]), &nobody);
        assert!(chosen.asked.contains(&ServerId(full)), "{chosen:?}");
        masters.learn(&attempted(&[], &[(full, "full")]));
    }
    // Also when it is busy with another recovery.
    for busy in [BTreeSet::new(), BTreeSet::from([ServerId(5)])] {
        let chosen = masters.choose(servers(&[3, 4, 5, 2]), &busy);
        assert_eq!((chosen.asked, chosen.cut_for), (servers(&[5]), 1));
    }
    masters.learn(&attempted(&[5], &[]));
    let chosen = masters.choose(servers(&[3, 4, 5, 2]), &nobody);
    assert_eq!(chosen.asked, servers(&[5]));
}

#[test]
fn when_all_have_failed_all_are_asked_and_who_failed_least_first() {
    let mut masters = FailedMasters::default();
    masters.learn(&attempted(&[], &[(2, "full"), (3, "full"), (4, "full")]));
    masters.learn(&attempted(&[], &[(2, "full"), (3, "full")]));
    masters.learn(&attempted(&[], &[(2, "full")]));
    let busy = BTreeSet::from([ServerId(4)]);
    let chosen = masters.choose(servers(&[2, 3, 4]), &busy);
    assert_eq!(chosen.asked, servers(&[4, 3, 2]));
    // A master that recovers a partition has not failed any more.
    masters.learn(&attempted(&[2], &[(3, "full"), (4, "full")]));
    let chosen = masters.choose(servers(&[4, 3, 2]), &busy);
    assert_eq!(chosen.asked, servers(&[2]));
}

#[test]
fn who_did_not_fail_is_asked_for_all_that_is_left_until_it_failed_at_that() {
    let mut masters = FailedMasters::default();
    let nobody = BTreeSet::new();
    let all = || servers(&[2, 3, 4, 5]);
    assert_eq!(masters.choose(all(), &nobody).cut_for, 4);
    masters.learn(&attempted(&[5], &[(2, "full"), (3, "full"), (4, "full")]));
    let chosen = masters.choose(all(), &nobody);
    assert_eq!((chosen.asked, chosen.cut_for), (servers(&[5]), 1));
    masters.learn(&attempted(&[], &[(5, "full")]));
    let chosen = masters.choose(all(), &nobody);
    assert_eq!((chosen.asked.len(), chosen.cut_for), (4, 4));
    masters.learn(&attempted(&[5], &[(2, "full"), (3, "full"), (4, "full")]));
    let chosen = masters.choose(all(), &nobody);
    assert_eq!((chosen.asked, chosen.cut_for), (servers(&[5]), 4));
}

#[test]
fn who_refused_at_once_is_asked_again_after_the_others() {
    let mut masters = FailedMasters::default();
    let mut attempt = attempted(&[], &[(2, "not today")]);
    attempt.failed.get_mut(&ServerId(2)).unwrap().tried = false;
    masters.learn(&attempt);
    let busy = BTreeSet::from([ServerId(3)]);
    let chosen = masters.choose(servers(&[2, 3, 4]), &busy);
    assert_eq!(chosen.asked, servers(&[4, 3, 2]));
}

#[test]
fn who_refuses_at_once_keeps_nobody_from_being_asked_again() {
    let mut masters = FailedMasters::default();
    let mut attempt = attempted(&[], &[(2, "full"), (3, "not today")]);
    attempt.failed.get_mut(&ServerId(3)).unwrap().tried = false;
    masters.learn(&attempt);
    let nobody = BTreeSet::new();
    let chosen = masters.choose(servers(&[2, 3]), &nobody);
    assert_eq!(chosen.asked, servers(&[3, 2]));
    let chosen = masters.choose(servers(&[2, 3, 4]), &nobody);
    assert_eq!(chosen.asked, servers(&[4, 3]));
}

#[test]
fn what_failed_on_a_server_that_is_gone_is_forgotten() {
    let mut masters = FailedMasters::default();
    masters.learn(&attempted(&[], &[(2, "full"), (3, "full")]));
    masters.choose(servers(&[3]), &BTreeSet::new());
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
