//! What came of a torture: judged, told, and kept as evidence.
//!
//! - TORT-6: whatever does not hold, and whatever ends a run early once its cluster has started,
//!   ends in exit code 1. Then the history, the faults, the report and the traces of all processes
//!   are on the disk, and the last line says where. Only a run that is stopped by a signal leaves
//!   nothing.

use super::faults::{Fault, Faults};
use super::journal::{Counts, Material};
use super::nemesis::Event;
use pluvio_console::failure::Failure;
use pluvio_console::options::Global;
use pluvio_console::output::{count, print_json, print_line};
use pluvio_sim::check::{Check, Verdict, Violation, check_history, cycles, transfers};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::process::ExitCode;

/// Steps of the search for an order, per key.
const STEPS_MAX: u64 = 1_000_000;
/// Violations that are shown; all are in the report.
const SHOWN_MAX: usize = 5;

/// What came of a run. Programs rely on the names of the fields.
#[derive(Debug, Default, Serialize)]
pub struct Report {
    /// Whether the run came to its end, and nothing was found that does not hold.
    pub ok: bool,
    /// Why it ended early; everything else is then what was found until that.
    pub failed: Option<String>,
    /// The seed of the schedule.
    pub seed: u64,
    /// The command that does the same to another cluster.
    pub again: String,
    /// Servers.
    pub servers: u32,
    /// Replicas of every write.
    pub replicas: u32,
    /// Whether servers had rings for each other and for clients.
    pub rings: bool,
    /// How long clients worked, in seconds.
    pub seconds: f64,
    /// Kinds of faults that were asked for and possible.
    pub faults: Faults,
    /// Kinds of faults that this machine does not allow, and why.
    pub left_out: BTreeMap<Fault, String>,
    /// How often each kind happened.
    pub faults_done: BTreeMap<Fault, u64>,
    /// Servers that the cluster declared dead while they were silent, and that ended when they
    /// noticed.
    pub expelled: u64,
    /// Operations by kind and outcome.
    pub operations: BTreeMap<String, Counts>,
    /// Reads that were answered in the memory of servers.
    pub mapped_reads: u64,
    /// Why operations failed, or were sent once more.
    pub errors: BTreeMap<String, u64>,
    /// Seconds until the cluster was healthy when faults ended.
    pub healed_s: Option<f64>,
    /// Seconds from the start of everything that had been killed until it was healthy.
    pub cold_start_s: Option<f64>,
    /// Keys, each with a history of its own.
    pub keys: u64,
    /// Histories for which an order was found.
    pub linearizable: u64,
    /// Histories for which the search was given up at its limit: nothing is known.
    pub undecided: u64,
    /// Transactions over several keys, and transfers.
    pub transactions: u64,
    /// What does not hold.
    pub violations: Vec<Violation>,
    /// Where history, faults, report and traces are, if they were kept.
    pub kept: Option<String>,
    /// Everything that happened to the cluster; kept in a file of its own.
    #[serde(skip)]
    pub events: Vec<Event>,
}

impl Report {
    /// Judges what clients did and saw, beside what was wrong already.
    pub fn judge(&mut self, material: &Material) {
        let history = &material.history;
        let Verdict {
            violations,
            linearizable,
            undecided,
        } = check_history(history, STEPS_MAX);
        self.keys = u64::try_from(history.keys().count()).unwrap_or(u64::MAX);
        self.linearizable = linearizable;
        self.undecided = undecided;
        self.violations.extend(violations);
        let deeds = &material.deeds;
        self.violations
            .extend(transfers::strictly_serializable(deeds));
        let transactions = &material.transactions;
        self.violations
            .extend(cycles::strictly_serializable(transactions));
        let count = deeds.len() + transactions.all.len();
        self.transactions = u64::try_from(count).unwrap_or(u64::MAX);
        self.ok = self.violations.is_empty() && self.failed.is_none();
    }

    /// Tells it, and gives the exit code: 0 when nothing was found that does not hold.
    ///
    /// # Errors
    /// Something did not hold, or the run ended early, which is exit code 1 and said also when
    /// standard output is closed; that alone.
    pub fn tell(&self, global: &Global) -> Result<ExitCode, Failure> {
        let told = match global.json {
            true => print_json(self),
            false => print_line(&self.to_text()),
        };
        let code = self.verdict()?;
        told.map(|()| code)
    }

    fn verdict(&self) -> Result<ExitCode, Failure> {
        if self.ok {
            return Ok(ExitCode::SUCCESS);
        }
        let kept = self.kept.as_deref().map_or_else(String::new, |kept| {
            format!("; history, faults and traces are in {kept}")
        });
        let (wrong, seed) = (self.violations.len(), self.seed);
        let what = match (&self.failed, wrong) {
            (None, _) => {
                format!("{wrong} checks do not hold (seed {seed}): this is a defect of Pluvio")
            }
            (Some(why), 0) => format!("the torture ended early (seed {seed}): {why}"),
            (Some(why), _) => format!(
                "the torture ended early (seed {seed}): {why}; {wrong} checks do not hold: this is a defect of Pluvio"
            ),
        };
        Err(Failure::new(what + &kept))
    }

