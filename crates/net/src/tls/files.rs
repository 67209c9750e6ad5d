//! The files of TLS, and what is made of them.

use super::{ClientCertificates, TlsError, TlsOptions};
use core::time::Duration;
use rustls::client::{WebPkiServerVerifier, verify_server_name};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{
    CertificateDer, CertificateRevocationListDer, PrivateKeyDer, ServerName, UnixTime,
};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use x509_parser::prelude::{FromDer, X509Certificate};

/// Largest file that is read. Bundles with all authorities of the internet have some 250 KiB.
const FILE_BYTES_MAX: u64 = 16 << 20;
/// What files of certificates have.
const CERTIFICATE: &str = "certificate";

/// The use of a process's certificate towards each kind of other side.
pub(super) struct Material {
    pub(super) members: Arc<ServerConfig>,
    pub(super) stream_clients: Arc<ServerConfig>,
    pub(super) web: Arc<ServerConfig>,
    pub(super) caller: Arc<ClientConfig>,
    /// When the first certificate of the chain expires, in seconds since 1970.
    pub(super) expires: u64,
    own: CertificateDer<'static>,
}

impl Material {
    /// # Errors
    /// Its certificate does not have this name.
    pub(super) fn check_name(
        &self,
        name: &ServerName<'_>,
        options: &TlsOptions,
    ) -> Result<(), TlsError> {
        let named = ParsedCertificate::try_from(&self.own)
            .and_then(|certificate| verify_server_name(&certificate, name));
        named.map_err(|error| {
            let name = name.to_str();
            let why = format!(
                "it has not the name {name}, by which others call this process: {error}; put one with that name there, \
                 or give all processes --tls-name with a name that it has"
            );
            unusable(&options.certificate, why)
        })
    }

    /// Reads all files, at this time since 1970.
    ///
    /// # Errors
    /// One of them cannot be used.
    pub(super) fn read(options: &TlsOptions, now: Duration) -> Result<Self, TlsError> {
        let provider = Arc::new(ring::default_provider());
        let own = Own::read(options, now)?;
        let revoked = match &options.revoked {
            Some(path) => {
                all::<CertificateRevocationListDer<'static>>(path, "list of revoked ones")?
            }
            None => Vec::new(),
        };
        let others = Others {
            roots: roots(&options.authorities)?,
            provider,
            revoked,
            path: &options.authorities,
        };
        own.check(&others, now)?;
        let of_streams = match &options.stream_authorities {
            Some(path) => &others.with_authorities(path)?,
            None => &others,
        };
        let stream_clients = match options.stream_clients {
            ClientCertificates::Unasked => None,
            ClientCertificates::Required => Some(of_streams.clients(false)?),
            ClientCertificates::Optional => Some(of_streams.clients(true)?),
        };
        Ok(Self {
            members: own.server(&others, Some(others.clients(false)?))?,
            stream_clients: own.server(&others, stream_clients)?,
            web: own.server(&others, None)?,
            caller: own.caller(&others)?,
            expires: own.expires,
            own: own.chain[0].clone(),
        })
    }
}

/// The certificate of this process, with its key.
struct Own<'a> {
    options: &'a TlsOptions,
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    expires: u64,
}

impl<'a> Own<'a> {
    fn read(options: &'a TlsOptions, now: Duration) -> Result<Self, TlsError> {
        let path = &options.certificate;
        let chain = all::<CertificateDer<'static>>(path, CERTIFICATE)?;
        let mut expires = u64::MAX;
        for certificate in &chain {
            let (_rest, parsed) = X509Certificate::from_der(certificate)
                .map_err(|error| unusable(path, format!("it is no certificate: {error}")))?;
            let until = parsed.validity().not_after.timestamp();
            expires = expires.min(u64::try_from(until).unwrap_or(0));
        }
        if expires <= now.as_secs() {
            let why = "the certificate has expired; put a new one there";
            return Err(unusable(path, why));
        }
        let key = PrivateKeyDer::from_pem_slice(&bytes(&options.key)?)
            .map_err(|error| unusable(&options.key, no_pem(&error, "private key")))?;
        warn_of_readers(&options.key);
        Ok(Self {
            options,
            chain,
            key,
            expires,
        })
    }

    /// Whether another process with the same authorities would believe it, so that new files shut
    /// nobody out. Names are not looked at: this process may call others, and never be called.
    fn check(&self, others: &Others<'_>, now: Duration) -> Result<(), TlsError> {
        let (own, between) = self.chain.split_first().expect("a file has one at least");
        let believed = others.clients(false)?.verify_client_cert(
            own,
            between,
            UnixTime::since_unix_epoch(now),
        );
        match believed {
            Ok(_) => Ok(()),
            Err(error) => {
                let why = format!("the others would refuse it: {error}");
                Err(unusable(&self.options.certificate, why))
            }
        }
    }

    fn server(
        &self,
        others: &Others<'_>,
        clients: Option<Arc<dyn ClientCertVerifier>>,
    ) -> Result<Arc<ServerConfig>, TlsError> {
        let clients = clients.unwrap_or_else(WebPkiClientVerifier::no_client_auth);
        let builder = ServerConfig::builder_with_provider(Arc::clone(&others.provider))
            .with_safe_default_protocol_versions()
            .map_err(|error| self.misfit(&error))?;
        let config = builder
            .with_client_cert_verifier(clients)
            .with_single_cert(self.chain.clone(), self.key.clone_key())
            .map_err(|error| self.misfit(&error))?;
        Ok(Arc::new(config))
    }

