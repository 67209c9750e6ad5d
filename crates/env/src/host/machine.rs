//! The machine this process runs on.

use super::{Host, Nodes, TopologyError, Worker};
use crate::Pace;
use core::hash::{BuildHasher, Hasher};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};
use std::hash::RandomState;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Where Linux says whether it gives huge pages.
const HUGE_PAGES: &str = "/sys/kernel/mm/transparent_hugepage/enabled";

/// The real machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct ThisMachine;

impl Host for ThisMachine {
    fn monotonic(&self) -> Duration {
        // Goes on while the machine sleeps.
        let since_boot = clock_gettime(ClockId::Boottime);
        Duration::try_from(since_boot).unwrap_or_default()
    }

    #[allow(clippy::disallowed_methods)] // this crate is the door
    fn unix_time(&self) -> Duration {
        let passed = SystemTime::now().duration_since(UNIX_EPOCH);
        passed.unwrap_or_default()
    }

    fn random(&self) -> u64 {
        // Keyed by the system's randomness.
        RandomState::new().build_hasher().finish()
    }

    fn nodes(&self) -> Result<Nodes, TopologyError> {
        let allowed = sched_getaffinity(None).map_err(|e| TopologyError::Affinity(e.into()))?;
        let allowed = |processor| processor < CpuSet::MAX_CPU && allowed.is_set(processor);
        Nodes::read(
            "/sys/devices/system/node".as_ref(),
            CpuSet::MAX_CPU,
            allowed,
        )
    }

    fn huge_pages(&self) -> Result<(), String> {
        let path = Path::new(HUGE_PAGES);
        granted(path, &std::fs::read_to_string(path))?;
        // A kernel without the question has no such setting either.
        match rustix::thread::transparent_huge_pages_are_disabled() {
            Ok(true) => Err("they are disabled for this process (PR_SET_THP_DISABLE)".into()),
            Ok(false) | Err(_) => Ok(()),
        }
    }

    fn processor(&self) -> usize {
        rustix::thread::sched_getcpu()
    }

    fn work(
        &self,
        name: String,
        step: Box<dyn FnMut() -> Pace + Send>,
    ) -> Result<Worker, std::io::Error> {
        Worker::start(name, step)
    }

    fn work_near(
        &self,
        name: String,
        processors: Vec<usize>,
        mut step: Box<dyn FnMut() -> Pace + Send>,
    ) -> Result<Worker, std::io::Error> {
        let mut waiting = Some(processors);
        let step = move || {
            if let Some(processors) = waiting.take() {
                stay_near(&processors);
            }
            step()
        };
        self.work(name, Box::new(step))
    }
}

/// Keeps the calling thread on those of these processors that it may use.
fn stay_near(processors: &[usize]) {
    let Ok(allowed) = sched_getaffinity(None) else {
        return;
    };
    let mut near = CpuSet::new();
    for &processor in processors {
        if processor < CpuSet::MAX_CPU && allowed.is_set(processor) {
            near.set(processor);
        }
    }
    if near.count() > 0 {
        // If it is refused, the thread runs where it is, only slower.
        let _only_slower = sched_setaffinity(None, &near);
    }
}

/// Whether the system grants transparent huge pages, from the text of this file. The file lists the
/// choices, the current one in brackets.
fn granted(path: &Path, said: &Result<String, std::io::Error>) -> Result<(), String> {
    let path = path.display();
    match said {
        Ok(choices) if choices.contains("[never]") => Err(format!("{path} says never")),
        Ok(_) => Ok(()),
        Err(error) => Err(format!("the system has none ({path}: {error})")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn huge_pages_are_granted_unless_the_system_says_never() {
        let granted = |text: &str| granted("enabled".as_ref(), &Ok(text.into()));
        assert_eq!(granted("always [madvise] never\n"), Ok(()));
        assert_eq!(granted("[always] madvise never\n"), Ok(()));
        let refused = granted("always madvise [never]\n").unwrap_err();
        assert_eq!(refused, "enabled says never");
        let missing = Err(std::io::ErrorKind::NotFound.into());
        let refused = super::granted("enabled".as_ref(), &missing).unwrap_err();
        assert!(
            refused.starts_with("the system has none (enabled: "),
            "{refused}"
        );
    }

    #[test]
    fn huge_pages_that_are_disabled_for_the_process_are_not_granted() {
        let disable = rustix::thread::disable_transparent_huge_pages;
        let before = ThisMachine.huge_pages();
        disable(true).unwrap();
        let disabled = ThisMachine.huge_pages();
        disable(false).unwrap();
        assert!(disabled.is_err());
        if before.is_ok() {
            let why = "they are disabled for this process (PR_SET_THP_DISABLE)";
            assert_eq!(disabled, Err(why.into()));
        }
        assert_eq!(ThisMachine.huge_pages(), before);
    }

    #[test]
    fn a_worker_stays_on_the_processors_it_is_given_and_runs_anywhere_where_there_are_none() {
        let allowed = sched_getaffinity(None).unwrap();
        let first = (0..CpuSet::MAX_CPU).find(|p| allowed.is_set(*p)).unwrap();
        let missing = (0..CpuSet::MAX_CPU).rev().find(|p| !allowed.is_set(*p));
        for (near, expected) in [
            (vec![first], 1),
            (vec![first, missing.unwrap(), usize::MAX], 1),
            (vec![missing.unwrap()], allowed.count()),
            (vec![], allowed.count()),
        ] {
            let (told, heard) = std::sync::mpsc::channel();
            let step = Box::new(move || {
                told.send(sched_getaffinity(None).unwrap().count()).unwrap();
                Pace::After(core::time::Duration::from_secs(3600))
            });
            let _worker = ThisMachine
                .work_near("test".into(), near.clone(), step)
                .unwrap();
            assert_eq!(heard.recv(), Ok(expected), "{near:?}");
        }
    }

    #[test]
    fn this_thread_runs_on_a_processor_of_this_machine() {
        let nodes = ThisMachine.nodes().unwrap();
        let all: Vec<usize> = nodes.iter().flatten().copied().collect();
        assert!(all.contains(&ThisMachine.processor()), "{all:?}");
        assert!(ThisMachine.unix_seconds() > 1_700_000_000);
    }
}
