//! The files of TLS that a program is given, and their renewal.

use crate::failure::Failure;
use clap::{Args, ValueEnum};
use pluvio_env::{Clock, Tasks};
use pluvio_net::{ClientCertificates, Tls, TlsOptions};
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// How often the files are looked at. New certificates come days before the old ones expire.
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// Options of TLS, which all commands have.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Encryption")]
pub struct TlsArgs {
    /// The certificate of this process (PEM), with those between it and an authority. With it, all
    /// TCP ports and connections of this process speak TLS; so all of a cluster have one
    #[arg(long, global = true, value_name = "FILE", env = "PLUVIO_TLS_CERT")]
    pub tls_cert: Option<PathBuf>,
    /// The private key of that certificate (PEM)
    #[arg(long, global = true, value_name = "FILE", env = "PLUVIO_TLS_KEY")]
    pub tls_key: Option<PathBuf>,
    /// The authorities that certificates of others must come from (PEM)
    #[arg(long, global = true, value_name = "FILE", env = "PLUVIO_TLS_CA")]
    pub tls_ca: Option<PathBuf>,
    /// The authorities that certificates of Redis clients must come from (PEM) [default: those of
    /// --tls-ca; a certificate of these opens all ports of the cluster]
    #[arg(long, global = true, value_name = "FILE", env = "PLUVIO_TLS_REDIS_CA")]
    pub tls_redis_ca: Option<PathBuf>,
    /// Lists of certificates that are revoked (PEM)
    #[arg(long, global = true, value_name = "FILE", env = "PLUVIO_TLS_CRL")]
    pub tls_crl: Option<PathBuf>,
    /// The name that the certificates of coordinators and servers must have [default: the host of
    /// the address by which they are called]
    #[arg(long, global = true, value_name = "NAME", env = "PLUVIO_TLS_NAME")]
    pub tls_name: Option<String>,
    /// Whether Redis clients must show a certificate
    #[arg(
        long,
        global = true,
        value_enum,
        env = "PLUVIO_TLS_AUTH_CLIENTS",
        default_value_t
    )]
    pub tls_auth_clients: AuthClients,
    /// Use datagrams and libfabric in spite of TLS: they carry everything unencrypted
    #[arg(long, global = true)]
    pub trust_network: bool,
}

/// Whether a client must show a certificate, in Redis's words.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum)]
pub enum AuthClients {
    /// One without is refused
    #[default]
    Yes,
    /// One without is served; a certificate of somebody else is refused
    Optional,
    /// None is asked for
    No,
}

impl AuthClients {
    /// As it is written on the command line.
    fn name(self) -> &'static str {
        match self {
            Self::Yes => "yes",
            Self::Optional => "optional",
            Self::No => "no",
        }
    }
}

impl TlsArgs {
    /// Reads the files, if there are any.
    ///
    /// # Errors
    /// One of the three that belong together is missing, or one cannot be used.
    pub fn load(&self, clock: Arc<dyn Clock>) -> Result<Option<Arc<Tls>>, Failure> {
        let given = (&self.tls_cert, &self.tls_key, &self.tls_ca);
        let (certificate, key, authorities) = match given {
            (Some(certificate), Some(key), Some(authorities)) => (certificate, key, authorities),
            (None, None, None) => {
                return match (&self.tls_redis_ca, &self.tls_crl, &self.tls_name) {
                    (None, None, None) => Ok(None),
                    _ => Err(Failure::usage(
                        "--tls-redis-ca, --tls-crl and --tls-name need --tls-cert, --tls-key and --tls-ca",
                    )),
                };
            }
            _ => {
                return Err(Failure::usage(
                    "--tls-cert, --tls-key and --tls-ca belong together: give all three or none",
                ));
            }
        };
        let options = TlsOptions {
            certificate: certificate.clone(),
            key: key.clone(),
            authorities: authorities.clone(),
            stream_authorities: self.tls_redis_ca.clone(),
            revoked: self.tls_crl.clone(),
            name: self.tls_name.clone(),
            stream_clients: match self.tls_auth_clients {
                AuthClients::Yes => ClientCertificates::Required,
                AuthClients::Optional => ClientCertificates::Optional,
                AuthClients::No => ClientCertificates::Unasked,
            },
            trust_network: self.trust_network,
        };
        let tls = Tls::load(options, clock).map_err(|error| Failure::new(error.to_string()))?;
        Ok(Some(Arc::new(tls)))
    }

    /// The same options for another process.
    pub fn arguments(&self) -> Vec<OsString> {
        let mut arguments = Vec::new();
        let mut add = |name: &str, value: Option<OsString>| {
            if let Some(value) = value {
                arguments.extend([name.into(), value]);
            }
        };
        let file = |path: &Option<PathBuf>| path.clone().map(OsString::from);
        add("--tls-cert", file(&self.tls_cert));
        add("--tls-key", file(&self.tls_key));
        add("--tls-ca", file(&self.tls_ca));
        add("--tls-redis-ca", file(&self.tls_redis_ca));
        add("--tls-crl", file(&self.tls_crl));
        add("--tls-name", self.tls_name.clone().map(OsString::from));
        add(
            "--tls-auth-clients",
            Some(self.tls_auth_clients.name().into()),
        );
        if self.trust_network {
            arguments.push("--trust-network".into());
        }
        arguments
    }
}

/// Uses new files soon after they have come, for as long as the process lives.
pub async fn renew(tls: Arc<Tls>, clock: Arc<dyn Clock>, tasks: Arc<dyn Tasks>) {
    loop {
        clock.sleep(LOOK_EVERY).await;
        let tls = Arc::clone(&tls);
        let look = move || match tls.reload() {
            Ok(false) => {}
            Ok(true) => tracing::info!("new connections use the new files of TLS"),
            Err(error) => {
                tracing::error!(%error, "the files of TLS have changed and cannot be used; the old ones stay in use");
            }
        };
        tasks.run_blocking(Box::new(look)).await;
    }
}