    fn to_text(&self) -> String {
        let mut text = String::new();
        let mut line = |line: String| {
            let _infallible = writeln!(text, "{line}");
        };
        if self.seconds > 0.0 {
            let all: u64 = self.operations.values().map(Counts::all).sum();
            let unknown: u64 = self.operations.values().map(|c| c.unknown).sum();
            line(format!(
                "{} operations in {:.0} s, {} of unknown outcome, {} reads in servers' memory; {} servers{}, {} replicas, seed {}",
                count(all),
                self.seconds,
                count(unknown),
                count(self.mapped_reads),
                self.servers,
                if self.rings { " with rings" } else { "" },
                self.replicas,
                self.seed
            ));
            let done: Vec<String> = self
                .faults_done
                .iter()
                .map(|(fault, times)| format!("{} {times}", fault.name()))
                .collect();
            let done = match done.is_empty() {
                true => "none".to_owned(),
                false => done.join(", "),
            };
            line(format!(
                "faults: {done}; servers expelled: {}",
                self.expelled
            ));
        }
        for (fault, why) in &self.left_out {
            line(format!("not possible here: {}: {why}", fault.name()));
        }
        for (what, seconds) in [
            ("healthy after the last fault", self.healed_s),
            ("healthy after a cold start", self.cold_start_s),
        ] {
            if let Some(seconds) = seconds {
                line(format!("{what}: {seconds:.1} s"));
            }
        }
        line(format!(
            "{} histories of keys: {} linearizable, {} undecided",
            count(self.keys),
            count(self.linearizable),
            count(self.undecided)
        ));
        let wrong = { self.violations.iter() }
            .filter(|violation| violation.check == Check::StrictlySerializable)
            .count();
        line(format!(
            "{} transactions: {}",
            count(self.transactions),
            match wrong {
                0 => "strictly serializable".to_owned(),
                _ => format!("{wrong} violations of strict serializability"),
            }
        ));
        for violation in self.violations.iter().take(SHOWN_MAX) {
            line(violation.to_string());
        }
        let more = self.violations.len().saturating_sub(SHOWN_MAX);
        if more > 0 {
            line(format!("and {more} more"));
        }
        if let Some(why) = &self.failed {
            line(format!("ended early: {why}"));
        }
        if self.ok {
            line("everything held".to_owned());
        }
        text.truncate(text.trim_end().len());
        text
    }
}

impl Counts {
    fn all(&self) -> u64 {
        self.done + self.rejected + self.not_done + self.unknown
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pluvio_sim::history::{Action, Content, KeyKind, Outcome, Plain};
    use std::time::Duration;

    /// A history in which a Redis client reads this after another one wrote 1 and then 2.
    fn history(last: u64) -> Material {
        let mut material = Material::default();
        let history = &mut material.history;
        let key = history.key("r-1", KeyKind::Register);
        let write = |id| Action::Write {
            content: Content::Bytes(id),
            condition: None,
        };
        let found = Plain::Found {
            content: Content::Bytes(last),
        };
        for (action, plain) in [
            (write(1), Plain::Wrote),
            (write(2), Plain::Wrote),
            (Action::Read, found),
        ] {
            let begun = history.invoke(key, 1, action, Duration::ZERO);
            history.finish(begun, Outcome::Plain(plain), 0, Duration::ZERO);
        }
        material
    }

    #[test]
    fn a_stale_read_ends_in_exit_code_1_and_is_named() {
        let mut report = Report::default();
        report.judge(&history(2));
        assert!(report.ok && report.linearizable == 1);
        let mut report = Report {
            seed: 17,
            kept: Some("some folder".to_owned()),
            ..Report::default()
        };
        report.judge(&history(1));
        assert!(!report.ok);
        let text = report.to_text();
        assert!(
            text.contains("key r-1") && text.contains("value #1"),
            "{text}"
        );
        assert!(!text.contains("everything held"), "{text}");
        let failure = report.verdict().unwrap_err();
        let words = failure.to_string();
        assert!(
            words.contains("seed 17") && words.contains("some folder"),
            "{words}"
        );
        let code = |code: ExitCode| format!("{code:?}");
        assert_eq!(code(failure.report()), code(ExitCode::from(1)));
    }

    #[test]
    fn a_run_that_ended_early_is_not_ok_and_what_it_found_is_said_beside_that() {
        let mut report = Report {
            failed: Some("a client was stopped".to_owned()),
            ..Report::default()
        };
        report.judge(&history(2));
        assert!(!report.ok && report.linearizable == 1);
        let words = report.verdict().unwrap_err().to_string();
        assert!(words.contains("a client was stopped"), "{words}");
        assert!(!words.contains("defect"), "{words}");
        report.judge(&history(1));
        let words = report.verdict().unwrap_err().to_string();
        assert!(words.contains("a client was stopped"), "{words}");
        assert!(words.contains("do not hold"), "{words}");
        let text = report.to_text();
        assert!(text.contains("ended early: a client was stopped"), "{text}");
        assert!(!text.contains("everything held"), "{text}");
    }
}
