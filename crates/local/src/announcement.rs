//! How the processes of a cluster announce that they are ready, and whose data directory it is.

use pluvio_console::failure::Failure;
use pluvio_console::output::{print_json, print_line};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// The line of JSON that a process writes to standard output when it is ready. Programs rely on
/// these names.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Announcement {
    /// Always true.
    pub ready: bool,
    /// `coordinator` or `server`.
    pub role: String,
    /// The server's id.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub id: Option<u64>,
    /// Its process.
    pub pid: u32,
    /// Of a coordinator: whether it leads; otherwise it waits while another one does.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub leads: Option<bool>,
    /// Where it answers requests.
    pub addr: String,
    /// Where it speaks the Redis protocol.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub redis: Option<String>,
    /// Where it speaks the Redis protocol to cluster clients.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub redis_cluster: Option<String>,
    /// Where it answers HTTP.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub admin: Option<String>,
}

impl Announcement {
    /// Tells it. A process that the cluster relies on by now does not end because nobody can hear
    /// that.
    pub fn tell(&self, json: bool) {
        if let Err(failure) = self.print(json) {
            let error = match failure.is_silent() {
                true => "it is closed".to_owned(),
                false => failure.to_string(),
            };
            tracing::warn!(address = %self.addr, %error, "ready, but standard output does not take the line that says so");
        }
    }

    fn print(&self, json: bool) -> Result<(), Failure> {
        if json {
            return print_json(self);
        }
        let mut line = format!("{} ready, requests on {}", self.role, self.addr);
        if self.leads == Some(false) {
            line += ", another one leads";
        }
        let ports = [
            ("Redis", &self.redis),
            ("Redis Cluster", &self.redis_cluster),
            ("metrics", &self.admin),
        ];
        for (what, at) in ports {
            if let Some(at) = at {
                line += &format!(", {what} on {at}");
            }
        }
        print_line(&line)
    }
}

/// Who keeps something in a data directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// The cluster's metadata.
    Coordinator,
    /// Replicas of other servers' data.
    Server,
}

/// The file of a coordinator's metadata in its directory.
pub(crate) const METADATA_FILE: &str = "metadata.redb";

impl Role {
    /// The files that mark its data directory, and no other one.
    fn marks(self) -> &'static [&'static str] {
        match self {
            Self::Coordinator => &[METADATA_FILE],
            Self::Server => &["identity.json", "frames"],
        }
    }

    /// Makes sure that a data directory is not that of the other role. Looks only.
    ///
    /// # Errors
    /// It is.
    pub fn check_directory(self, data: &Path) -> Result<(), Failure> {
        let (own, other, of_other) = match self {
            Self::Coordinator => ("coordinator", "server", Self::Server),
            Self::Server => ("server", "coordinator", Self::Coordinator),
        };
        let mut marks = of_other.marks().iter();
        match marks.find(|mark| data.join(mark).symlink_metadata().is_ok()) {
            None => Ok(()),
            Some(mark) => Err(Failure::new(format!(
                "data directory {}: it is that of a {other} ({mark} is there); give this {own} a directory of its own",
                data.display()
            ))),
        }
    }
}
