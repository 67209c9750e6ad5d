//! TLS on ports and connections: who is believed, what the others are told, and new files.

use crate::rig::certificates::{Authority, Shape};
use crate::rig::{PATIENCE, Rig, echo, frame, hello, raw, read_to_end};
use bytes::{Bytes, BytesMut};
use pluvio_env::{Address, BoxFuture, ByteStream, Clock, Listening, Network, StreamService};
use pluvio_net::{ClientCertificates, Tls, TlsOptions};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;

fn clock() -> Arc<dyn Clock> {
    Rig::new(1).runtime.clock()
}

fn rig(options: TlsOptions) -> Rig {
    Rig::with_tls(
        1,
        Some(Arc::new(Tls::load(options, clock()).unwrap())),
        |_| {},
    )
}

/// The answer that a process with `caller` gets from one with `server`.
fn said(server: TlsOptions, caller: TlsOptions) -> Result<Bytes, String> {
    let (server, caller) = (rig(server), rig(caller));
    let listening = server.listen(echo());
    let heard = caller.call(&listening.address, frame(1, "hello"));
    heard
        .map(|frame| frame.payload)
        .map_err(|error| error.to_string())
}

// shows: TLS-1
#[test]
fn members_show_certificates_of_the_same_authority() {
    let (ours, theirs) = (Authority::new("ours"), Authority::new("theirs"));
    ours.sign("server", Shape::default());
    let shape = |name| Shape {
        name,
        ..Shape::default()
    };
    ours.sign("named", shape(Some("store.internal")));
    theirs.sign("stranger", Shape::default());
    let hello = Ok(Bytes::from("hello"));
    assert_eq!(said(ours.own("server"), ours.own("server")), hello);
    // A caller whose authority nobody believes, though it believes the server.
    let stranger = theirs.options("stranger", &ours.both(&theirs));
    let why = said(ours.own("server"), stranger).unwrap_err();
    assert!(
        why.contains("UnknownCA") || why.contains("refused"),
        "{why}"
    );
    // A server whose authority the caller does not believe.
    let why = said(theirs.own("stranger"), ours.own("server")).unwrap_err();
    assert!(why.contains("its certificate is refused"), "{why}");
    // A server with another name than its address, and a caller who expects just that name.
    let why = said(ours.own("named"), ours.own("server")).unwrap_err();
    assert!(why.contains("--tls-name"), "{why}");
    let expects = TlsOptions {
        name: Some("store.internal".to_owned()),
        ..ours.own("server")
    };
    assert_eq!(said(ours.own("named"), expects), hello);
}

#[test]
fn revoked_certificates_are_refused_on_both_sides() {
    let ours = Authority::new("ours");
    for (name, serial) in [("good", 7), ("stolen", 8)] {
        let shape = Shape {
            serial,
            ..Shape::default()
        };
        ours.sign(name, shape);
    }
    ours.revoke(8);
    let knows = |name| TlsOptions {
        revoked: Some(ours.path("revoked.pem")),
        ..ours.own(name)
    };
    assert!(said(knows("good"), knows("good")).is_ok());
    assert!(said(knows("good"), ours.own("stolen")).is_err());
    let why = said(ours.own("stolen"), knows("good")).unwrap_err();
    assert!(why.contains("its certificate is refused"), "{why}");
}

