//! A disk that is full soon. Not every machine lets its users, or its containers, mount one.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A small file system in memory. Unmounted when dropped.
pub struct SmallDisk(PathBuf);

impl SmallDisk {
    /// Mounts one of this size.
    #[track_caller]
    pub fn mount(at: &Path, size: &str) -> Self {
        fs::create_dir_all(at).unwrap();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs"]);
        let status = mount.arg(at).status();
        assert!(
            status.is_ok_and(|status| status.success()),
            "no file system can be mounted here: `cargo xtask test` leaves these tests out"
        );
        Self(at.to_owned())
    }

    #[track_caller]
    fn remount(&self, option: &str) {
        let mut mount = Command::new("mount");
        mount.args(["-o", &format!("remount,{option}")]);
        assert!(mount.arg(&self.0).status().unwrap().success());
    }

    /// Makes it larger.
    #[track_caller]
    pub fn grow(&self, size: &str) {
        self.remount(&format!("size={size}"));
    }

    /// Lets it be written to, or not. Nobody may have a file open for writing.
    #[track_caller]
    pub fn set_writable(&self, is_writable: bool) {
        self.remount(if is_writable { "rw" } else { "ro" });
    }

    fn filler(&self) -> PathBuf {
        self.0.join("filler")
    }

    /// Leaves no room at all.
    #[track_caller]
    pub fn fill(&self) {
        let mut file = File::create(self.filler()).unwrap();
        let refused = loop {
            if let Err(error) = file.write_all(&[1; 4096]) {
                break error;
            }
        };
        assert_eq!(refused.kind(), ErrorKind::StorageFull, "{refused}");
    }

    /// Gives back the room that was taken.
    #[track_caller]
    pub fn make_room(&self) {
        fs::remove_file(self.filler()).unwrap();
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Lazily, so that it goes even while a killed process still holds a file.
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}
