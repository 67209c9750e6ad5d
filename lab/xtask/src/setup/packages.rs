//! Debian packages: installing and fetching them.

use crate::process::{succeeds, succeeds_quietly};
use std::path::Path;
use std::process::Command;

/// Installs Debian packages when this user may; gives whether they are there now.
pub fn install(packages: &[&str]) -> bool {
    let root = Command::new("id")
        .arg("-u")
        .output()
        .is_ok_and(|output| output.stdout.trim_ascii() == b"0");
    if !root || !succeeds_quietly(Command::new("apt-get").arg("--version")) {
        return false;
    }
    let mut arguments = vec!["install", "-y", "-qq", "--no-install-recommends"];
    arguments.extend(packages);
    println!("setup: apt-get install {}", packages.join(" "));
    apt(Path::new("."), &arguments)
}

/// Runs apt-get in `folder`; once more with new lists, because a new machine has none.
pub fn apt(folder: &Path, arguments: &[&str]) -> bool {
    let run = |arguments: &[&str]| {
        let mut command = Command::new("apt-get");
        // In runlevel 1 a package does not start its service, which would take port 6379.
        command
            .current_dir(folder)
            .env("DEBIAN_FRONTEND", "noninteractive")
            .env("RUNLEVEL", "1")
            .args(arguments);
        succeeds(&mut command)
    };
    run(arguments) || (run(&["update", "-qq"]) && run(arguments))
}