#[test]
fn files_that_cannot_be_used_are_named_with_the_reason() {
    let ours = Authority::new("ours");
    ours.sign("server", Shape::default());
    ours.sign("other", Shape::default());
    let old = Shape {
        is_expired: true,
        ..Shape::default()
    };
    ours.sign("old", old);
    std::fs::write(ours.path("empty.pem"), "").unwrap();
    let why = |options: TlsOptions| match Tls::load(options, clock()) {
        Ok(_) => panic!("these files were taken"),
        Err(error) => error.to_string(),
    };
    let base = || ours.own("server");
    let text = why(ours.own("missing"));
    assert!(
        text.contains("missing.pem") && text.contains("No such file"),
        "{text}"
    );
    let text = why(ours.own("old"));
    assert!(
        text.contains("old.pem") && text.contains("expired"),
        "{text}"
    );
    let early = Shape {
        begins_later: true,
        ..Shape::default()
    };
    ours.sign("early", early);
    let text = why(ours.own("early"));
    assert!(
        text.contains("early.pem for TLS: the others would refuse it"),
        "{text}"
    );
    let others = Authority::new("others");
    let text = why(ours.options("server", &others.path("ca.pem")));
    assert!(text.contains("the others would refuse it"), "{text}");
    let revoked = Some(ours.path("ca.pem"));
    let text = why(TlsOptions { revoked, ..base() });
    assert!(text.contains("no list of revoked ones"), "{text}");
    let key = ours.path("other.key");
    let text = why(TlsOptions { key, ..base() });
    assert!(
        text.contains("other.key") && text.contains("server.pem"),
        "{text}"
    );
    let key = ours.path("server.pem");
    let text = why(TlsOptions { key, ..base() });
    assert!(text.contains("no private key"), "{text}");
    let authorities = ours.path("empty.pem");
    let text = why(TlsOptions {
        authorities,
        ..base()
    });
    assert!(text.contains("no certificate"), "{text}");
    let name = Some("a b".to_owned());
    let text = why(TlsOptions { name, ..base() });
    assert!(text.contains("\"a b\""), "{text}");
}

// shows: TLS-2
#[test]
fn new_files_are_used_by_new_connections_and_bad_ones_change_nothing() {
    let (ours, theirs) = (Authority::new("ours"), Authority::new("theirs"));
    ours.sign("server", Shape::default());
    theirs.sign("server", Shape::default());
    let tls = Arc::new(Tls::load(ours.own("server"), clock()).unwrap());
    let server = Rig::with_tls(1, Some(Arc::clone(&tls)), |_| {});
    let listening = server.listen(echo());
    let call = |options: TlsOptions| {
        rig(options)
            .call(&listening.address, frame(1, "hello"))
            .is_ok()
    };
    assert!(!tls.reload().unwrap(), "nothing has changed");
    assert!(call(ours.own("server")) && !call(theirs.own("server")));
    let copy = |name: &str| {
        std::fs::copy(theirs.path(name), ours.path(name)).unwrap();
    };
    // The certificate has come, its key has not yet.
    copy("server.pem");
    assert_eq!(tls.warnings(), [""; 0]);
    assert!(tls.reload().is_err());
    assert!(tls.warnings()[0].contains("the old ones stay in use"));
    copy("server.key");
    copy("ca.pem");
    assert!(tls.reload().unwrap());
    assert_eq!(tls.warnings(), [""; 0]);
    assert!(call(theirs.own("server")));
    std::fs::write(ours.path("ca.pem"), "nonsense").unwrap();
    assert!(tls.reload().is_err());
    assert!(call(theirs.own("server")), "what was in use stays in use");
}

// shows: TLS-2
#[test]
fn a_certificate_must_have_the_name_by_which_its_process_is_called() {
    let ours = Authority::new("ours");
    let named = |name| Shape {
        name,
        ..Shape::default()
    };
    ours.sign("server", Shape::default());
    ours.sign("other", named(Some("store.internal")));
    let tls = Tls::load(ours.own("server"), clock()).unwrap();
    tls.is_called_at("127.0.0.1:7000").unwrap();
    let copy = |name: &str| {
        for kind in ["pem", "key"] {
            let (from, to) = (format!("{name}.{kind}"), format!("server.{kind}"));
            std::fs::copy(ours.path(&from), ours.path(&to)).unwrap();
        }
    };
    copy("other");
    let why = tls.reload().unwrap_err().to_string();
    assert!(
        why.contains("127.0.0.1") && why.contains("--tls-name"),
        "{why}"
    );
    let tls = Tls::load(ours.own("other"), clock()).unwrap();
    let why = tls.is_called_at("127.0.0.1:7000").unwrap_err().to_string();
    assert!(
        why.contains("other.pem") && why.contains("127.0.0.1"),
        "{why}"
    );
    let expects = TlsOptions {
        name: Some("store.internal".to_owned()),
        ..ours.own("other")
    };
    let tls = Tls::load(expects, clock()).unwrap();
    tls.is_called_at("127.0.0.1:7000").unwrap();
}

