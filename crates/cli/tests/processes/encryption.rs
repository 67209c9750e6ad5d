//! A cluster whose processes and clients speak TLS.

#[allow(dead_code, reason = "tests of the transport use the rest")]
#[path = "../../../net/tests/net/rig/certificates.rs"]
mod certificates;

use crate::support::Setup;
use crate::support::cluster::Cluster;
use crate::support::patience::{LONG, wait_for};
use crate::support::program::run;
use certificates::{Authority, Shape};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::sync::Arc;

/// The flags of a process with the certificate `name`.
fn flags(authority: &Authority, name: &str) -> Vec<String> {
    let file = |name: &str| authority.path(name).display().to_string();
    vec![
        "--tls-cert".into(),
        file(&format!("{name}.pem")),
        "--tls-key".into(),
        file(&format!("{name}.key")),
        "--tls-ca".into(),
        file("ca.pem"),
    ]
}

fn cluster(authority: &Authority, more: &[&str]) -> Cluster {
    let flags = flags(authority, "server");
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    Setup::servers(2)
        .replicas(1)
        .flags(&flags)
        .flags(more)
        .start()
}

/// A command of the binary with certificates, or without.
fn told(cluster: &Cluster, flags: &[String], arguments: &[&str]) -> crate::support::Output {
    let mut command = cluster.command();
    run(command.args(arguments).args(flags), b"")
}

/// Speaks inside TLS without a certificate, and gives what comes back.
fn said(authority: &Authority, address: &str, words: &str) -> std::io::Result<String> {
    let mut roots = RootCertStore::empty();
    let certificate = CertificateDer::from_pem_file(authority.path("ca.pem")).unwrap();
    roots.add(certificate).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from("127.0.0.1").unwrap();
    let session = ClientConnection::new(Arc::new(config), name).unwrap();
    let socket = TcpStream::connect(address)?;
    socket.set_read_timeout(Some(LONG))?;
    let mut stream = StreamOwned::new(session, socket);
    stream.write_all(words.as_bytes())?;
    let mut heard = String::new();
    stream.read_to_string(&mut heard)?;
    Ok(heard)
}

#[test]
fn a_cluster_with_tls_serves_those_who_have_certificates() {
    let (ours, theirs) = (Authority::new("ours"), Authority::new("theirs"));
    ours.sign("server", Shape::default());
    ours.sign("operator", Shape::default());
    theirs.sign("stranger", Shape::default());
    let cluster = cluster(&ours, &["--tls-auth-clients", "optional"]);
    let operator = flags(&ours, "operator");
    told(&cluster, &operator, &["table", "create", "t"]).ok();
    told(&cluster, &operator, &["put", "t", "key", "value"]).ok();
    let value = told(&cluster, &operator, &["get", "t", "key"]).ok().text();
    assert_eq!(value, "value");
    // An operator without a certificate, or with one of somebody else, is told so.
    let none = told(&cluster, &[], &["get", "t", "key", "--timeout", "3s"]);
    assert_eq!(none.code, Some(1));
    assert!(none.stderr.contains("speaks TLS only"), "{}", none.stderr);
    let mut stranger = flags(&theirs, "stranger");
    stranger.extend(["--tls-ca".into(), ours.path("ca.pem").display().to_string()]);
    stranger.drain(4..6);
    let refused = told(&cluster, &stranger, &["status", "--timeout", "3s"]);
    assert_eq!(refused.code, Some(1));
    let part = told(&cluster, &operator[..2], &["status"]);
    assert_eq!(part.code, Some(2));
    assert!(part.stderr.contains("belong together"), "{}", part.stderr);
    // The Redis port takes clients without certificates here; the admin port always does.
    let redis = said(&ours, &cluster.redis(0), "SET a b\r\nGET a\r\nQUIT\r\n");
    assert_eq!(redis.unwrap(), "+OK\r\n$1\r\nb\r\n+OK\r\n");
    let admin = cluster.servers()[1]["admin"].as_str().unwrap();
    let question = "GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    let page = said(&ours, admin, question).unwrap();
    assert!(page.contains("pluvio_tls_certificate_expiry_timestamp_seconds "));
    assert!(page.starts_with("HTTP/1.1 200 OK"), "{page}");
}

