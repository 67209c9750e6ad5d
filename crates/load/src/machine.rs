//! On what a measurement ran.

use serde::Serialize;
use std::fs;

/// On what a measurement ran.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Machine {
    /// The processor's name.
    pub processor: String,
    /// Processors this process may use.
    pub processors: usize,
    /// Memory in bytes.
    pub memory: u64,
    /// The kernel's release.
    pub kernel: String,
    /// To whom the kernel gives transparent huge pages: `always`, `madvise` (who asks) or `never`.
    pub huge_pages: String,
    /// Load average of the last minute when the measurement began.
    pub load: String,
    /// How this program was built: `release` or `debug`.
    pub build: &'static str,
}

impl Machine {
    /// This machine. A property that the system does not tell is empty or zero.
    #[must_use]
    pub fn this() -> Self {
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        let field = |text: &str, name: &str| {
            let line = text.lines().find(|line| line.starts_with(name))?;
            Some(line.split_once(':')?.1.trim().to_owned())
        };
        let memory = field(&read("/proc/meminfo"), "MemTotal")
            .and_then(|text| text.strip_suffix("kB")?.trim().parse::<u64>().ok());
        Self {
            processor: field(&read("/proc/cpuinfo"), "model name").unwrap_or_default(),
            processors: std::thread::available_parallelism().map_or(0, usize::from),
            memory: memory.unwrap_or(0) << 10,
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            huge_pages: chosen(&read("/sys/kernel/mm/transparent_hugepage/enabled")),
            load: first_word(&read("/proc/loadavg")),
            build: if cfg!(debug_assertions) {
                "debug"
            } else {
                "release"
            },
        }
    }
}

/// The word in brackets, which is the one that holds.
fn chosen(text: &str) -> String {
    let after = text.split_once('[').map_or("", |(_, after)| after);
    let word = after.split_once(']').map_or("", |(word, _)| word);
    word.to_owned()
}

fn first_word(text: &str) -> String {
    text.split_whitespace().next().unwrap_or("").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mode_is_the_word_in_brackets() {
        assert_eq!(chosen("always [madvise] never\n"), "madvise");
        assert_eq!(chosen(""), "");
        assert_eq!(first_word("0.52 0.58 0.59 1/345 6789\n"), "0.52");
    }
}
