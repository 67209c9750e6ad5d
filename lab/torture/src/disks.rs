//! Disks of servers as small file systems in memory, which can be made full, and frames whose bits
//! flip.
//!
//! - DISK-1: what is mounted is unmounted when [`Disks`] is dropped.
//! - DISK-2: bits flip in the frames of one server only, chosen by the seed. A server has at most
//!   one replica of a segment, so of every segment at most one replica is damaged.

use super::draw::Draw;
use pluvio_console::failure::Failure;
use pluvio_units::Size;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Room that a full disk still has: less than the header of a frame and its first bytes.
const LEFT: u64 = 4 << 10;
/// Attempts to fill a disk. The kernel refuses a size below the used one, and a server goes on
/// writing while that is measured. So each attempt leaves twice as much for it to fill.
const FILL_ATTEMPTS: u32 = 13;

/// The mounted disks of all servers.
pub struct Disks {
    folders: Vec<PathBuf>,
    size: Size,
}

impl Disks {
    /// Mounts a disk of `size` for each of these directories, which are made.
    ///
    /// # Errors
    /// Why this machine does not allow it.
    pub fn new(folders: Vec<PathBuf>, size: Size) -> Result<Self, String> {
        let mut this = Self {
            folders: Vec::new(),
            size,
        };
        for folder in folders {
            std::fs::create_dir_all(&folder).map_err(|error| error.to_string())?;
            let options = format!("size={},mode=700", size.bytes());
            mount(&["-t", "tmpfs", "-o", &options, "pluvio-torture"], &folder)
                .map_err(|why| format!("no small file systems: {why}; they need root"))?;
            this.folders.push(folder);
        }
        Ok(this)
    }

    /// Makes the disk of a server full, by taking away the part that it does not use yet. If the
    /// server writes fast, the disk is nearly full, and full a moment later.
    ///
    /// # Errors
    /// What the kernel says, the last time.
    pub fn fill(&self, server: usize) -> Result<(), Failure> {
        let folder = &self.folders[server];
        let shrink = |attempt: u32| {
            let seen =
                rustix::fs::statvfs(folder).map_err(|error| failure(folder, &error.to_string()))?;
            let used = (seen.f_blocks - seen.f_bfree) * seen.f_frsize;
            self.resize(server, used + (LEFT << attempt))
        };
        (0..FILL_ATTEMPTS)
            .find_map(|attempt| shrink(attempt).ok())
            .map_or_else(|| shrink(FILL_ATTEMPTS), Ok)
    }

    /// Gives the room back.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn free(&self, server: usize) -> Result<(), Failure> {
        self.resize(server, self.size.bytes())
    }

    fn resize(&self, server: usize, bytes: u64) -> Result<(), Failure> {
        let folder = &self.folders[server];
        mount(&["-o", &format!("remount,size={bytes}")], folder)
            .map_err(|why| failure(folder, &why))
    }
}

impl Drop for Disks {
    fn drop(&mut self) {
        for folder in &self.folders {
            // Lazily: a process that was just killed may still hold files.
            let _gone = run("umount", &["-l"], folder);
        }
    }
}

fn failure(folder: &Path, why: &str) -> Failure {
    Failure::new(format!("the disk of {}: {why}", folder.display()))
}

fn mount(arguments: &[&str], folder: &Path) -> Result<(), String> {
    run("mount", arguments, folder)
}

fn run(program: &str, arguments: &[&str], folder: &Path) -> Result<(), String> {
    let output = Command::new(program)
        .args(arguments)
        .arg(folder)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("{program}: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(said.trim().lines().next().unwrap_or("it failed").to_owned())
}

/// Flips one bit in one of the frames of the server with this data directory. Gives where, for
/// people; `None`: it has no frame.
pub fn flip(folder: &Path, draw: &mut Draw) -> Option<String> {
    let entries = std::fs::read_dir(folder.join("frames")).ok()?;
    let mut frames: Vec<PathBuf> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .collect();
    if frames.is_empty() {
        return None;
    }
    frames.sort();
    let frame = &frames[draw.place(frames.len())];
    let file = OpenOptions::new().read(true).write(true).open(frame).ok()?;
    let length = file.metadata().ok()?.len();
    // Half of them in the first part, where there is something in every frame.
    let within = match draw.percent(50) {
        true => length.min(64 << 10),
        false => length,
    };
    let (at, bit) = (draw.below(within), draw.below(8));
    flip_bit(&file, at, bit).ok()?;
    let name = frame.file_name()?.to_string_lossy().into_owned();
    Some(format!("bit {bit} of byte {at} of frame {name}"))
}

fn flip_bit(file: &File, at: u64, bit: u64) -> std::io::Result<()> {
    let mut byte = [0];
    file.read_exact_at(&mut byte, at)?;
    byte[0] ^= 1 << bit;
    file.write_all_at(&byte, at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flip_changes_one_bit_of_one_frame() {
        let folder = tempfile::tempdir().unwrap();
        let mut draw = Draw::new(1, "test", 0);
        assert_eq!(flip(folder.path(), &mut draw), None);
        std::fs::create_dir(folder.path().join("frames")).unwrap();
        let frame = folder.path().join("frames/a");
        std::fs::write(&frame, [0; 4096]).unwrap();
        let words = flip(folder.path(), &mut draw).unwrap();
        assert!(words.ends_with("of frame a"), "{words}");
        let bytes = std::fs::read(&frame).unwrap();
        let ones: u32 = bytes.iter().map(|byte| byte.count_ones()).sum();
        assert_eq!((ones, bytes.len()), (1, 4096));
    }

    /// What mounts small file systems.
    mod needs_small_disk {
        use super::*;

        #[test]
        fn a_disk_gets_full_and_free_while_somebody_writes_to_it() {
            let folder = tempfile::tempdir().unwrap();
            let disks = Disks::new(vec![folder.path().join("disk")], Size::mib(64)).unwrap();
            let file = folder.path().join("disk/file");
            // It ends by itself when its file is gone.
            let mut writer = Command::new("sh")
                .arg("-c")
                .arg(": > \"$0\"; while [ -e \"$0\" ]; do head -c 100000 /dev/zero >> \"$0\"; done")
                .arg(&file)
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .unwrap();
            for _ in 0..5 {
                disks.fill(0).unwrap();
                let size = rustix::fs::statvfs(&disks.folders[0]).unwrap().f_blocks;
                let room = Size::mib(64).bytes() / 4096;
                assert!(size < room, "{size} blocks");
                disks.free(0).unwrap();
                let size = rustix::fs::statvfs(&disks.folders[0]).unwrap().f_blocks;
                assert_eq!(size, room);
                std::fs::write(&file, []).unwrap();
            }
            writer.kill().unwrap();
            writer.wait().unwrap();
        }
    }
}