    fn caller(&self, others: &Others<'_>) -> Result<Arc<ClientConfig>, TlsError> {
        let roots = Arc::clone(&others.roots);
        let provider = Arc::clone(&others.provider);
        let verifier = WebPkiServerVerifier::builder_with_provider(roots, provider)
            .with_crls(others.revoked.clone())
            .allow_unknown_revocation_status()
            .build()
            .map_err(|error| unusable(others.path, error.to_string()))?;
        let builder = ClientConfig::builder_with_provider(Arc::clone(&others.provider))
            .with_safe_default_protocol_versions()
            .map_err(|error| self.misfit(&error))?;
        let config = builder
            .with_webpki_verifier(verifier)
            .with_client_auth_cert(self.chain.clone(), self.key.clone_key())
            .map_err(|error| self.misfit(&error))?;
        Ok(Arc::new(config))
    }

    /// The key and the certificate do not belong together, or are of a kind that is not known.
    fn misfit(&self, error: &rustls::Error) -> TlsError {
        let why = format!("with {}: {error}", self.options.certificate.display());
        unusable(&self.options.key, why)
    }
}

/// Whom this process believes.
struct Others<'a> {
    provider: Arc<CryptoProvider>,
    roots: Arc<RootCertStore>,
    revoked: Vec<CertificateRevocationListDer<'static>>,
    /// The file of the authorities.
    path: &'a Path,
}

impl<'a> Others<'a> {
    /// The same, with the authorities of another file.
    fn with_authorities(&self, path: &'a Path) -> Result<Self, TlsError> {
        Ok(Self {
            provider: Arc::clone(&self.provider),
            roots: roots(path)?,
            revoked: self.revoked.clone(),
            path,
        })
    }

    /// Checks the certificates of clients.
    fn clients(&self, is_optional: bool) -> Result<Arc<dyn ClientCertVerifier>, TlsError> {
        let roots = Arc::clone(&self.roots);
        let provider = Arc::clone(&self.provider);
        let mut builder = WebPkiClientVerifier::builder_with_provider(roots, provider)
            .with_crls(self.revoked.clone())
            .allow_unknown_revocation_status();
        if is_optional {
            builder = builder.allow_unauthenticated();
        }
        builder
            .build()
            .map_err(|error| unusable(self.path, error.to_string()))
    }
}

fn roots(path: &Path) -> Result<Arc<RootCertStore>, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in all::<CertificateDer<'static>>(path, CERTIFICATE)? {
        roots
            .add(certificate)
            .map_err(|error| unusable(path, error.to_string()))?;
    }
    Ok(Arc::new(roots))
}

/// All things of one kind in a file: at least one.
fn all<T: PemObject>(path: &Path, wanted: &str) -> Result<Vec<T>, TlsError> {
    let bytes = bytes(path)?;
    let found: Result<Vec<T>, pem::Error> = T::pem_slice_iter(&bytes).collect();
    let found = found.map_err(|error| unusable(path, no_pem(&error, wanted)))?;
    if found.is_empty() {
        return Err(unusable(path, no_pem(&pem::Error::NoItemsFound, wanted)));
    }
    Ok(found)
}

fn no_pem(error: &pem::Error, wanted: &str) -> String {
    match error {
        pem::Error::NoItemsFound => format!("it has no {wanted} in PEM"),
        pem::Error::MissingSectionEnd { .. } => "it is cut short".to_owned(),
        other => format!("it is no PEM: {other}"),
    }
}

fn bytes(path: &Path) -> Result<Vec<u8>, TlsError> {
    let cannot = |error: std::io::Error| unusable(path, error.to_string());
    let size = fs::metadata(path).map_err(cannot)?.len();
    if size > FILE_BYTES_MAX {
        return Err(unusable(path, format!("it has {size} bytes")));
    }
    fs::read(path).map_err(cannot)
}

fn unusable(path: &Path, why: impl Into<String>) -> TlsError {
    TlsError::File {
        path: path.to_owned(),
        why: why.into(),
    }
}

/// A private key that everybody may read is no secret.
fn warn_of_readers(path: &Path) {
    let mode = fs::metadata(path).map_or(0, |metadata| metadata.permissions().mode());
    if mode & 0o007 != 0 {
        let path = path.display();
        tracing::warn!(%path, "every user of this machine may read the private key; chmod 600 it");
    }
}

/// Tells whether files have changed.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct Stamps(Vec<(PathBuf, Option<Stamp>)>);

/// The file's device and number, its length, and when it was changed.
type Stamp = (u64, u64, u64, (i64, i64));

impl Stamps {
    pub(super) fn of(options: &TlsOptions) -> Self {
        let files = [&options.certificate, &options.key, &options.authorities];
        let others = options.stream_authorities.iter().chain(&options.revoked);
        let stamps = files.into_iter().chain(others).map(|path| {
            let stamp = fs::metadata(path).ok().map(|file| {
                let changed = (file.mtime(), file.mtime_nsec());
                (file.dev(), file.ino(), file.len(), changed)
            });
            (path.clone(), stamp)
        });
        Self(stamps.collect())
    }
}
