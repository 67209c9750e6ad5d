//! Outcomes of the tests of a suite, and how they are counted.

use super::left_out::LeftOut;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// What came of a test.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Outcome {
    /// It did what it should.
    Passed,
    /// The suite itself left it out, or its list did.
    Skipped,
    /// It did not do what it should.
    Failed,
}

/// What came of each test, by name. Of a test that is told of twice the worse counts.
pub type Results = BTreeMap<String, Outcome>;

fn note(results: &mut Results, name: &str, outcome: Outcome) {
    let kept = results.entry(name.to_owned()).or_insert(outcome);
    *kept = outcome.max(*kept);
}

/// Reads lines of an outcome, a tab and a name, as our plug-ins of test runners write them.
pub fn of_lines(text: &str) -> Results {
    let mut results = Results::new();
    for line in text.lines() {
        let (outcome, name) = line.split_once('\t').unwrap_or(("failed", line));
        let outcome = match outcome {
            "passed" => Outcome::Passed,
            "skipped" => Outcome::Skipped,
            _ => Outcome::Failed,
        };
        note(&mut results, name, outcome);
    }
    results
}

/// Reads what a test binary of Go prints with `-test.v`: a line for each test that ended, behind
/// whatever the test itself printed there.
pub fn of_go(text: &str) -> Results {
    let mut results = Results::new();
    let ends = [
        ("--- PASS: ", Outcome::Passed),
        ("--- SKIP: ", Outcome::Skipped),
        ("--- FAIL: ", Outcome::Failed),
    ];
    for line in text.lines() {
        for (mark, outcome) in ends {
            let name = line
                .split_once(mark)
                .map(|(_, rest)| rest.split(' ').next());
            if let Some(Some(name)) = name {
                note(&mut results, name, outcome);
            }
        }
    }
    results
}

/// Reads the report of Ginkgo, in JSON: suites with specs, each with the texts around it.
pub fn of_ginkgo(text: &str) -> Results {
    let mut results = Results::new();
    let suites: Value = serde_json::from_str(text).unwrap_or_default();
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    for spec in list(&suites)
        .iter()
        .flat_map(|suite| list(&suite["SpecReports"]))
    {
        if spec["LeafNodeType"] != "It" {
            continue;
        }
        let outer = list(&spec["ContainerHierarchyTexts"]);
        let texts = outer.iter().chain([&spec["LeafNodeText"]]);
        let texts: Vec<&str> = texts.filter_map(Value::as_str).collect();
        let outcome = match spec["State"].as_str() {
            Some("passed") => Outcome::Passed,
            Some("skipped" | "pending") => Outcome::Skipped,
            _ => Outcome::Failed,
        };
        note(&mut results, &texts.join(" "), outcome);
    }
    results
}

/// The tests of a suite, counted.
#[derive(Default)]
pub struct Counts {
    passed: usize,
    skipped: usize,
    left_out: usize,
    failed: Vec<String>,
    /// Patterns of the list that no test fits.
    unused: Vec<String>,
}

impl Counts {
    /// Counts results; tests of the list are left out whatever came of them.
    pub fn new(results: Results, left_out: &LeftOut) -> Self {
        let mut counts = Self::default();
        let mut used = BTreeSet::new();
        for (name, outcome) in results {
            let fitting: Vec<_> = left_out.of(&name).collect();
            match fitting.is_empty() {
                true => counts.add(outcome, &name),
                false => counts.left_out += 1,
            }
            used.extend(fitting.into_iter().cloned());
        }
        let unused = left_out.patterns().iter();
        counts.unused = unused
            .filter(|pattern| !used.contains(*pattern))
            .cloned()
            .collect();
        counts
    }

    /// Counts one more.
    pub fn add(&mut self, outcome: Outcome, name: &str) {
        match outcome {
            Outcome::Passed => self.passed += 1,
            Outcome::Skipped => self.skipped += 1,
            Outcome::Failed => self.failed.push(name.to_owned()),
        }
    }

    /// Whether something passed, nothing failed, and every line of the list names something.
    pub fn is_good(&self) -> bool {
        self.passed > 0 && self.failed.is_empty() && self.unused.is_empty()
    }

    /// Prints what is not as it should be.
    pub fn tell(&self) {
        println!("{self}");
        if self.passed == 0 {
            println!("FAILED: no test passed; the output says why");
        }
        for name in &self.failed {
            println!("FAILED: {name}");
        }
        for pattern in &self.unused {
            println!("FAILED: no test is named {pattern}, which the list leaves out");
        }
    }
}

impl std::fmt::Display for Counts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            passed,
            skipped,
            left_out,
            failed,
            ..
        } = self;
        let failed = failed.len();
        write!(
            f,
            "{passed} passed, {failed} failed, {left_out} left out, {skipped} skipped by the suite"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_of_all_runners_are_read() {
        let lines = of_lines("passed\ta b\nfailed\tc\npassed\tc\nskipped\td\nnonsense\n");
        let outcomes: Vec<_> = lines
            .iter()
            .map(|(name, came)| (&name[..], *came))
            .collect();
        assert_eq!(
            outcomes,
            [
                ("a b", Outcome::Passed),
                ("c", Outcome::Failed),
                ("d", Outcome::Skipped),
                ("nonsense", Outcome::Failed)
            ]
        );
        let go = "=== RUN   T\n    said--- PASS: T (0.00s)\n--- FAIL: U (1.00s)\nFAIL\n";
        let go: Vec<_> = of_go(go).into_iter().collect();
        let wanted = [("T", Outcome::Passed), ("U", Outcome::Failed)];
        assert_eq!(go, wanted.map(|(name, came)| (name.to_owned(), came)));
        let ginkgo = r#"[{"SpecReports": [
            {"LeafNodeType": "BeforeSuite", "State": "passed"},
            {"LeafNodeType": "It", "State": "passed", "LeafNodeText": "b",
             "ContainerHierarchyTexts": ["a"]},
            {"LeafNodeType": "It", "State": "panicked", "LeafNodeText": "c",
             "ContainerHierarchyTexts": null}]}]"#;
        let ginkgo: Vec<_> = of_ginkgo(ginkgo).into_iter().collect();
        let wanted = [("a b", Outcome::Passed), ("c", Outcome::Failed)];
        assert_eq!(ginkgo, wanted.map(|(name, came)| (name.to_owned(), came)));
        assert!(of_ginkgo("nonsense").is_empty());
    }

    #[test]
    fn failures_and_lines_that_name_nothing_are_no_good() {
        let results = || of_lines("passed\ta\nfailed\tz1\nskipped\tz2\n");
        let list = |text| LeftOut::parse(text).expect("a good list");
        assert!(!Counts::new(results(), &LeftOut::default()).is_good());
        let counts = Counts::new(results(), &list("z* | why"));
        assert!(counts.is_good());
        assert_eq!(
            counts.to_string(),
            "1 passed, 0 failed, 2 left out, 0 skipped by the suite"
        );
        assert!(!Counts::new(results(), &list("z* | why\ny | why")).is_good());
        assert!(!Counts::new(Results::new(), &LeftOut::default()).is_good());
    }
}