// shows: TLS-1
#[test]
fn who_speaks_without_tls_is_told() {
    let ours = Authority::new("ours");
    ours.sign("server", Shape::default());
    let server = rig(ours.own("server"));
    let listening = server.listen(echo());
    let mut stream = raw(&listening.address);
    stream.write_all(&hello(1, 1)).unwrap();
    let heard = read_to_end(&mut stream);
    let words = String::from_utf8_lossy(&heard);
    assert!(
        words.contains("speaks TLS only; give --tls-cert"),
        "{words}"
    );
    // A process of a cluster without TLS shows the same words to its user.
    let error = Rig::new(1).call(&listening.address, frame(1, "x"));
    let error = error.unwrap_err().to_string();
    assert!(error.contains("speaks TLS only"), "{error}");
    // And the other way round.
    let plain = Rig::new(1);
    let at = plain.listen(echo());
    let error = server.call(&at.address, frame(1, "x")).unwrap_err();
    assert!(
        error.to_string().contains("it does not speak TLS"),
        "{error}"
    );
    let totals = server.network.counters().totals();
    assert_eq!((totals.tls_failed, totals.requests_received), (2, 0));
}

// shows: TLS-1
#[test]
fn transports_without_tls_are_refused_unless_the_network_is_trusted() {
    let ours = Authority::new("ours");
    ours.sign("server", Shape::default());
    let open = |options: TlsOptions| {
        rig(options).run(|network| async move {
            let at = Address::from("udp:127.0.0.1:0");
            let opened = network.listen(&at, Arc::new(echo())).await;
            opened.map(|_| ()).map_err(|error| error.to_string())
        })
    };
    let why = open(ours.own("server")).unwrap_err();
    assert!(why.contains("--trust-network"), "{why}");
    let trusts = TlsOptions {
        trust_network: true,
        ..ours.own("server")
    };
    assert_eq!(open(trusts), Ok(()));
    let to = Address::from("udp:127.0.0.1:1");
    let error = rig(ours.own("server")).call(&to, frame(1, "x"));
    let error = error.unwrap_err().to_string();
    assert!(error.contains("--trust-network"), "{error}");
}

/// Gives back what comes.
struct EchoBytes;

impl StreamService for EchoBytes {
    fn serve(&self, mut stream: Box<dyn ByteStream>) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            let mut buffer = BytesMut::new();
            loop {
                // Both ways of reading, as the Redis port does.
                let read = match stream.try_read(&mut buffer) {
                    Ok(None) => stream.read(&mut buffer).await,
                    Ok(Some(count)) => Ok(count),
                    Err(error) => Err(error),
                };
                let Ok(1..) = read else { return };
                if stream.write_all(&buffer).await.is_err() || &buffer[..] == b"END" {
                    return;
                }
                buffer.clear();
            }
        })
    }
}

fn streams(rig: &Rig) -> Listening {
    let (at, refusal) = (Address::from("127.0.0.1:0"), Bytes::from("-ERR full\r\n"));
    rig.run(|network| async move {
        network
            .listen_streams(&at, 10, refusal, Arc::new(EchoBytes))
            .await
    })
    .unwrap()
}

/// A client that other people wrote, as far as we can tell.
fn client(
    to: &Address,
    authority: &Path,
    own: Option<&TlsOptions>,
) -> StreamOwned<ClientConnection, TcpStream> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(authority).unwrap() {
        roots.add(certificate.unwrap()).unwrap();
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    let config = match own {
        None => config.with_no_client_auth(),
        Some(own) => {
            let chain = CertificateDer::pem_file_iter(&own.certificate).unwrap();
            let chain = chain.map(Result::unwrap).collect();
            let key = PrivateKeyDer::from_pem_file(&own.key).unwrap();
            config.with_client_auth_cert(chain, key).unwrap()
        }
    };
    let name = ServerName::try_from("127.0.0.1").unwrap();
    let session = ClientConnection::new(Arc::new(config), name).unwrap();
    let socket = TcpStream::connect(&*to.0).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    StreamOwned::new(session, socket)
}

