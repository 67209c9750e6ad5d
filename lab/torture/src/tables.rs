//! The tables that clients work on. All clients know that of the Redis ports. Those of the client
//! library know two of other durabilities beside it.
//!
//! - TORT-7: every table survives what the run does. Where bits flip, one replica of a segment may
//!   be damaged, so each has two at least.

use super::faults::{Fault, Faults};
use pluvio_client::{Client, ClientError, DurabilityWish, Table, TableOptions};
use pluvio_units::HashKind;

/// The names of all tables. The first one is database 0 of the Redis port, so that both kinds of
/// clients meet.
pub const NAMES: [&str; 3] = ["redis:0", "weak", "strong"];

/// The end of the names of keys that lie in the table with this number.
pub fn suffix(table: usize) -> String {
    match table {
        0 => String::new(),
        number => format!("-{}", NAMES[number]),
    }
}

/// The number of the table in which a key of this name lies.
pub fn of_key(name: &str) -> usize {
    let ends = |number: &usize| name.ends_with(&suffix(*number));
    (1..NAMES.len()).find(ends).unwrap_or(0)
}

/// The durabilities that tables ask for, in a cluster of this many buffered replicas: that of the
/// settings, less, and more.
pub fn durabilities(replicas: u32, faults: &Faults) -> [DurabilityWish; 3] {
    let least = if faults.has(Fault::Flip) { 2 } else { 1 };
    let wish = |replicas, synced| DurabilityWish {
        replicas: Some(replicas),
        synced: Some(synced),
    };
    let weak = wish(least.min(replicas), false);
    [DurabilityWish::default(), weak, wish(replicas, true)]
}

/// Makes the tables.
///
/// # Errors
/// The cluster refuses one, or does not answer.
pub async fn make(
    client: &Client,
    durabilities: [DurabilityWish; 3],
) -> Result<Vec<Table>, ClientError> {
    let mut tables = Vec::new();
    for (name, durability) in NAMES.into_iter().zip(durabilities) {
        let options = TableOptions {
            durability,
            // As the Redis ports make the first one: cluster clients need slots.
            hash: Some(HashKind::Slots),
            ..TableOptions::default()
        };
        tables.push(client.create_table_with(name, None, options).await?);
    }
    Ok(tables)
}

/// The tables of a client, once they are made.
///
/// # Errors
/// The cluster does not answer.
pub async fn open(client: &Client) -> Result<Vec<Table>, ClientError> {
    let mut tables = Vec::new();
    for name in NAMES {
        tables.push(client.table(name).await?);
    }
    Ok(tables)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_key_says_its_table() {
        for table in 0..NAMES.len() {
            assert_eq!(of_key(&format!("r-0000001{}", suffix(table))), table);
        }
    }

    // shows: TORT-7
    #[test]
    fn no_table_has_a_single_replica_where_bits_flip() {
        for replicas in 2..=4 {
            let all = durabilities(replicas, &Faults::all());
            assert!(all.iter().all(|wish| wish.replicas != Some(1)));
        }
        let [_, weak, strong] = durabilities(3, &"kill".parse().unwrap());
        assert_eq!((weak.replicas, weak.synced), (Some(1), Some(false)));
        assert_eq!((strong.replicas, strong.synced), (Some(3), Some(true)));
    }
}