#[test]
fn certificates_are_renewed_without_a_restart() {
    let (ours, theirs) = (Authority::new("ours"), Authority::new("theirs"));
    ours.sign("server", Shape::default());
    theirs.sign("server", Shape::default());
    let cluster = cluster(&ours, &["--tls-auth-clients", "no"]);
    let ping = |authority: &Authority| said(authority, &cluster.redis(0), "PING\r\nQUIT\r\n");
    assert_eq!(ping(&ours).unwrap(), "+PONG\r\n+OK\r\n");
    assert!(ping(&theirs).is_err(), "its authority is another one");
    for name in ["ca.pem", "server.key", "server.pem"] {
        std::fs::copy(theirs.path(name), ours.path(name)).unwrap();
    }
    wait_for("the new certificate to be in use", || {
        ping(&theirs).map(drop).map_err(|error| error.to_string())
    });
    let operator = flags(&theirs, "server");
    told(&cluster, &operator, &["table", "create", "t"]).ok();
    told(&cluster, &operator, &["put", "t", "key", "value"]).ok();
}

#[test]
fn files_of_tls_that_cannot_be_used_are_told_by_readyz() {
    let ours = Authority::new("ours");
    ours.sign("server", Shape::default());
    let cluster = cluster(&ours, &["--tls-auth-clients", "no"]);
    let admin = |part: &serde_json::Value| part["admin"].as_str().unwrap().to_owned();
    let (server, ready) = (admin(&cluster.servers()[0]), cluster.ready());
    let question = "GET /readyz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    let page = said(&ours, &server, question).unwrap();
    assert!(page.contains("\r\n\r\nready\n") && !page.contains("warning"));
    for (shape, word) in [
        (
            Shape {
                name: Some("store.internal"),
                ..Shape::default()
            },
            "--tls-name",
        ),
        (
            Shape {
                is_expired: true,
                ..Shape::default()
            },
            "has expired",
        ),
    ] {
        ours.sign("server", shape);
        for address in [&server, &admin(&ready["coordinator"])] {
            wait_for("the warning", || {
                let page = said(&ours, address, question).unwrap();
                let is_ready =
                    page.starts_with("HTTP/1.1 200") && page.contains("ready\nwarning: ");
                (is_ready && page.contains(word)).then_some(()).ok_or(page)
            });
        }
    }
}

mod needs_redis_cli {
    use super::*;

    #[test]
    fn redis_cli_speaks_tls_with_a_certificate() {
        let ours = Authority::new("ours");
        ours.sign("server", Shape::default());
        let cluster = cluster(&ours, &[]);
        let address = cluster.redis(1);
        let (host, port) = address.rsplit_once(':').unwrap();
        let cli = |flags: &[&str], words: &[&str]| {
            let mut command = Command::new("redis-cli");
            command.args(["-h", host, "-p", port]).args(flags);
            run(command.args(words), b"")
        };
        let file = |name: &str| ours.path(name).display().to_string();
        let (ca, cert, key) = (file("ca.pem"), file("server.pem"), file("server.key"));
        let tls = ["--tls", "--cacert", &ca, "--cert", &cert, "--key", &key];
        assert_eq!(cli(&tls, &["SET", "a", "b"]).ok().text(), "OK\n");
        assert_eq!(cli(&tls, &["GET", "a"]).ok().text(), "b\n");
        let bare = cli(&tls[..3], &["PING"]);
        assert!(
            !bare.stdout.starts_with(b"PONG"),
            "no certificate was shown"
        );
        let plain = cli(&[], &["PING"]);
        let heard = String::from_utf8_lossy(&plain.stdout).into_owned() + &plain.stderr;
        assert!(heard.contains("speaks TLS only"), "{heard}");
    }
}
