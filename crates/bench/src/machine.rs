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
    /// How this program was built: `release` or `debug`.
    pub build: &'static str,
}

impl Machine {
    /// This machine. What the system does not tell is empty or zero.
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
            build: if cfg!(debug_assertions) {
                "debug"
            } else {
                "release"
            },
        }
    }
}
