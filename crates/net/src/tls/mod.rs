//! TLS on the TCP ports of a process, and on the TCP connections that it makes.
//!
//! A process has one certificate, and a file with the authorities that it believes. Both sides of
//! an RPC connection show their certificates. A side that has one of these authorities is a member
//! of the cluster, or a client with all rights. Byte streams ask their clients for a certificate as
//! the options say, and may believe other authorities. `docs/encryption.md` has the files, and how
//! they are renewed.
//!
//! Invariants
//! - TLS-1: a process with TLS takes and sends requests inside TLS alone. It refuses transports
//!   without TLS, unless the options trust the network.
//! - TLS-2: new files are used by every connection that begins after a reload. While one of them is
//!   damaged, the former ones stay in use.

mod files;

use crate::lock;
use bytes::Bytes;
use core::time::Duration;
use files::{Material, Stamps};
use pluvio_env::{Clock, timeout};
use rustls::pki_types::ServerName;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock};
use tokio::net::TcpStream;
use tokio_rustls::{TlsAcceptor, TlsConnector, client, server};

/// The first byte of every TLS connection.
const RECORD_OF_HANDSHAKE: u8 = 0x16;
/// The reason why a port refuses a client without TLS.
const SPEAK_TLS: &str = "this port speaks TLS only";

/// The files that a process shows of itself, and those of whom it believes. All are in PEM.
#[derive(Clone, Debug)]
pub struct TlsOptions {
    /// Its own certificate, and behind it those between it and an authority.
    pub certificate: PathBuf,
    /// The private key of that certificate.
    pub key: PathBuf,
    /// The authorities that certificates of others have to come from.
    pub authorities: PathBuf,
    /// The authorities that certificates of clients of byte streams have to come from. When `None`,
    /// they are `authorities`; then each such client is a member of the cluster, too.
    pub stream_authorities: Option<PathBuf>,
    /// Lists of certificates that are believed no more.
    pub revoked: Option<PathBuf>,
    /// The name that the certificates of called processes must have. When `None`, it is the host of
    /// the called address.
    pub name: Option<String>,
    /// Whether clients of byte streams have to show a certificate.
    pub stream_clients: ClientCertificates,
    /// Whether datagrams and libfabric may be used, which carry everything unencrypted.
    pub trust_network: bool,
}

/// Whether a client has to show a certificate.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ClientCertificates {
    /// One without a certificate of the authorities is refused.
    #[default]
    Required,
    /// One without is served; a certificate of somebody else is refused.
    Optional,
    /// None is asked for.
    Unasked,
}

/// Why files of TLS cannot be used. Nothing has changed.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The file cannot be read, or has not what it should have.
    #[error("cannot use {} for TLS: {why}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The reason, for people.
        why: String,
    },
    /// The name for peers is no host name or IP address.
    #[error("{0:?} is no name that a certificate can have; give a host name or an IP address")]
    Name(String),
}

/// The TLS of a process.
pub struct Tls {
    options: TlsOptions,
    clock: Arc<dyn Clock>,
    name: Option<ServerName<'static>>,
    /// The name that the own certificate must have, once that is known.
    own_name: OnceLock<ServerName<'static>>,
    current: Mutex<Current>,
}

struct Current {
    material: Arc<Material>,
    stamps: Stamps,
    /// Why newer files are not in use.
    refused: Option<String>,
}

impl Tls {
    /// Reads the files. The clock says whether the certificate has expired.
    ///
    /// # Errors
    /// One of them cannot be used, or the certificate has expired.
    pub fn load(options: TlsOptions, clock: Arc<dyn Clock>) -> Result<Self, TlsError> {
        let name = match &options.name {
            Some(name) => {
                let named = ServerName::try_from(name.clone());
                Some(named.map_err(|_| TlsError::Name(name.clone()))?)
            }
            None => None,
        };
        let stamps = Stamps::of(&options);
        let material = Arc::new(Material::read(&options, clock.unix_time())?);
        Ok(Self {
            options,
            clock,
            name,
            own_name: OnceLock::new(),
            current: Mutex::new(Current {
                material,
                stamps,
                refused: None,
            }),
        })
    }

    /// Others call this process at `place`, a host and a port. So its certificate must have that
    /// name, or the one that all are given, now and whenever it is renewed.
    ///
    /// # Errors
    /// It has not.
    pub fn is_called_at(&self, place: &str) -> Result<(), TlsError> {
        let name = match &self.name {
            Some(name) => name.clone(),
            None => name_of(place).map_err(|_| TlsError::Name(place.to_owned()))?,
        };
        self.material().check_name(&name, &self.options)?;
        // A second call is about the same process.
        let _same = self.own_name.set(name);
        Ok(())
    }

    /// Whether all certificates of the cluster have a name that was chosen.
    #[must_use]
    pub fn has_name(&self) -> bool {
        self.name.is_some()
    }

    /// Reads the files again if one of them has changed since they were used. Connections that
    /// begin from now on use them. Blocks while it reads. Gives whether there was something new.
    ///
    /// # Errors
    /// As [`Self::load`]; the old files stay in use, and the next call tries again.
    pub fn reload(&self) -> Result<bool, TlsError> {
        let stamps = Stamps::of(&self.options);
        if lock(&self.current).stamps == stamps {
            return Ok(false);
        }
        let read = Material::read(&self.options, self.clock.unix_time());
        let checked = read.and_then(|material| match self.own_name.get() {
            Some(name) => material.check_name(name, &self.options).map(|()| material),
            None => Ok(material),
        });
        let mut current = lock(&self.current);
        match checked {
            Ok(material) => {
                *current = Current {
                    material: Arc::new(material),
                    stamps,
                    refused: None,
                };
                Ok(true)
            }
            Err(error) => {
                current.refused = Some(error.to_string());
                Err(error)
            }
        }
    }

