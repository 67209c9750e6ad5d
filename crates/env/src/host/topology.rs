//! Which processors belong to which memory node.

use core::ops::Deref;
use std::path::{Path, PathBuf};

/// The processors of each memory node, in the order of the nodes. Nodes without a processor that
/// may be used are left out; there is at least one node, and no processor is in two.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Nodes {
    processors: Vec<Vec<usize>>,
    /// The system's number of each.
    numbers: Vec<u32>,
}

/// Why the nodes of the machine are not known. Retryable; giving them as an option always works.
#[derive(Debug, thiserror::Error)]
pub enum TopologyError {
    /// The system does not say which processors may be used.
    #[error("cannot ask which processors this process may use: {0}")]
    Affinity(std::io::Error),
    /// A list of processors is not one.
    #[error("{path}: {text:?} is no list of processors")]
    List {
        /// Where it stands.
        path: PathBuf,
        /// What stands there.
        text: String,
    },
    /// No node has a processor, or a processor is in two nodes.
    #[error("the nodes {0:?} are no division of processors")]
    Division(Vec<Vec<usize>>),
    /// The number of a processor is one that no machine has.
    #[error("there is no processor {0}: the largest number is {PROCESSOR_MAX}")]
    Processor(usize),
}

/// No machine has a processor with a larger number.
const PROCESSOR_MAX: usize = 1 << 20;

impl Nodes {
    /// Nodes with the numbers 0, 1, …
    ///
    /// # Errors
    /// [`TopologyError::Division`], [`TopologyError::Processor`].
    pub fn new(nodes: Vec<Vec<usize>>) -> Result<Self, TopologyError> {
        Self::numbered((0..).zip(nodes).collect())
    }

    /// Nodes with the numbers that the system gives them. Several groups of processors may be near
    /// one node.
    ///
    /// # Errors
    /// [`TopologyError::Division`], [`TopologyError::Processor`].
    pub fn numbered(nodes: Vec<(u32, Vec<usize>)>) -> Result<Self, TopologyError> {
        let lists = || nodes.iter().map(|(_, processors)| processors);
        let mut all: Vec<usize> = lists().flatten().copied().collect();
        all.sort_unstable();
        let twice = all.windows(2).any(|pair| pair[0] == pair[1]);
        if all.is_empty() || twice {
            return Err(TopologyError::Division(lists().cloned().collect()));
        }
        if let Some(&last) = all.last().filter(|&&last| last > PROCESSOR_MAX) {
            return Err(TopologyError::Processor(last));
        }
        let used = nodes.into_iter().filter(|(_, list)| !list.is_empty());
        let (numbers, processors) = used.unzip();
        Ok(Self {
            processors,
            numbers,
        })
    }

    /// The system's number of each node.
    #[must_use]
    pub fn numbers(&self) -> &[u32] {
        &self.numbers
    }

    /// How many processors there are.
    #[must_use]
    pub fn processors(&self) -> usize {
        self.iter().map(Vec::len).sum()
    }

    /// Reads the directory in which Linux describes memory nodes. Without it, or when it knows no
    /// processor that is allowed, all allowed ones below `processors_max` are one node.
    pub(crate) fn read(
        directory: &Path,
        processors_max: usize,
        allowed: impl Fn(usize) -> bool,
    ) -> Result<Self, TopologyError> {
        let mut found = Vec::new();
        for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
            let number = entry.file_name().to_str().and_then(node_number);
            let path = entry.path().join("cpulist");
            let (Some(number), Ok(text)) = (number, std::fs::read_to_string(&path)) else {
                continue;
            };
            let Some(list) = processors(text.trim()) else {
                return Err(TopologyError::List { path, text });
            };
            let list: Vec<usize> = list.into_iter().filter(|&p| allowed(p)).collect();
            found.push((number, list));
        }
        found.sort();
        if found.iter().all(|(_, list)| list.is_empty()) {
            found = vec![(0, (0..processors_max).filter(|&p| allowed(p)).collect())];
        }
        Self::numbered(found)
    }
}

impl Deref for Nodes {
    type Target = [Vec<usize>];

    fn deref(&self) -> &[Vec<usize>] {
        &self.processors
    }
}

fn node_number(name: &str) -> Option<u32> {
    name.strip_prefix("node")?.parse().ok()
}

/// Reads `0-3,8,10-11`; an empty text is an empty list.
fn processors(text: &str) -> Option<Vec<usize>> {
    let mut all = Vec::new();
    for part in text.split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        if first > last || last > PROCESSOR_MAX {
            return None;
        }
        all.extend(first..=last);
    }
    Some(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(nodes: &[(&str, &str)]) -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        for (name, list) in nodes {
            let node = directory.path().join(name);
            std::fs::create_dir(&node).unwrap();
            std::fs::write(node.join("cpulist"), list).unwrap();
        }
        directory
    }

    fn read(nodes: &[(&str, &str)], allowed: impl Fn(usize) -> bool) -> Vec<Vec<usize>> {
        let directory = machine(nodes);
        Nodes::read(directory.path(), 8, allowed).unwrap().to_vec()
    }

    #[test]
    fn nodes_are_read_as_linux_writes_them() {
        let nodes = [("node2", "4-5,7\n"), ("node0", "0-1\n"), ("power", "x")];
        assert_eq!(read(&nodes, |_| true), [vec![0, 1], vec![4, 5, 7]]);
        let numbered = Nodes::read(machine(&nodes).path(), 8, |_| true).unwrap();
        assert_eq!(numbered.numbers(), [0, 2]);
        assert_eq!(
            read(&nodes, |p| p > 1),
            [vec![4, 5, 7]],
            "only what is allowed"
        );
        let without_processors = [("node0", "0-3"), ("node1", "")];
        assert_eq!(read(&without_processors, |_| true), [vec![0, 1, 2, 3]]);
    }

    #[test]
    fn a_machine_that_does_not_describe_itself_is_one_node() {
        assert_eq!(read(&[], |p| p < 3), [vec![0, 1, 2]]);
        let nothing_allowed = Nodes::read(Path::new("/nonexistent"), 8, |_| false);
        assert!(matches!(nothing_allowed, Err(TopologyError::Division(_))));
    }

    #[test]
    fn nonsense_is_refused_and_named() {
        let directory = machine(&[("node0", "3-1")]);
        let refused = Nodes::read(directory.path(), 8, |_| true).unwrap_err();
        assert!(refused.to_string().contains("3-1"), "{refused}");
        for nodes in [vec![], vec![vec![]], vec![vec![1], vec![2, 1]]] {
            assert!(Nodes::new(nodes).is_err());
        }
        for number in [PROCESSOR_MAX + 1, usize::MAX] {
            let refused = Nodes::new(vec![vec![0], vec![number]]).unwrap_err();
            assert!(matches!(refused, TopologyError::Processor(n) if n == number));
        }
    }
}
