//! Options that all commands of both programs have, and how people write times and addresses.

use crate::tls::TlsArgs;
use clap::{Args, ValueEnum};
use std::path::PathBuf;
use std::time::Duration;

/// Where the coordinator of a cluster on this machine listens, unless it is told otherwise.
pub const COORDINATOR_PORT: u16 = 7700;

const NO_ADDRESS: &str = "not an address: write host:port, for example 127.0.0.1:7700";
const NO_REDIS_ADDRESS: &str = "not an address: write host:port, for example 127.0.0.1:6379";

/// Options of all commands.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Options of all commands")]
pub struct Global {
    /// Where the cluster's coordinator listens; several with commas. With metadata in etcd or
    /// ZooKeeper one that runs is enough; with --standby, and of `dev --coordinators`, all are
    /// needed
    #[arg(
        long,
        global = true,
        value_name = "ADDR",
        env = "PLUVIO_COORDINATOR",
        default_value = "127.0.0.1:7700",
        value_parser = addresses
    )]
    pub coordinator: String,
    /// How long an operation may take, all retries included
    #[arg(long, global = true, value_name = "TIME", env = "PLUVIO_TIMEOUT", default_value = "10s", value_parser = time_limit)]
    pub timeout: Duration,
    /// Send every read to its server, also where a server on this machine lets its memory be read
    #[arg(long, global = true, env = "PLUVIO_NO_MAPPED_READS")]
    pub no_mapped_reads: bool,
    /// Report as JSON on standard output
    #[arg(long, global = true)]
    pub json: bool,
    /// A configuration file (TOML); the environment and flags win over it
    #[arg(long, global = true, value_name = "FILE", env = "PLUVIO_CONFIG")]
    pub config: Option<PathBuf>,
    /// Print the options in force, as a configuration file, and do nothing
    #[arg(long, global = true)]
    pub print_config: bool,
    /// The traces on standard error: off, error, warn, info, debug, trace, or a filter such as
    /// pluvio_net=debug [default: info for servers and coordinators, else warn]
    #[arg(long, global = true, value_name = "LEVEL", env = "PLUVIO_LOG")]
    pub log: Option<String>,
    /// How to write traces
    #[arg(long, global = true, value_enum, env = "PLUVIO_LOG_FORMAT", default_value_t = LogFormat::Text)]
    pub log_format: LogFormat,
    /// Encryption.
    #[command(flatten)]
    pub tls: TlsArgs,
}

/// How traces are written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum LogFormat {
    /// For people
    Text,
    /// One JSON object a line
    Json,
}

impl LogFormat {
    /// As it is written on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Json => "json",
        }
    }
}

/// A duration as people write it: `500ms`, `10s`, `2m`; a bare number means seconds.
///
/// # Errors
/// Anything else.
pub fn duration(text: &str) -> Result<Duration, String> {
    let digits = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let factor = match unit.trim() {
        "us" => 1e-6,
        "ms" => 1e-3,
        "s" | "" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        _ => f64::NAN,
    };
    let seconds = number.parse::<f64>().unwrap_or(f64::NAN) * factor;
    // A year is more than anything here waits for.
    if !(0.0..=31_536_000.0).contains(&seconds) {
        return Err("not a time: give a number with us, ms, s, m or h, for example 500ms".into());
    }
    Ok(Duration::from_secs_f64(seconds))
}

/// A time that something can be done in.
fn time_limit(text: &str) -> Result<Duration, String> {
    let limit = duration(text)?;
    if limit.is_zero() {
        return Err("nothing can be done in no time; give more than 0".into());
    }
    Ok(limit)
}

/// One address or several with commas.
fn addresses(text: &str) -> Result<String, String> {
    let all: Result<Vec<String>, String> = text.split(',').map(address).collect();
    Ok(all?.join(","))
}

/// An address as it has to look; whether the host exists is found out when it is used.
fn address(text: &str) -> Result<String, String> {
    let text = text.trim();
    if text.is_empty() {
        return Err("it is empty; give the address of the cluster's coordinator".into());
    }
    match port_of(text) {
        Some(1..) => Ok(text.to_owned()),
        Some(0) | None => Err(NO_ADDRESS.into()),
    }
}

/// An address to listen at: port 0 is any free one.
///
/// # Errors
/// It is no host and port.
pub fn listen_address(text: &str) -> Result<String, String> {
    let text = text.trim();
    match port_of(text) {
        Some(_) => Ok(text.to_owned()),
        None => Err(NO_ADDRESS.into()),
    }
}

/// An address of the Redis protocol; port 0 is any free one, where a process is to listen.
///
/// # Errors
/// It is no host and port.
pub fn redis_address(text: &str) -> Result<String, String> {
    listen_address(text).map_err(|_| NO_REDIS_ADDRESS.into())
}

/// The text behind the colon, when something is before it.
fn port_of(address: &str) -> Option<u16> {
    let (host, port) = address.rsplit_once(':')?;
    port.parse().ok().filter(|_| !host.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_host_and_port() {
        for text in ["127.0.0.1:7000", "[::1]:7000", "host:65535"] {
            assert_eq!(address(text), Ok(text.to_owned()));
            assert_eq!(listen_address(text), Ok(text.to_owned()));
        }
        assert!(address("host:0").is_err());
        assert!(listen_address("host:0").is_ok());
        for text in ["", "host", ":7000", "host:", "host:65536", "host:-1"] {
            assert!(address(text).is_err(), "{text}");
            assert!(listen_address(text).is_err(), "{text}");
        }
    }

    #[test]
    fn times_are_read_or_refused() {
        for (text, time) in [
            ("500ms", Duration::from_millis(500)),
            ("1.5s", Duration::from_millis(1500)),
            ("2m", Duration::from_secs(120)),
            ("7", Duration::from_secs(7)),
            ("50us", Duration::from_micros(50)),
            ("0", Duration::ZERO),
        ] {
            assert_eq!(duration(text), Ok(time), "{text}");
        }
        for text in [
            "",
            "ms",
            "-1s",
            "1 fortnight",
            "1e9h",
            "nan",
            "inf",
            "9999999999h",
        ] {
            assert!(duration(text).is_err(), "{text}");
        }
    }
}
