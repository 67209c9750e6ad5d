//! The types of heaps against those of the standard library, by random changes.

use super::{attach, registry};
use crate::{Access, SegMap, SegStr, SegVec, SpaceError, seg_struct};
use proptest::prelude::*;
use std::collections::BTreeMap;

seg_struct! {
    struct Root<'id> {
        texts: SegMap<'id, u32, SegStr<'id>>,
        rows: SegVec<'id, SegVec<'id, u16>>,
        counts: SegMap<'id, SegStr<'id>, [u64; 3]>,
    }
}

/// The same in this process.
#[derive(Clone, Default, PartialEq, Debug)]
struct Model {
    texts: BTreeMap<u32, String>,
    rows: Vec<Vec<u16>>,
    counts: BTreeMap<String, [u64; 3]>,
}

/// One step of a change.
#[derive(Clone, Debug)]
enum Step {
    SetText(u32, String),
    AppendText(u32, String),
    RemoveText(u32),
    AddRow(usize, Vec<u16>),
    PushToRow(usize, u16),
    RemoveRow(usize),
    SwapRemoveRow(usize),
    TruncateRow(usize, usize),
    Count(String),
    RemoveCount(String),
    ClearCounts,
}

fn step() -> impl Strategy<Value = Step> {
    let long = || (0..20_000_usize).prop_map(|count| "ä".repeat(count));
    let text = || prop_oneof![3 => "[a-z]{0,20}", 1 => long()];
    let name = || "[a-f]{1,2}";
    prop_oneof![
        4 => (0..40_u32, text()).prop_map(|(key, text)| Step::SetText(key, text)),
        2 => (0..40_u32, text()).prop_map(|(key, text)| Step::AppendText(key, text)),
        3 => (0..40_u32).prop_map(Step::RemoveText),
        3 => (any::<usize>(), prop::collection::vec(any::<u16>(), 0..200))
            .prop_map(|(place, row)| Step::AddRow(place, row)),
        4 => (any::<usize>(), any::<u16>()).prop_map(|(row, value)| Step::PushToRow(row, value)),
        1 => any::<usize>().prop_map(Step::RemoveRow),
        1 => any::<usize>().prop_map(Step::SwapRemoveRow),
        1 => (any::<usize>(), 0..100_usize).prop_map(|(row, len)| Step::TruncateRow(row, len)),
        6 => name().prop_map(Step::Count),
        3 => name().prop_map(Step::RemoveCount),
        1 => Just(Step::ClearCounts),
    ]
}

/// A change: its steps, and whether it is given up at its end.
fn change() -> impl Strategy<Value = (Vec<Step>, bool)> {
    (
        prop::collection::vec(step(), 1..30),
        prop::bool::weighted(0.2),
    )
}

