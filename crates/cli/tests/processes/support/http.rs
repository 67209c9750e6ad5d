//! HTTP as scrapers and probes speak it to admin ports.

use super::patience::LONG;
use std::io::{Read, Write};
use std::net::TcpStream;

/// Gets a page; the status line, head and body.
#[track_caller]
pub fn get(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// The value of a metric without labels.
#[track_caller]
pub fn metric(address: &str, name: &str) -> u64 {
    let page = get(address, "/metrics");
    let lines = page.lines().filter_map(|line| line.strip_prefix(name));
    let mut values = lines.filter_map(|rest| rest.strip_prefix(' ')?.trim().parse().ok());
    values
        .next()
        .unwrap_or_else(|| panic!("no {name} in {page}"))
}
