//! A small network of its own for each process, so that ways between processes can be cut one by
//! one.
//!
//! ```text
//!  clients (this process) ── bridge 198.18.N.1 ──┬── 198.18.N.2  coordinator 1   each in a network
//!                                                ├── 198.18.N.3  coordinator 2   namespace
//!                                                └── 198.18.N.4  server 1 …
//! ```
//!
//! A way is cut by telling the sender a wrong hardware address for the receiver. Its packets are
//! lost without a word, as on a line that broke, and the other direction still works. The addresses
//! are those that are set aside for tests of network devices (RFC 2544).
//!
//! - LINK-1: everything made here is named after this process, and removed when [`Links`] is
//!   dropped. The next process removes the remains of one that was killed.

use pluvio_console::failure::Failure;
use pluvio_console::output::say;
use pluvio_local::Home;
use std::path::Path;
use std::process::{Command, Stdio};

/// Nobody has this address: it is one that everybody may choose for himself.
const NOWHERE: &str = "02:00:00:00:00:fe";
/// The names of namespaces, before the id of the process that made them.
const NAMES: &str = "pluvio-torture";

/// Somebody who sends and receives.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Host {
    /// The clients.
    Clients,
    /// The n-th process, coordinators first.
    Process(usize),
}

/// The network.
pub struct Links {
    owner: u32,
    count: usize,
}

impl Links {
    /// Makes a network for this many processes.
    ///
    /// # Errors
    /// Why this machine does not allow it.
    pub fn new(count: usize) -> Result<Self, String> {
        if ip(&["-V"]).is_err() {
            return Err("the program `ip` (iproute2) is not installed".to_owned());
        }
        remove_left_behind();
        let owner = std::process::id();
        let this = Self { owner, count };
        this.make()
            .map_err(|why| format!("no network namespaces: {why}; they need root"))?;
        Ok(this)
    }

    fn make(&self) -> Result<(), String> {
        let bridge = self.bridge();
        ip(&["link", "add", &bridge, "type", "bridge"])?;
        ip(&[
            "addr",
            "add",
            &format!("{}/24", self.address(Host::Clients)),
            "dev",
            &bridge,
        ])?;
        ip(&["link", "set", &bridge, "up"])?;
        for at in 0..self.count {
            let (space, outer) = (self.space(at), self.outer(at));
            ip(&["netns", "add", &space])?;
            ip(&[
                "link", "add", &outer, "type", "veth", "peer", "name", "eth0", "netns", &space,
            ])?;
            ip(&["link", "set", &outer, "master", &bridge, "up"])?;
            let address = format!("{}/24", self.address(Host::Process(at)));
            ip(&["-n", &space, "addr", "add", &address, "dev", "eth0"])?;
            ip(&["-n", &space, "link", "set", "eth0", "up"])?;
            ip(&["-n", &space, "link", "set", "lo", "up"])?;
        }
        Ok(())
    }

    /// Where each process runs.
    pub fn homes(&self) -> Vec<Home> {
        let home = |at| Home {
            host: self.address(Host::Process(at)),
            through: ["ip", "netns", "exec", &self.space(at)]
                .map(Into::into)
                .to_vec(),
        };
        (0..self.count).map(home).collect()
    }

    /// Loses everything that the one sends to the other, from here on.
    ///
    /// # Errors
    /// What `ip` says.
    pub fn cut(&self, from: Host, to: Host) -> Result<(), Failure> {
        let device = self.device(from);
        let address = self.address(to);
        self.at(
            from,
            &[
                "neigh",
                "replace",
                &address,
                "lladdr",
                NOWHERE,
                "dev",
                &device,
                "nud",
                "permanent",
            ],
        )
        .map_err(|why| Failure::new(format!("a way could not be cut: {why}")))
    }

    /// Mends that way.
    ///
    /// # Errors
    /// What `ip` says.
    pub fn heal(&self, from: Host, to: Host) -> Result<(), Failure> {
        let device = self.device(from);
        // Not `del`, which fails when another cut of the same way was mended before.
        let address = self.address(to);
        self.at(
            from,
            &[
                "neigh",
                "flush",
                "to",
                &address,
                "dev",
                &device,
                "nud",
                "permanent",
            ],
        )
        .map_err(|why| Failure::new(format!("a way could not be mended: {why}")))
    }

    fn at(&self, host: Host, arguments: &[&str]) -> Result<(), String> {
        match host {
            Host::Clients => ip(arguments),
            Host::Process(at) => ip(&[&["-n", &self.space(at)][..], arguments].concat()),
        }
    }

    fn device(&self, host: Host) -> String {
        match host {
            Host::Clients => self.bridge(),
            Host::Process(_) => "eth0".to_owned(),
        }
    }

    fn address(&self, host: Host) -> String {
        // Two tortures at a time have different networks, unless their process ids are unlucky.
        let network = self.owner % 250;
        let last = match host {
            Host::Clients => 1,
            Host::Process(at) => at + 2,
        };
        format!("198.18.{network}.{last}")
    }

    fn bridge(&self) -> String {
        format!("plv{}", self.owner)
    }

    fn outer(&self, at: usize) -> String {
        format!("plv{}-{at}", self.owner)
    }

    fn space(&self, at: usize) -> String {
        format!("{NAMES}-{}-{at}", self.owner)
    }
}

impl Drop for Links {
    fn drop(&mut self) {
        // Each may not be there, when making it had failed.
        for at in 0..self.count {
            let _gone = ip(&["link", "del", &self.outer(at)]);
            let _gone = ip(&["netns", "del", &self.space(at)]);
        }
        let _gone = ip(&["link", "del", &self.bridge()]);
    }
}

/// Removes what processes have left that are gone.
fn remove_left_behind() {
    let Ok(spaces) = std::fs::read_dir("/run/netns") else {
        return;
    };
    for entry in spaces.filter_map(Result::ok) {
        let name = entry.file_name().to_string_lossy().into_owned();
        let Some(owner) = owner(&name) else { continue };
        if !Path::new(&format!("/proc/{owner}")).exists() {
            say(format_args!(
                "removing network namespace {name}, which a killed run has left"
            ));
            let _gone = ip(&["netns", "del", &name]);
            let _gone = ip(&["link", "del", &format!("plv{owner}")]);
        }
    }
}

/// The process that made a namespace of this name.
fn owner(name: &str) -> Option<u32> {
    let rest = name.strip_prefix(NAMES)?.strip_prefix('-')?;
    rest.split_once('-')?.0.parse().ok()
}

/// Runs `ip`; gives its message when it failed.
fn ip(arguments: &[&str]) -> Result<(), String> {
    let output = Command::new("ip")
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("ip: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(said.trim().lines().next().unwrap_or("ip failed").to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_who_made_them() {
        let links = Links {
            owner: 4242,
            count: 0,
        };
        assert_eq!(owner(&links.space(3)), Some(4242));
        assert_eq!(owner("pluvio-torture-x-1"), None);
        assert_eq!(owner("another"), None);
        // The kernel's limit for names of devices.
        let longest = Links {
            owner: 4_194_304,
            count: 0,
        }
        .outer(99);
        assert!(longest.len() <= 15, "{longest}");
        assert_eq!(links.address(Host::Process(0)), "198.18.242.2");
    }
}