#[test]
fn byte_streams_come_back_however_many_and_end_with_a_goodbye() {
    let ours = Authority::new("ours");
    ours.sign("server", Shape::default());
    let server = rig(ours.own("server"));
    let listening = streams(&server);
    let own = ours.own("server");
    let mut stream = client(&listening.address, &ours.path("ca.pem"), Some(&own));
    let sent: Vec<u8> = (0..300_000u32).map(|i| (i / 7) as u8).collect();
    for part in sent.chunks(70_000) {
        stream.write_all(part).unwrap();
        let mut received = vec![0; part.len()];
        stream.read_exact(&mut received).unwrap();
        assert!(received == part, "other bytes came back");
    }
    stream.write_all(b"END").unwrap();
    let mut rest = Vec::new();
    // It fails if the stream ends without the goodbye of TLS.
    stream.read_to_end(&mut rest).unwrap();
    assert_eq!(rest, b"END");
}

#[test]
fn clients_of_byte_streams_need_a_certificate_as_the_options_say() {
    let (ours, theirs) = (Authority::new("ours"), Authority::new("theirs"));
    ours.sign("server", Shape::default());
    theirs.sign("stranger", Shape::default());
    let (own, stranger) = (ours.own("server"), theirs.own("stranger"));
    use ClientCertificates::{Optional, Required, Unasked};
    for (wanted, without, with_strange) in [
        (Required, false, false),
        (Optional, true, false),
        (Unasked, true, true),
    ] {
        let server = rig(TlsOptions {
            stream_clients: wanted,
            ..ours.own("server")
        });
        let listening = streams(&server);
        let is_served = |own: Option<&TlsOptions>| {
            let mut stream = client(&listening.address, &ours.path("ca.pem"), own);
            let mut heard = [0; 3];
            stream.write_all(b"END").is_ok() && stream.read_exact(&mut heard).is_ok()
        };
        assert!(is_served(Some(&own)), "{wanted:?}");
        assert_eq!(is_served(None), without, "{wanted:?}");
        assert_eq!(is_served(Some(&stranger)), with_strange, "{wanted:?}");
    }
}

#[test]
fn clients_of_byte_streams_may_have_an_authority_that_opens_nothing_else() {
    let (ours, apps) = (Authority::new("ours"), Authority::new("apps"));
    ours.sign("server", Shape::default());
    apps.sign("app", Shape::default());
    let options = || TlsOptions {
        stream_authorities: Some(apps.path("ca.pem")),
        ..ours.own("server")
    };
    let server = rig(options());
    let listening = streams(&server);
    let is_served = |own: TlsOptions| {
        let mut stream = client(&listening.address, &ours.path("ca.pem"), Some(&own));
        let mut heard = [0; 3];
        stream.write_all(b"END").is_ok() && stream.read_exact(&mut heard).is_ok()
    };
    assert!(is_served(apps.own("app")));
    assert!(!is_served(ours.own("server")));
    // As a member it is refused, and members go on among themselves.
    let both = apps.both(&ours);
    assert!(said(options(), apps.options("app", &both)).is_err());
    assert!(said(options(), ours.own("server")).is_ok());
}

#[test]
fn a_stream_client_without_tls_gets_words_of_its_protocol() {
    let ours = Authority::new("ours");
    ours.sign("server", Shape::default());
    let server = rig(ours.own("server"));
    let listening = streams(&server);
    let mut stream = raw(&listening.address);
    stream.write_all(b"PING\r\n").unwrap();
    let heard = read_to_end(&mut stream);
    let words = String::from_utf8_lossy(&heard);
    assert!(
        words.starts_with("-ERR this port speaks TLS only"),
        "{words}"
    );
    assert_eq!(server.network.counters().totals().tls_failed, 1);
    // One that begins with TLS and goes on with nonsense is closed.
    let mut stream = raw(&listening.address);
    stream.write_all(b"\x16\x03\x01\x00\x05nonsense").unwrap();
    // An alert of TLS, or nothing.
    let heard = read_to_end(&mut stream);
    assert!(heard.first().is_none_or(|&kind| kind == 0x15), "{heard:?}");
}
