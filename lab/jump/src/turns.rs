//! Contestants take turns: round after round, each once. So a machine that is slow for a round is
//! slow for all of them.

use crate::error::Result;
use pluvio_bench::experiment::{Experiment, Row, Spread};
use std::time::Instant;

/// This moment.
#[expect(
    clippy::disallowed_methods,
    reason = "an experiment measures real time; nothing else here looks at it"
)]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// Nanoseconds since a moment.
pub(crate) fn ns_since(begin: Instant) -> f64 {
    begin.elapsed().as_secs_f64() * 1e9
}

/// One that is measured: its name, and how a turn of it is measured.
pub(crate) struct Contestant<'a> {
    name: String,
    turn: Box<dyn FnMut() -> Result<f64> + 'a>,
}

impl<'a> Contestant<'a> {
    /// `turn` gives the measured number.
    pub(crate) fn new(name: impl Into<String>, turn: impl FnMut() -> Result<f64> + 'a) -> Self {
        Self {
            name: name.into(),
            turn: Box::new(turn),
        }
    }
}

/// The numbers of one contestant, a number a round.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Numbers {
    pub(crate) name: String,
    pub(crate) each: Vec<f64>,
}

/// Measures all, in turns. A round before the first warms up, and counts for nothing.
pub(crate) fn take_turns(rounds: u32, mut all: Vec<Contestant<'_>>) -> Result<Vec<Numbers>> {
    let mut numbers: Vec<Numbers> = Vec::new();
    for one in &mut all {
        (one.turn)()?;
        numbers.push(Numbers {
            name: one.name.clone(),
            each: Vec::new(),
        });
    }
    for _ in 0..rounds {
        for (one, numbers) in all.iter_mut().zip(&mut numbers) {
            numbers.each.push((one.turn)()?);
        }
    }
    Ok(numbers)
}

/// Adds a row for each contestant: the cells of `head`, its name, and its median with the least and
/// the most, in the column `column`.
pub(crate) fn add_rows(experiment: &mut Experiment, head: &Row, column: &str, all: &[Numbers]) {
    for one in all {
        if let Some(spread) = Spread::of(&one.each) {
            let row = head.clone().with("contestant", one.name.as_str());
            experiment.rows.push(row.and(spread.cells(column)));
        }
    }
}

/// The numbers of the contestant with this name; none if it took no part.
pub(crate) fn of<'n>(all: &'n [Numbers], name: &str) -> &'n [f64] {
    let found = all.iter().find(|one| one.name == name);
    found.map_or(&[], |one| &one.each)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    #[test]
    fn each_has_a_turn_in_each_round_and_the_first_round_does_not_count() {
        let order = RefCell::new(Vec::new());
        let turn = |name: &'static str, number: f64| {
            let order = &order;
            Contestant::new(name, move || {
                order.borrow_mut().push(name);
                Ok(number)
            })
        };
        let numbers = take_turns(2, vec![turn("a", 1.0), turn("b", 2.0)]).expect("measured");
        assert_eq!(*order.borrow(), ["a", "b", "a", "b", "a", "b"]);
        assert_eq!(of(&numbers, "b"), [2.0, 2.0]);
        assert!(of(&numbers, "c").is_empty());
        let mut experiment = Experiment::new("test", Row::new());
        add_rows(
            &mut experiment,
            &Row::new().with("pages", 3),
            "ns",
            &numbers,
        );
        assert_eq!(experiment.csv().lines().count(), 3);
    }
}
