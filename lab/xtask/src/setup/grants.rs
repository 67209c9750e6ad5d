//! Rights, limits and files that optional tests need and no package brings.

use super::packages::install;
use crate::manual::porcupine;
use crate::process::succeeds_quietly;
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The block trace, seen from the repository: it is no public file and may lie beside the checkout.
const BLOCK_TRACE: &str = "../shared/data/cloudPhysicsIO.csv";

/// Open files that the tests with 10 000 connections need, `needs_many_files` of the process tests:
/// a server keeps some for replicas and for other connections.
const MANY_FILES: u64 = 15_000;

/// Something that a group of optional tests needs and no package brings: rights, limits, files,
/// programs too new for it.
pub struct Grant {
    /// What it is.
    pub what: &'static str,
    /// The part of the names of the tests that need it.
    pub tests: &'static str,
    /// Tries it, with the repository's root and the target folder; the error says what is in the
    /// way.
    pub given: fn(&Path, &Path) -> Result<(), String>,
}

/// All of them.
pub const GRANTS: [Grant; 9] = [
    Grant {
        what: "a small disk",
        tests: "needs_small_disk",
        given: |_, target| small_disk(target),
    },
    Grant {
        what: "many open files",
        tests: "needs_many_files",
        given: |_, _| many_files(),
    },
    Grant {
        what: "access to the memory of other processes",
        tests: "needs_process_memory",
        given: |_, _| process_memory(),
    },
    Grant {
        what: "an invariant time stamp counter",
        tests: "needs_invariant_tsc",
        given: |_, _| invariant_tsc(),
    },
    Grant {
        what: "the block trace",
        tests: "needs_block_trace",
        given: |root, _| {
            let file = block_trace(root);
            match file.exists() {
                true => Ok(()),
                false => Err(format!("{} is not there", file.display())),
            }
        },
    },
    Grant {
        what: "a network namespace whose link loses datagrams",
        tests: "needs_lossy_link",
        given: |_, _| lossy_link(),
    },
    Grant {
        what: "the right to become another user",
        tests: "needs_root",
        given: |_, _| root(),
    },
    Grant {
        what: "a trace of system calls",
        tests: "needs_strace",
        given: |_, _| strace(),
    },
    // The Go of Debian may be too old for it.
    Grant {
        what: "Go, and what the second checker of histories is built from",
        tests: "needs_go",
        given: |root, _| porcupine::can_be_built(root),
    },
];

/// Where the block trace is, or would be.
pub fn block_trace(root: &Path) -> PathBuf {
    std::env::var_os("PLUVIO_TEST_BLOCK_TRACE")
        .map_or_else(|| root.join(BLOCK_TRACE), PathBuf::from)
}

/// Whether a file system in memory can be mounted, resized and unmounted here.
fn small_disk(target: &Path) -> Result<(), String> {
    let is_there = || succeeds_quietly(Command::new("mount").arg("--version"));
    let installs = || install(&["mount"]) && is_there();
    if !is_there() && !installs() {
        return Err("there is no program `mount`; on Debian: apt-get install mount".to_owned());
    }
    let at = target.join("test-tools/small-disk");
    std::fs::create_dir_all(&at).map_err(|e| format!("{}: {e}", at.display()))?;
    let mount = |options: &str| {
        let mut command = Command::new("mount");
        succeeds_quietly(
            command
                .args(["-t", "tmpfs", "-o", options, "tmpfs"])
                .arg(&at),
        )
    };
    let mounted = mount("size=1m");
    let resized = mounted && mount("remount,size=2m");
    let gone = mounted && succeeds_quietly(Command::new("umount").arg(&at));
    match resized && gone {
        true => Ok(()),
        false => Err(
            "this user may not mount file systems here; run as root of a machine, or of a container that may"
                .to_owned(),
        ),
    }
}

