//! Processes as services: the protocol of systemd, and the files of `deploy/systemd`.

use crate::support::cluster::Turn;
use crate::support::program::{Running, command, run};
use std::fs;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A service manager, as far as it listens.
struct Manager {
    path: PathBuf,
    socket: UnixDatagram,
}

impl Manager {
    fn listen(folder: &Path, name: &str) -> Self {
        let path = folder.join(name);
        let socket = UnixDatagram::bind(&path).unwrap();
        socket
            .set_read_timeout(Some(Duration::from_secs(120)))
            .unwrap();
        Self { path, socket }
    }

    /// Starts a process for it.
    fn start(&self, arguments: &[&str], data: &Path) -> Running {
        let mut command = command();
        command
            .env("NOTIFY_SOCKET", &self.path)
            .args(arguments)
            .arg("--json")
            .arg("--data")
            .arg(data);
        Running::spawn(&mut command)
    }

    fn hears(&self) -> String {
        let mut bytes = [0; 1024];
        let len = self.socket.recv(&mut bytes).expect("a word of the process");
        String::from_utf8_lossy(&bytes[..len]).into_owned()
    }
}

#[test]
fn a_service_manager_hears_what_a_process_does() {
    let _turn = Turn::take();
    let folder = tempfile::tempdir().unwrap();
    let data = |name: &str| folder.path().join(name);
    let of_coordinator = Manager::listen(folder.path(), "one");
    let of_server = Manager::listen(folder.path(), "two");
    let listen = ["coordinator", "--listen", "127.0.0.1:0"];
    let mut coordinator = of_coordinator.start(&listen, &data("coordinator"));
    let address = coordinator.ready()["addr"].as_str().unwrap().to_owned();
    assert!(of_coordinator.hears().contains("STATUS=waits for its"));
    assert!(of_coordinator.hears().contains("READY=1\n"));

    let arguments = ["server", "--coordinator", &address, "--memory", "48MiB"];
    let mut server = of_server.start(&arguments, &data("server"));
    assert!(of_server.hears().contains("STATUS=waits for the coord"));
    assert!(of_server.hears().contains("READY=1\n"));
    assert_eq!(server.stop(), Some(0));
    // Longer than --drain-timeout, which is 25 s.
    let stops = of_server.hears();
    assert!(stops.contains("STOPPING=1\n"), "{stops}");
    assert!(stops.contains("EXTEND_TIMEOUT_USEC=35000000\n"), "{stops}");
    assert_eq!(coordinator.stop(), Some(0));
    assert!(of_coordinator.hears().contains("STOPPING=1\n"));
}

// shows: MAN-1
#[test]
fn a_service_manager_that_is_gone_stops_nothing() {
    let _turn = Turn::take();
    let folder = tempfile::tempdir().unwrap();
    let manager = Manager::listen(folder.path(), "gone");
    fs::remove_file(&manager.path).unwrap();
    let listen = ["coordinator", "--listen", "127.0.0.1:0"];
    let mut coordinator = manager.start(&listen, &folder.path().join("data"));
    coordinator.ready();
    assert!(coordinator.is_alive());
    assert!(coordinator.stderr().contains("cannot tell the service"));
    assert_eq!(coordinator.stop(), Some(0));
}

/// The commands of the units are known, with the configuration of the package.
#[test]
fn units_start_what_there_is() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/systemd");
    let config = folder.join("pluvio.toml").display().to_string();
    for role in ["server", "coordinator"] {
        let unit = fs::read_to_string(folder.join(format!("pluvio-{role}.service"))).unwrap();
        let line = unit
            .lines()
            .find_map(|line| line.strip_prefix("ExecStart="));
        let line = line.unwrap().replace("/etc/pluvio/pluvio.toml", &config);
        let mut words = line.split(' ');
        assert_eq!(words.next(), Some("/usr/bin/pluvio"));
        let mut command = command();
        let shown = run(command.args(words).arg("--print-config"), b"")
            .ok()
            .text();
        let data = format!("data = \"/var/lib/pluvio/{role}\"  # file");
        assert!(shown.contains(&data), "{shown}");
        let state = format!("StateDirectory=pluvio pluvio/{role}");
        assert!(unit.contains(&state), "{unit}");
    }
}
