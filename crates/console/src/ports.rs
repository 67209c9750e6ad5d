//! Compares the addresses on which one process is to listen, before it opens any of them.
//!
//! The kernel says only that a port is taken, and whoever looked for the other program would find
//! none.

use crate::failure::Failure;
use std::net::{IpAddr, ToSocketAddrs};

/// Makes sure that the addresses, each with its flag, are not the same port. Names are looked up
/// only when their ports are the same; those that are not found are left to whoever opens them.
///
/// # Errors
/// Two of them are.
pub fn check(all: &[(&str, Option<&str>)]) -> Result<(), Failure> {
    let given: Vec<(&str, &str)> = all
        .iter()
        .filter_map(|(flag, address)| Some((*flag, (*address)?)))
        .collect();
    for (index, (flag, address)) in given.iter().enumerate() {
        for (other_flag, other) in &given[index + 1..] {
            if is_same(address, other) {
                return Err(Failure::usage(format!(
                    "{flag} {address} and {other_flag} {other} are the same port; choose another one for one of them"
                )));
            }
        }
    }
    Ok(())
}

fn is_same(one: &str, other: &str) -> bool {
    let port = |address: &str| address.rsplit(':').next()?.parse::<u16>().ok();
    match (port(one), port(other)) {
        (Some(0), _) => return false,
        (one, other) if one != other => return false,
        _ => {}
    }
    if one == other {
        return true;
    }
    let others = hosts(other);
    let meets = |host: IpAddr| others.iter().any(|o| covers(host, *o) || covers(*o, host));
    hosts(one).into_iter().any(meets)
}

/// The addresses of a host; none when its name is not found.
pub fn hosts(address: &str) -> Vec<IpAddr> {
    let found = address.to_socket_addrs().map(Iterator::collect::<Vec<_>>);
    let found = found.unwrap_or_default();
    found.iter().map(|at| at.ip().to_canonical()).collect()
}

/// Whether a port that is open at `all` is open at `host`. One on all addresses of version 6 is so
/// for version 4, too.
fn covers(all: IpAddr, host: IpAddr) -> bool {
    all == host || (all.is_unspecified() && (all.is_ipv6() || host.is_ipv4()))
}

/// Makes sure that ranges of ports, each with its flag, its first port (0: any free ones) and their
/// number, do not overlap.
///
/// # Errors
/// Two of them do, or one goes beyond the last port there is.
pub fn check_ranges(all: &[(&str, u32, u32)]) -> Result<(), Failure> {
    let most = u32::from(u16::MAX);
    let given = all.iter().filter(|(_, first, _)| *first != 0);
    let given: Vec<(&str, u32, u32)> = given
        .map(|(flag, first, count)| (*flag, *first, first + count.saturating_sub(1)))
        .collect();
    for (index, (flag, first, last)) in given.iter().enumerate() {
        if *last > most {
            return Err(Failure::usage(format!(
                "{flag} {first}: the ports of the last servers would be over {most}; choose a lower one"
            )));
        }
        for (other, other_first, other_last) in &given[index + 1..] {
            if first <= other_last && other_first <= last {
                return Err(Failure::usage(format!(
                    "{flag} takes the ports {first} to {last}, {other} {other_first} to {other_last}: some are the same; choose others for one of them"
                )));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_port_is_not_opened_twice() {
        for (one, other) in [
            ("127.0.0.1:7000", "127.0.0.1:7000"),
            ("127.0.0.1:7000", "0.0.0.0:7000"),
            ("[::]:7000", "127.0.0.1:7000"),
            ("[::ffff:127.0.0.1]:7000", "127.0.0.1:7000"),
            ("no.such.host.invalid:7000", "no.such.host.invalid:7000"),
        ] {
            let refused = check(&[
                ("--listen", Some(one)),
                ("--admin", None),
                ("--redis", Some(other)),
            ]);
            let refused = refused.unwrap_err().to_string();
            for word in ["--listen", "--redis", one, other] {
                assert!(refused.contains(word), "{refused}");
            }
        }
        for (one, other) in [
            ("127.0.0.1:0", "127.0.0.1:0"),
            ("127.0.0.1:7000", "127.0.0.1:7001"),
            ("127.0.0.1:7000", "127.0.0.2:7000"),
            ("0.0.0.0:7000", "[::1]:7000"),
            ("127.0.0.1:7000", "127.0.0.1"),
        ] {
            let both = [("--listen", Some(one)), ("--redis", Some(other))];
            assert!(check(&both).is_ok(), "{one} {other}");
        }
    }

    #[test]
    fn ranges_of_ports_do_not_overlap() {
        let both = |redis, admin| {
            let all = [("--redis-port", redis, 4), ("--admin-port", admin, 5)];
            check_ranges(&all).map_err(|refused| refused.to_string())
        };
        for (redis, admin) in [
            (6379, 6383),
            (6379, 6374),
            (0, 6379),
            (6379, 0),
            (0, 0),
            (65_532, 1),
        ] {
            assert_eq!(both(redis, admin), Ok(()), "{redis} {admin}");
        }
        for (redis, admin) in [(6379, 6382), (6379, 6375), (6379, 6379)] {
            let refused = both(redis, admin).unwrap_err();
            assert!(
                refused.contains("--redis-port") && refused.contains("--admin-port"),
                "{refused}"
            );
        }
        assert!(both(65_533, 0).unwrap_err().contains("over 65535"));
    }
}
