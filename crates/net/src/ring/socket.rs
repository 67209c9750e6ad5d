//! The Unix socket at which two processes of one machine meet.
//!
//! Its place is an absolute path, and perhaps `#` with sixteen hexadecimal digits: the mark of the
//! process that listens. Another process may have a socket of the same name, on another machine, in
//! another container, or later. It has another mark, and refuses the caller.
//!
//! Invariants
//! - MEET-1: only processes of the same user, and those of the superuser, can connect: the file has
//!   mode 0600 before the socket takes connections.
//! - MEET-2: a socket that answers is never replaced, and no file but a socket is. A socket whose
//!   process has ended makes room for the next one.

use core::time::Duration;
use pluvio_env::{Clock, NoConnection, timeout};
use socket2::{Domain, SockAddr, Socket, Type};
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use tokio::net::UnixStream;

/// Connections that the kernel holds until they are accepted. Few are made, and each is long-lived.
const BACKLOG: i32 = 256;
/// Longest path that the kernel takes, without the zero behind it.
const PATH_BYTES_MAX: usize = 107;
/// Digits of a mark.
const MARK_DIGITS: usize = 16;

/// A place as it stands in an address.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Meeting<'a> {
    pub(crate) path: &'a Path,
    /// The mark of the process that listens there; 0 if the caller takes any.
    pub(crate) mark: u64,
}

impl<'a> Meeting<'a> {
    pub(crate) fn parse(place: &'a str) -> Self {
        let marked = place.rsplit_once('#').and_then(|(path, digits)| {
            let mark = u64::from_str_radix(digits, 16).ok()?;
            (digits.len() == MARK_DIGITS).then_some((path, mark))
        });
        let (path, mark) = marked.unwrap_or((place, 0));
        Self {
            path: Path::new(path),
            mark,
        }
    }

    /// The address of this place.
    pub(crate) fn address(&self) -> String {
        format!("shm:{}#{:016x}", self.path.display(), self.mark)
    }
}

/// A new mark.
pub(crate) fn new_mark() -> u64 {
    let mut bytes = [0; 8];
    match rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()) {
        Ok(count) => assert_eq!(count, bytes.len(), "the kernel gives so few bytes at once"),
        // An interrupted call, or a kernel without: the process id tells two of them apart.
        Err(_) => bytes[..4].copy_from_slice(&std::process::id().to_le_bytes()),
    }
    u64::from_le_bytes(bytes).max(1)
}

/// Removes the socket's file when the port is closed, unless another process has put its own there.
pub(crate) struct SocketFile {
    path: PathBuf,
    inode: u64,
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let is_ours = fs::symlink_metadata(&self.path).is_ok_and(|m| m.ino() == self.inode);
        if is_ours && let Err(error) = fs::remove_file(&self.path) {
            tracing::debug!(path = %self.path.display(), %error, "a socket's file stays");
        }
    }
}

/// Opens the socket. Not yet on any event loop.
///
/// # Errors
/// Text for people.
pub(crate) fn bind(path: &Path) -> Result<(UnixListener, SocketFile), String> {
    let own = PathBuf::from(format!("{}.{}", path.display(), std::process::id()));
    let bytes = own.as_os_str().len();
    if bytes > PATH_BYTES_MAX {
        return Err(format!(
            "the path is {} bytes too long for a socket; choose a shorter one",
            bytes - PATH_BYTES_MAX
        ));
    }
    make_room(path)?;
    let open = || -> io::Result<(UnixListener, SocketFile)> {
        // Of a process with this id that was killed here.
        let _there_was_none = fs::remove_file(&own);
        let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
        socket.set_nonblocking(true)?;
        socket.bind(&SockAddr::unix(&own)?)?;
        // MEET-1: before it listens.
        fs::set_permissions(&own, Permissions::from_mode(0o600))?;
        socket.listen(BACKLOG)?;
        let inode = fs::symlink_metadata(&own)?.ino();
        fs::rename(&own, path)?;
        let path = path.to_owned();
        Ok((socket.into(), SocketFile { path, inode }))
    };
    open().map_err(|error| {
        let _nothing_to_remove = fs::remove_file(&own);
        match error.kind() {
            io::ErrorKind::NotFound => "its directory does not exist; make it first".to_owned(),
            io::ErrorKind::PermissionDenied => {
                "this process may not write to its directory".to_owned()
            }
            _ => error.to_string(),
        }
    })
}

/// MEET-2.
fn make_room(path: &Path) -> Result<(), String> {
    match fs::symlink_metadata(path) {
        Err(_) => Ok(()),
        Ok(there) if !there.file_type().is_socket() => {
            Err("there is a file that is no socket; choose another path".to_owned())
        }
        Ok(_) => match std::os::unix::net::UnixStream::connect(path) {
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(()),
            Ok(_) | Err(_) => Err(
                "the socket is in use by another process; stop that one or choose another path"
                    .to_owned(),
            ),
        },
    }
}

/// Connects within `limit`.
///
/// # Errors
/// Nothing listens there, or this process may not connect.
pub(crate) async fn connect(
    clock: &dyn Clock,
    path: &Path,
    limit: Duration,
) -> Result<UnixStream, NoConnection> {
    match timeout(clock, limit, UnixStream::connect(path)).await {
        Ok(Ok(stream)) => Ok(stream),
        Ok(Err(error)) => Err(match error.kind() {
            io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound => NoConnection::Refused,
            _ => NoConnection::Other(error.to_string()),
        }),
        Err(_) => Err(format!("no answer within {limit:.1?}").into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream as StdUnixStream;

    #[test]
    fn a_place_is_a_path_and_perhaps_a_mark() {
        let found = |place| {
            let meeting = Meeting::parse(place);
            (meeting.path.to_str().unwrap().to_owned(), meeting.mark)
        };
        assert_eq!(found("/a"), ("/a".to_owned(), 0));
        assert_eq!(found("/a#000000000000000f"), ("/a".to_owned(), 15));
        assert_eq!(found("/a#f"), ("/a#f".to_owned(), 0));
        assert_eq!(found("/a#zzzzzzzzzzzzzzzz").1, 0);
        let there = Meeting::parse("/a#00000000000000ff");
        assert_eq!(there.address(), "shm:/a#00000000000000ff");
        assert_ne!(new_mark(), 0);
    }

    // shows: MEET-1, MEET-2
    #[test]
    fn a_socket_is_private_and_goes_with_its_port() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.sock");
        let (listener, file) = bind(&path).unwrap();
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert!(bind(&path).err().unwrap().contains("in use"));
        StdUnixStream::connect(&path).unwrap();
        // A process that was killed leaves its file behind.
        drop(listener);
        let (_next, next_file) = bind(&path).unwrap();
        drop(file);
        assert!(path.exists(), "that of the next one stays");
        drop(next_file);
        assert!(!path.exists());
        fs::write(&path, "data").unwrap();
        assert!(bind(&path).err().unwrap().contains("no socket"));
        let missing = bind(Path::new("/nowhere/at/all")).err().unwrap();
        assert!(missing.contains("make it first"), "{missing}");
        let long = format!("/{}", "x".repeat(PATH_BYTES_MAX));
        assert!(bind(Path::new(&long)).err().unwrap().contains("too long"));
        let left: Vec<_> = fs::read_dir(directory.path()).unwrap().collect();
        assert_eq!(left.len(), 1, "{left:?}");
    }
}
