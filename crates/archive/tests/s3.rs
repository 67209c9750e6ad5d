//! Archives in a bucket of a real server that speaks S3.
//!
//! Credentials and endpoint come from the environment, which a test cannot change for itself. So
//! each test runs itself again, as a child with an environment of its own.

#![cfg(feature = "s3")]
#![allow(clippy::unwrap_used)]

use core::time::Duration;
use object_store::aws::AmazonS3Builder;
use object_store::{ObjectStore, PutMode};
use pluvio_archive::{
    ArchiveError, ArchivedHash, ArchivedObject, ArchivedTable, Consistency, Manifest, PackBuilder,
    PackRef, Place, archive_id,
};
use pluvio_units::{ClusterId, ObjectVersion};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::thread;

/// Tells a child that it is one.
const CHILD: &str = "PLUVIO_TEST_S3_CHILD";
const PLACE: &str = "s3://archives/of/it";

/// Runs this test again, with that endpoint.
fn child(test: &str, endpoint: &str) {
    let mut child = Command::new(std::env::current_exe().unwrap());
    child
        .args([test, "--exact", "--nocapture"])
        .env(CHILD, endpoint)
        .env("AWS_ENDPOINT_URL", format!("http://{endpoint}"))
        .env("AWS_REGION", "us-east-1")
        .env("AWS_ACCESS_KEY_ID", "someone")
        .env("AWS_SECRET_ACCESS_KEY", "hush hush");
    let output = child.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("1 passed"), "{said}");
}

/// The endpoint, in a child.
fn endpoint() -> Option<String> {
    std::env::var(CHILD).ok()
}

fn still() -> Duration {
    Duration::ZERO
}

fn pack(value: &[u8]) -> Vec<u8> {
    let mut pack = PackBuilder::default();
    pack.add(&ArchivedObject {
        key: b"k",
        value,
        version: ObjectVersion(7),
        deadline: None,
    });
    pack.take()
}

fn manifest(began_ms: u64, packs: Vec<PackRef>) -> Manifest {
    Manifest {
        id: archive_id(ClusterId(3), began_ms),
        cluster: ClusterId(3),
        program: "0.1.0".to_owned(),
        began_ms,
        ended_ms: began_ms + 1000,
        consistency: Consistency::EachObject,
        held_us: None,
        all_tables: true,
        tables: vec![ArchivedTable {
            name: "t".to_owned(),
            hash: ArchivedHash::Slots,
            durability: None,
            objects: 1,
            bytes: 2,
            newest_version: ObjectVersion(7),
            packs,
        }],
    }
}