/// Whether a namespace of its own can be made, in which nftables loses a part of the datagrams.
fn lossy_link() -> Result<(), String> {
    let is_there = || {
        let ip = succeeds_quietly(Command::new("ip").arg("-V"));
        ip && succeeds_quietly(Command::new("nft").arg("--version"))
    };
    if !(is_there() || install(&["nftables", "iproute2"]) && is_there()) {
        return Err(
            "there is no program `nft` or `ip`; on Debian: apt-get install nftables iproute2"
                .to_owned(),
        );
    }
    let rule = "ip link set lo up && nft 'add table inet t' && \
                nft 'add chain inet t i { type filter hook input priority 0; }' && \
                nft 'add rule inet t i meta l4proto udp numgen random mod 100 < 20 drop'";
    let mut command = Command::new("unshare");
    match succeeds_quietly(command.args(["--net", "sh", "-c", rule])) {
        true => Ok(()),
        false => Err(
            "this user may not make network namespaces with nftables rules here; run as root of a machine"
                .to_owned(),
        ),
    }
}

/// Whether a process can be started that runs as another user.
fn root() -> Result<(), String> {
    match succeeds_quietly(Command::new("true").uid(65_534).gid(65_534)) {
        true => Ok(()),
        false => Err("this user may not become another one; run as root".to_owned()),
    }
}

/// Whether there is a program that traces system calls, and may.
fn strace() -> Result<(), String> {
    let is_there = || succeeds_quietly(Command::new("strace").arg("--version"));
    if !(is_there() || install(&["strace"]) && is_there()) {
        return Err("there is no program `strace`; on Debian: apt-get install strace".to_owned());
    }
    match succeeds_quietly(Command::new("strace").args(["-f", "-qq", "-o", "/dev/null", "true"])) {
        true => Ok(()),
        false => Err("this user may not trace its processes here".to_owned()),
    }
}

/// Whether a process may have as many files open as thousands of connections take.
fn many_files() -> Result<(), String> {
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap_or_default();
    match files_max(&limits) {
        Some(files) if files < MANY_FILES => Err(format!(
            "a process may open {files} files at most, {MANY_FILES} are needed; raise the hard limit (ulimit -Hn)"
        )),
        // Unknown: the tests will see.
        Some(_) | None => Ok(()),
    }
}

/// Whether this user may write to the memory of a process that it has started.
fn process_memory() -> Result<(), String> {
    let refused = |error: std::io::Error| {
        format!("this user may not write to the memory of another process: {error}")
    };
    // It reads, and so lives, until its input ends.
    let mut cat = Command::new("cat");
    let child = cat.stdin(Stdio::piped()).stdout(Stdio::null()).spawn();
    let mut child = child.map_err(refused)?;
    let given = rewrite_byte(child.id());
    drop(child.stdin.take());
    child.wait().map_err(refused)?;
    given.map_err(refused)
}

/// Writes a byte of a process's stack that is not in use, as it is.
fn rewrite_byte(pid: u32) -> std::io::Result<()> {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps"))?;
    let stack = maps.lines().find(|line| line.ends_with("[stack]"));
    let first = stack
        .and_then(|line| u64::from_str_radix(line.split_once('-')?.0, 16).ok())
        .ok_or(std::io::ErrorKind::NotFound)?;
    let mut options = OpenOptions::new();
    let memory = { options.read(true).write(true) }.open(format!("/proc/{pid}/mem"))?;
    let mut byte = [0];
    memory.read_exact_at(&mut byte, first)?;
    memory.write_all_at(&byte, first)
}

/// Whether the processor counts time stamps at one pace and never stops, and lets its users see
/// that.
fn invariant_tsc() -> Result<(), String> {
    let processors = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let flags: Vec<&str> = processors
        .lines()
        .find(|line| line.starts_with("flags"))
        .map(|line| line.split_whitespace().collect())
        .unwrap_or_default();
    match ["constant_tsc", "nonstop_tsc"]
        .iter()
        .all(|flag| flags.contains(flag))
    {
        true => Ok(()),
        false => Err("this processor, or what it is simulated by, has none".to_owned()),
    }
}

/// The hard limit of open files in `/proc/PID/limits`; `None` if there is none or it cannot be
/// read.
fn files_max(limits: &str) -> Option<u64> {
    let line = limits
        .lines()
        .find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hard_limit_is_read() {
        let text = "Limit      Soft Limit   Hard Limit   Units\n\
                    Max processes             7            8            processes\n\
                    Max open files            1024         20000        files\n";
        assert_eq!(files_max(text), Some(20_000));
        assert_eq!(
            files_max("Max open files   1024   unlimited   files\n"),
            None
        );
        assert_eq!(files_max(""), None);
    }
}