    /// What somebody should see to, as sentences: the certificate in use has expired, or newer
    /// files cannot be used.
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
        let current = lock(&self.current);
        let mut warnings = Vec::new();
        if current.material.expires <= self.clock.unix_time().as_secs() {
            warnings.push("the TLS certificate in use has expired".to_owned());
        }
        if let Some(why) = &current.refused {
            warnings.push(format!(
                "the files of TLS have changed, and the old ones stay in use: {why}"
            ));
        }
        warnings
    }

    /// When the certificate in use expires, in seconds since 1970.
    #[must_use]
    pub fn expires(&self) -> u64 {
        self.material().expires
    }

    /// Whether transports without TLS may be used.
    pub(crate) fn trusts_network(&self) -> bool {
        self.options.trust_network
    }

    /// Takes connections of clients that need no certificate, as those of a web page.
    #[must_use]
    pub fn web(&self) -> TlsAcceptor {
        TlsAcceptor::from(Arc::clone(&self.material().web))
    }

    fn material(&self) -> Arc<Material> {
        Arc::clone(&lock(&self.current).material)
    }

    /// Begins TLS on a connection that came in.
    ///
    /// # Errors
    /// [`Unsecured`].
    pub(crate) async fn accept(
        &self,
        stream: TcpStream,
        whom: Whom,
        (clock, limit): (&dyn Clock, Duration),
    ) -> Result<server::TlsStream<TcpStream>, Unsecured> {
        let secured = async {
            let mut first = [0];
            let broken = |error: io::Error| Unsecured::Broken(error.to_string());
            match stream.peek(&mut first).await.map_err(broken)? {
                0 => return Err(Unsecured::Wordless),
                _ if first != [RECORD_OF_HANDSHAKE] => return Err(Unsecured::Plain(stream)),
                _ => {}
            }
            let material = self.material();
            let config = match whom {
                Whom::Members => &material.members,
                Whom::StreamClients => &material.stream_clients,
            };
            let acceptor = TlsAcceptor::from(Arc::clone(config));
            acceptor.accept(stream).await.map_err(broken)
        };
        match timeout(clock, limit, secured).await {
            Ok(secured) => secured,
            Err(_) => Err(Unsecured::Broken(format!("no handshake within {limit:?}"))),
        }
    }

    /// Begins TLS on a connection that was made to `place`, a host and a port.
    ///
    /// # Errors
    /// Text for people. Nothing was sent but what TLS begins with.
    pub async fn connect(
        &self,
        stream: TcpStream,
        place: &str,
        (clock, limit): (&dyn Clock, Duration),
    ) -> Result<client::TlsStream<TcpStream>, String> {
        let name = match &self.name {
            Some(name) => name.clone(),
            None => name_of(place)?,
        };
        let connector = TlsConnector::from(Arc::clone(&self.material().caller));
        let connected = connector.connect(name, stream);
        match timeout(clock, limit, connected).await {
            Ok(Ok(stream)) => Ok(stream),
            Ok(Err(error)) => Err(explain(&error)),
            Err(_) => Err(format!("no TLS with it within {limit:?}")),
        }
    }
}

/// Those who connect to a port.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Whom {
    /// Processes of the cluster, and its native clients.
    Members,
    /// Clients of byte streams.
    StreamClients,
}

/// Why a connection that came in has no TLS.
pub(crate) enum Unsecured {
    /// It was closed before a byte came.
    Wordless,
    /// Its client does not speak TLS.
    Plain(TcpStream),
    /// It broke, or the client has no certificate that counts here.
    Broken(String),
}

/// The answer to a client of byte streams that speaks without TLS: words of the Redis protocol,
/// which all of them speak.
pub(crate) fn speak_tls() -> Bytes {
    Bytes::from(format!(
        "-ERR {SPEAK_TLS}; connect with it (redis-cli --tls)\r\n"
    ))
}

/// The answer to a process that says hello without TLS.
pub(crate) fn refusal_words() -> String {
    format!("{SPEAK_TLS}; give --tls-cert, --tls-key and --tls-ca")
}

/// The name in an address, host and port.
fn name_of(place: &str) -> Result<ServerName<'static>, String> {
    let host = place.rsplit_once(':').map_or(place, |(host, _)| host);
    let host = host.trim_start_matches('[').trim_end_matches(']');
    ServerName::try_from(host.to_owned())
        .map_err(|_| format!("no certificate can have the name {host:?}; give --tls-name"))
}

/// The reason why the other side got no TLS, in words that say what to do.
fn explain(error: &io::Error) -> String {
    use rustls::Error;
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref());
    match inner {
        Some(Error::InvalidMessage(_)) => {
            "it does not speak TLS, and this process does: all of a cluster have --tls-cert, or none"
                .to_owned()
        }
        Some(Error::InvalidCertificate(why)) => format!(
            "its certificate is refused: {why}; it must come from an authority of --tls-ca, and \
             have the host of its address as a name, or the name of --tls-name"
        ),
        Some(Error::AlertReceived(alert)) => format!(
            "it refused this process ({alert:?}); the certificate of --tls-cert must come from an \
             authority of its --tls-ca"
        ),
        Some(_) | None => format!("no TLS with it: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_is_the_host_of_the_address() {
        let shown = |place: &str| name_of(place).map(|name| name.to_str().into_owned());
        assert_eq!(shown("10.0.0.7:7710"), Ok("10.0.0.7".to_owned()));
        assert_eq!(shown("[::1]:7710"), Ok("::1".to_owned()));
        assert_eq!(shown("store-3.local:1"), Ok("store-3.local".to_owned()));
        assert!(shown("a b:1").is_err());
    }
}
