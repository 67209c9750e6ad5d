//! An authority that signs certificates for tests, and the files that processes read.

use pluvio_net::{ClientCertificates, TlsOptions};
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, CertifiedIssuer, DnType,
    IsCa, KeyIdMethod, KeyPair, KeyUsagePurpose, RevokedCertParams, SerialNumber, date_time_ymd,
};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// An authority, and a directory for files.
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    pub directory: TempDir,
}

/// How a certificate differs from a usual one.
#[derive(Clone, Copy, Default)]
pub struct Shape<'a> {
    /// Names besides `localhost` and 127.0.0.1, or instead of them if there is one.
    pub name: Option<&'a str>,
    pub is_expired: bool,
    pub begins_later: bool,
    pub serial: u64,
}

impl Authority {
    pub fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate().unwrap();
        let issuer = CertifiedIssuer::self_signed(params, key).unwrap();
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("ca.pem"), issuer.pem()).unwrap();
        Self { issuer, directory }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Writes a certificate and its key in PEM as `name.pem` and `name.key`.
    pub fn sign(&self, name: &str, shape: Shape<'_>) {
        let names = match shape.name {
            Some(name) => vec![name.to_owned()],
            None => vec!["localhost".to_owned(), "127.0.0.1".to_owned()],
        };
        let mut params = CertificateParams::new(names).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.serial_number = Some(SerialNumber::from(shape.serial.max(1)));
        if shape.is_expired {
            params.not_before = date_time_ymd(2001, 1, 1);
            params.not_after = date_time_ymd(2002, 1, 1);
        }
        if shape.begins_later {
            params.not_before = date_time_ymd(2999, 1, 1);
        }
        let key = KeyPair::generate().unwrap();
        let signed = params.signed_by(&key, &self.issuer).unwrap();
        std::fs::write(self.path(&format!("{name}.pem")), signed.pem()).unwrap();
        std::fs::write(self.path(&format!("{name}.key")), key.serialize_pem()).unwrap();
    }

    /// Writes the list of revoked certificates as `revoked.pem`.
    pub fn revoke(&self, serial: u64) {
        let revoked = RevokedCertParams {
            serial_number: SerialNumber::from(serial),
            revocation_time: date_time_ymd(2020, 1, 1),
            reason_code: None,
            invalidity_date: None,
        };
        let list = CertificateRevocationListParams {
            this_update: date_time_ymd(2020, 1, 1),
            next_update: date_time_ymd(2099, 1, 1),
            crl_number: SerialNumber::from(1u64),
            issuing_distribution_point: None,
            revoked_certs: vec![revoked],
            key_identifier_method: KeyIdMethod::Sha256,
        };
        let list = list.signed_by(&self.issuer).unwrap();
        std::fs::write(self.path("revoked.pem"), list.pem().unwrap()).unwrap();
    }

    /// The options of a process with the certificate `name`, that believes `authorities`.
    pub fn options(&self, name: &str, authorities: &Path) -> TlsOptions {
        TlsOptions {
            certificate: self.path(&format!("{name}.pem")),
            key: self.path(&format!("{name}.key")),
            authorities: authorities.to_owned(),
            revoked: None,
            name: None,
            stream_authorities: None,
            stream_clients: ClientCertificates::Required,
            trust_network: false,
        }
    }

    /// A file with this authority and another one.
    pub fn both(&self, other: &Self) -> PathBuf {
        let own = std::fs::read_to_string(self.path("ca.pem")).unwrap();
        let all = own + &std::fs::read_to_string(other.path("ca.pem")).unwrap();
        std::fs::write(self.path("both.pem"), all).unwrap();
        self.path("both.pem")
    }

    /// The same for a process that believes this authority.
    pub fn own(&self, name: &str) -> TlsOptions {
        self.options(name, &self.path("ca.pem"))
    }
}
