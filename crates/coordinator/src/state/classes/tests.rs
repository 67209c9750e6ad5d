//! Durability classes: those there can be, and those that settings pass.

use super::*;
use crate::state::State;
use crate::testing::{NoChoice, server};
use pluvio_units::{ClusterId, HashKind, LogId, ServerId, TableId};
use pluvio_wire::{ChangeSettings, CreateTable, Enlist, QuotaWish, SettingsWish, Versions};
use std::collections::BTreeSet;

fn state(replicas: u32, synced: bool) -> State {
    let mut state = State::new(ClusterId(7));
    let wish = SettingsWish {
        replicas: Some(replicas),
        synced: Some(synced),
        ..SettingsWish::default()
    };
    assert!(state.begin_settings(&wish).unwrap());
    let request = Enlist {
        protocol: Versions::OWN.newest,
        expects: Some(SettingsWish::default()),
        cluster: None,
        replaces: None,
        attempt: 1,
        logs: 1,
        info: server(0, "host:1".to_owned()),
    };
    state.enlist(request).unwrap();
    state
}

fn wish(replicas: u32, synced: bool) -> DurabilityWish {
    DurabilityWish {
        replicas: Some(replicas),
        synced: Some(synced),
    }
}

fn create(state: &mut State, name: &str, durability: DurabilityWish) -> Result<TableId, String> {
    let request = CreateTable {
        name: name.to_owned(),
        span: None,
        hash: HashKind::default(),
        quota: QuotaWish::default(),
        durability,
    };
    let made = state.create_table(request, 1, &NoChoice);
    made.map_err(|refusal| refusal.to_string())
}

fn class_of(state: &State, table: TableId) -> Option<TableClass> {
    state.tables[&table].class
}

// shows: COORD-22
#[test]
fn three_durabilities_are_the_most_and_all_can_be_compared() {
    let mut state = state(2, false);
    let before = state.clone();
    let plain = create(&mut state, "plain", DurabilityWish::default()).unwrap();
    assert_eq!(class_of(&state, plain), None);
    assert_eq!(state.globals.format, before.globals.format);
    let strong = create(&mut state, "strong", wish(3, true)).unwrap();
    let strong = class_of(&state, strong).unwrap();
    assert_eq!((strong.number, strong.weaker), (1, false));
    assert_eq!(state.globals.format, FORMAT_CLASSES);
    let refused = create(&mut state, "skew", wish(1, true)).unwrap_err();
    assert!(refused.contains("the cluster has replicas=2"), "{refused}");
    let refused = create(&mut state, "skew", wish(5, false)).unwrap_err();
    assert!(
        refused.contains("table strong has synced, 3 replicas"),
        "{refused}"
    );
    let weak = create(&mut state, "weak", wish(1, false)).unwrap();
    let weak = class_of(&state, weak).unwrap();
    assert_eq!((weak.number, weak.weaker), (2, true));
    let again = create(&mut state, "again", wish(3, true)).unwrap();
    assert_eq!(class_of(&state, again), Some(strong));
    let refused = create(&mut state, "fourth", wish(4, true)).unwrap_err();
    assert!(refused.contains("no more are possible"), "{refused}");
    state.settle_list(&before);
    assert_eq!(state.list().classes, [strong, weak]);
    assert!(state.globals.list_version > before.globals.list_version);
    for (replicas, why) in [(0, "nothing on devices"), (17, "16 are the most")] {
        let refused = create(&mut state, "bad", wish(replicas, true)).unwrap_err();
        assert!(refused.contains(why), "{refused}");
    }
}

// shows: COORD-22
#[test]
fn a_volatile_class_is_less_durable_than_all_others() {
    let mut state = state(2, true);
    let volatile = DurabilityWish {
        replicas: Some(0),
        synced: None,
    };
    let cache = create(&mut state, "cache", volatile).unwrap();
    let class = class_of(&state, cache).unwrap();
    assert_eq!(
        (class.replicas, class.synced, class.weaker),
        (0, false, true)
    );
    let settings = class.settings(&state.globals.settings.unwrap());
    assert_eq!((settings.replicas, settings.min_replicas), (0, 0));
    assert_eq!(class.to_string(), "volatile");
    let weak = create(&mut state, "weak", wish(1, false)).unwrap();
    let logs = state.weak_logs(&state.servers[&ServerId(1)]);
    assert_eq!(logs.volatile, BTreeSet::from([LogId(1)]));
    assert_eq!(logs.logs, BTreeSet::from([LogId(2)]));
    assert!(logs.leaves_out(LogId(1)) && !logs.leaves_out(LogId(2)));
    // Its number is for volatile classes only.
    state.tables.retain(|_, table| table.id == weak);
    let refused = create(&mut state, "other", wish(2, false)).unwrap_err();
    assert!(refused.contains("no more are possible"), "{refused}");
    assert!(create(&mut state, "cache", volatile).is_ok());
}

// shows: COORD-22
#[test]
fn a_number_is_given_again_where_nothing_compares_otherwise() {
    let mut state = state(2, false);
    let one = create(&mut state, "one", wish(3, true)).unwrap();
    let two = create(&mut state, "two", wish(1, false)).unwrap();
    state.tables.remove(&one);
    let refused = create(&mut state, "lower", wish(2, false));
    assert!(refused.is_ok(), "it compares with both as the former did");
    state.tables.retain(|_, table| table.id == two);
    let lower = create(&mut state, "higher", wish(4, true)).unwrap();
    assert_eq!(class_of(&state, lower).unwrap().number, 1);
    state.tables.remove(&two);
    let refused = create(&mut state, "no", wish(5, true)).unwrap_err();
    assert!(
        refused.contains("no more"),
        "what was weaker stays so: {refused}"
    );
}

// shows: COORD-22
#[test]
fn the_cluster_s_settings_do_not_pass_a_class_that_is_in_use() {
    let mut state = state(2, false);
    let change = |state: &mut State, replicas| {
        let change = SettingsWish {
            replicas: Some(replicas),
            ..SettingsWish::default()
        };
        state.change_settings(&ChangeSettings { change })
    };
    let table = create(&mut state, "strong", wish(3, false)).unwrap();
    assert!(change(&mut state, 3).is_ok(), "as durable is no less");
    let refused = change(&mut state, 4).unwrap_err().to_string();
    assert!(refused.contains("table strong"), "{refused}");
    let kept = class_of(&state, table).unwrap();
    state.tables.remove(&table);
    state.globals.kept_classes.insert("strong".to_owned(), kept);
    let refused = change(&mut state, 4).unwrap_err().to_string();
    assert!(
        refused.contains("emptied") && refused.contains("table drop strong"),
        "{refused}"
    );
    state.globals.kept_classes.clear();
    assert!(change(&mut state, 4).is_ok());
    assert_eq!(state.globals.classes[0].replicas, 4, "it follows");
}

// shows: VERSION-2
#[test]
fn a_cluster_of_the_version_before_has_no_classes() {
    let mut state = state(2, false);
    state.globals.active = CLASSES_SINCE - 1;
    let refused = create(&mut state, "strong", wish(3, false)).unwrap_err();
    assert!(refused.contains("finalize"), "{refused}");
    assert!(state.globals.classes.is_empty());
}