/// Makes a bucket, which the library does not.
fn make_bucket(endpoint: &str, name: &str) {
    let mut stream = TcpStream::connect(endpoint).unwrap();
    write!(
        stream,
        "PUT /{name} HTTP/1.1\r\nHost: {endpoint}\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

/// Writes an object past the place.
fn write_past(key: &str, bytes: &'static str) {
    let store = AmazonS3Builder::from_env()
        .with_bucket_name("archives")
        .with_allow_http(true)
        .build()
        .unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let key = key.into();
    let written = store.put_opts(&key, bytes.into(), PutMode::Overwrite.into());
    runtime.block_on(written).unwrap();
}

/// That a store fails is told with the object and the reason, after some tries and no more.
fn assert_fails(words: &[&str]) {
    let place = Place::named(PLACE).unwrap();
    place.prepare().unwrap();
    let failed = place.put_pack(&pack(b"v"), 1).unwrap_err();
    assert!(matches!(failed, ArchiveError::Store { .. }), "{failed}");
    let said = failed.to_string();
    for word in [&["s3://archives/of/it/packs/"], words].concat() {
        assert!(said.contains(word), "{said}");
    }
    assert!(!said.contains("hush"), "{said}");
}

#[test]
fn a_store_that_is_gone_is_told_with_the_place() {
    match endpoint() {
        Some(_) => assert_fails(&["AWS_ENDPOINT_URL"]),
        None => {
            let free = TcpListener::bind("127.0.0.1:0").unwrap();
            let address = free.local_addr().unwrap().to_string();
            drop(free);
            child("a_store_that_is_gone_is_told_with_the_place", &address);
        }
    }
}

#[test]
fn a_store_that_is_full_is_told_with_the_place_after_some_tries() {
    if endpoint().is_some() {
        return assert_fails(&["507"]);
    }
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let asked = thread::scope(|scope| {
        let serving = scope.spawn(|| {
            let mut asked = 0;
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let mut head = String::new();
                let mut lines = BufReader::new(stream.try_clone().unwrap());
                while lines.read_line(&mut head).unwrap_or(0) > 2 {}
                if head.starts_with("END") {
                    break;
                }
                asked += 1;
                let full = "HTTP/1.1 507 Insufficient Storage\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";
                let _gone = stream.write_all(full.as_bytes());
            }
            asked
        });
        child(
            "a_store_that_is_full_is_told_with_the_place_after_some_tries",
            &address,
        );
        TcpStream::connect(&address)
            .unwrap()
            .write_all(b"END\n\n")
            .unwrap();
        serving.join().unwrap()
    });
    // The pack is looked for, then written; each is tried five times.
    assert!((2..=10).contains(&asked), "{asked}");
}

#[test]
fn names_of_buckets_hold_no_secrets() {
    for name in [
        "s3://",
        "s3:///x",
        "s3://key:secret@bucket/x",
        "s3://b/../x",
    ] {
        let refused = Place::named(name).unwrap_err();
        assert!(
            matches!(refused, ArchiveError::NoBucket { .. }),
            "{refused}"
        );
        assert!(!refused.to_string().contains("secret"), "{refused}");
    }
}

mod needs_moto {
    use super::*;
    use std::num::NonZeroUsize;
    use std::process::Child;

    /// A server that ends with this value.
    struct Server(Child);

    impl Drop for Server {
        fn drop(&mut self) {
            let _ended_already = self.0.kill();
            let _status = self.0.wait();
        }
    }

    /// Starts the server; gives its address.
    fn server() -> (Server, String) {
        let python = std::env::var("PLUVIO_TEST_MOTO");
        let python = python.expect("`cargo xtask test` says where moto is");
        let mut server = Command::new(python)
            .args(["-m", "moto.server", "-H", "127.0.0.1", "-p", "0"])
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let said = BufReader::new(server.stderr.take().unwrap());
        let server = Server(server);
        let mut address = None;
        for line in said.lines() {
            let line = line.unwrap();
            if let Some((_, found)) = line.split_once("http://") {
                address = found.split_whitespace().next().map(str::to_owned);
                break;
            }
        }
        (server, address.expect("it says where it is"))
    }

    // shows: ARCHIVE-1, ARCHIVE-2, ARCHIVE-3, ARCHIVE-5
    #[test]
    fn archives_lie_in_a_bucket() {
        if endpoint().is_some() {
            return in_bucket();
        }
        let (_server, address) = server();
        make_bucket(&address, "archives");
        child("needs_moto::archives_lie_in_a_bucket", &address);
    }

    fn in_bucket() {
        let place = Place::named(PLACE).unwrap();
        let none = place.manifest(None).unwrap_err();
        assert!(matches!(none, ArchiveError::NoArchive { .. }), "{none}");
        place.prepare().unwrap();
        // A large one, and one that is there already.
        let large = place.put_pack(&pack(&vec![7; 1 << 20]), 1).unwrap();
        let first = place.put_pack(&pack(b"v"), 1).unwrap();
        assert!(large.is_new && first.is_new);
        assert!(!place.put_pack(&pack(b"v"), 1).unwrap().is_new);
        let mut whole = manifest(1000, vec![large.pack, first.pack.clone()]);
        place.put_manifest(&mut whole, &still).unwrap();
        // The answer to a write may be lost; the same one is no other one.
        place.put_manifest(&mut whole, &still).unwrap();
        assert_eq!(place.ids().unwrap(), [whole.id.clone()]);
        let mut other = manifest(1000, Vec::new());
        place.put_manifest(&mut other, &still).unwrap();
        assert_eq!(place.ids().unwrap(), [whole.id.clone(), other.id]);
        assert_eq!(place.manifest(Some(&whole.id)).unwrap(), whole);
        let key = format!("of/it/packs/{}.pack", first.pack.sha256);
        write_past(&key, "rotten");
        let damaged = place.pack(&first.pack).unwrap_err();
        assert!(matches!(damaged, ArchiveError::Damaged { .. }), "{damaged}");
        assert!(place.put_pack(&pack(b"v"), 1).unwrap().is_new);
        assert_eq!(place.pack(&first.pack).unwrap(), pack(b"v"));
        // Young packs stay, and one that is gone is missed.
        place
            .put_manifest(&mut manifest(2000, Vec::new()), &still)
            .unwrap();
        let pruned = place.prune(NonZeroUsize::MIN, false, &still).unwrap();
        assert_eq!((pruned.archives.len(), pruned.files), (2, 0));
        assert_eq!(place.ids().unwrap().len(), 1);
        let missing = PackRef {
            sha256: "0".repeat(64),
            ..first.pack
        };
        let removed = place.put_manifest(&mut manifest(3000, vec![missing]), &still);
        assert!(matches!(removed, Err(ArchiveError::Removed(_))));
        let elsewhere = Place::named("s3://nowhere/x").unwrap();
        let refused = elsewhere.put_pack(&pack(b"v"), 1).unwrap_err().to_string();
        assert!(refused.contains("s3://nowhere/x/packs/"), "{refused}");
    }
}