fn do_step<'id>(
    step: &Step,
    heap: &crate::Heap<'id>,
    root: &mut Root<'id>,
    model: &mut Model,
) -> crate::Result<()> {
    let count = model.rows.len();
    let place = |row: usize| row % count;
    match step {
        Step::SetText(key, text) => {
            let old = root
                .texts
                .insert(heap, *key, SegStr::from_text(heap, text)?)?;
            let expected = model.texts.insert(*key, text.clone());
            assert_eq!(old.map(|text| text.to_string()), expected);
        }
        Step::AppendText(key, text) => {
            let there = root.texts.get_mut(key);
            let expected = model.texts.get_mut(key);
            assert_eq!(there.is_some(), expected.is_some());
            if let (Some(there), Some(expected)) = (there, expected) {
                there.push_str(heap, text)?;
                expected.push_str(text);
                if text.is_empty() {
                    there.set(heap, "reset")?;
                    "reset".clone_into(expected);
                }
            }
        }
        Step::RemoveText(key) => {
            let old = root.texts.remove(key).map(|(_, text)| text.to_string());
            assert_eq!(old, model.texts.remove(key));
        }
        Step::AddRow(row, values) => {
            let row = row % (count + 1);
            root.rows
                .insert(heap, row, SegVec::from_slice(heap, values)?)?;
            model.rows.insert(row, values.clone());
        }
        Step::Count(name) => {
            match root.counts.get_mut(name.as_str()) {
                Some(counts) => counts[1] += 1,
                None => {
                    let key = SegStr::from_text(heap, name)?;
                    root.counts.insert(heap, key, [1, 0, 9])?;
                }
            }
            let there = model.counts.entry(name.clone());
            there
                .and_modify(|counts| counts[1] += 1)
                .or_insert([1, 0, 9]);
        }
        Step::RemoveCount(name) => {
            let old = root.counts.remove(name.as_str()).map(|(_, counts)| counts);
            assert_eq!(old, model.counts.remove(name));
        }
        Step::ClearCounts => {
            root.counts.clear();
            model.counts.clear();
        }
        _ if count == 0 => {}
        Step::PushToRow(row, value) => {
            root.rows[place(*row)].push(heap, *value)?;
            model.rows[place(*row)].push(*value);
        }
        Step::RemoveRow(row) => {
            let old = root.rows.remove(place(*row));
            assert_eq!(old[..], model.rows.remove(place(*row)));
        }
        Step::SwapRemoveRow(row) => {
            let old = root.rows.swap_remove(place(*row));
            assert_eq!(old[..], model.rows.swap_remove(place(*row)));
        }
        Step::TruncateRow(row, len) => {
            root.rows[place(*row)].truncate(*len);
            model.rows[place(*row)].truncate(*len);
        }
    }
    Ok(())
}

fn copy(root: &Root<'_>) -> Model {
    let texts = root.texts.iter();
    let counts = root.counts.iter();
    Model {
        texts: texts.map(|(key, text)| (*key, text.to_string())).collect(),
        rows: root.rows.iter().map(|row| row.to_vec()).collect(),
        counts: counts
            .map(|(name, counts)| (name.to_string(), *counts))
            .collect(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_types_are_those_of_the_standard_library(
        changes in prop::collection::vec(change(), 1..12)
    ) {
        let (_place, registry) = registry();
        registry.span("s").size(16 << 20).create().expect("a span");
        registry.create_space("s", &[("s", Access::Write)]).expect("a space");
        let mut model = Model::default();
        {
            let space = attach(&registry, "s");
            let mut inside = space.enter().expect("inside");
            inside.init::<Root<'_>>("s", |_| Ok(Root {
                texts: SegMap::new(),
                rows: SegVec::new(),
                counts: SegMap::new(),
            })).expect("a root");
            for (steps, given_up) in &changes {
                let mut newer = model.clone();
                let done = inside.write::<Root<'_>, _>("s", |heap, root| {
                    for step in steps {
                        do_step(step, heap, root, &mut newer)?;
                    }
                    assert_eq!(copy(root), newer);
                    match given_up {
                        true => Err(SpaceError::GivenUp(String::new())),
                        false => Ok(()),
                    }
                });
                prop_assert_eq!(done.is_err(), *given_up);
                if !given_up {
                    model = newer;
                }
                inside.part("s").and_then(|part| part.check()).expect("a sound heap");
                let there = inside.read::<Root<'_>, _>("s", copy).expect("a root");
                prop_assert_eq!(&there, &model);
            }
        }
        // Attached anew, and emptied: only the root's own block is left.
        let space = attach(&registry, "s");
        let mut inside = space.enter().expect("inside");
        prop_assert_eq!(&inside.read::<Root<'_>, _>("s", copy).expect("a root"), &model);
        inside.write::<Root<'_>, _>("s", |_, root| {
            drop(std::mem::take(&mut root.texts));
            drop(std::mem::take(&mut root.rows));
            drop(std::mem::take(&mut root.counts));
            Ok(())
        }).expect("changed");
        let report = inside.part("s").and_then(|part| part.check()).expect("a sound heap");
        prop_assert_eq!(report.blocks, 1);
    }
}
