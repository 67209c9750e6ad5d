//! Memory and time of the machine that this process uses, from the files of the kernel.

use pluvio_server::MachineUse;
use std::time::Duration;

/// Ticks of processor time a second in `/proc`: the same on every Linux that there is a build for.
const TICKS: u64 = 100;

/// Reads it now; zeros where the kernel does not tell.
pub fn read() -> MachineUse {
    parse(|path| std::fs::read_to_string(path).unwrap_or_default())
}

fn parse(read: impl Fn(&str) -> String) -> MachineUse {
    let status = read("/proc/self/status");
    let (system_time, user_time) = times(&read("/proc/self/stat")).unwrap_or_default();
    MachineUse {
        resident_bytes: bytes(&status, "VmRSS:"),
        resident_bytes_max: bytes(&status, "VmHWM:"),
        total_bytes: bytes(&read("/proc/meminfo"), "MemTotal:"),
        system_time,
        user_time,
    }
}

/// The size behind a name, which is told in kilobytes.
fn bytes(text: &str, name: &str) -> u64 {
    let found = text.lines().find_map(|line| line.strip_prefix(name));
    let number = found.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    number.unwrap_or(0) << 10
}

/// Time in the kernel and elsewhere. The name of the process comes second and may hold anything.
fn times(stat: &str) -> Option<(Duration, Duration)> {
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace().skip(11);
    let mut next = || {
        let ticks: u64 = fields.next()?.parse().ok()?;
        Some(Duration::from_millis(ticks * 1000 / TICKS))
    };
    let (user, system) = (next()?, next()?);
    Some((system, user))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_the_kernel_are_read() {
        let using = parse(|path| {
            let text = match path {
                "/proc/self/status" => "Name:\tx\nVmHWM:\t    2048 kB\nVmRSS:\t    1024 kB\n",
                "/proc/self/stat" => "7 (a) b) S 1 1 1 0 -1 4194560 1 2 3 4 150 25 0 0 20 0 1 0",
                _ => "MemTotal:       8388608 kB\n",
            };
            text.to_owned()
        });
        let expected = MachineUse {
            resident_bytes: 1 << 20,
            resident_bytes_max: 2 << 20,
            total_bytes: 8 << 30,
            system_time: Duration::from_millis(250),
            user_time: Duration::from_millis(1500),
        };
        assert_eq!(using, expected);
        assert_eq!(parse(|_| String::new()), MachineUse::default());
        assert!(read().resident_bytes > 0);
    }
}
