//! `pluvio top`: what servers do, the keys that are used most, and the largest ones.

use crate::cmd::objects::put_bytes;
use crate::cmd::top_servers::{self, Servers};
use clap::{Args, Subcommand, ValueEnum};
use futures_util::future::join_all;
use pluvio_client::{Client, GetTopKeys, TOP_KEYS_MAX, TopKeys};
use pluvio_console::failure::Failure;
use pluvio_console::options::Global;
use pluvio_console::output::{bytes, escaped, print_json, print_line, say, table, table_text};
use pluvio_console::session::{Session, with_session};
use pluvio_env::Address;
use pluvio_units::{KeyHash, ServerId, TableId};
use pluvio_wire::HotKey;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::process::ExitCode;

/// `pluvio top`.
#[derive(Args, Clone, Debug)]
pub struct Top {
    /// What is listed.
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand, Clone, Debug)]
enum What {
    /// Operations a second, latencies, memory and work of each server, again and again
    Servers(Servers),
    /// Keys of the last minute, from samples of the servers; the largest ones of those noticed
    Keys(Keys),
}

#[derive(Args, Clone, Debug)]
struct Keys {
    /// Only those of this table
    #[arg(long, value_name = "NAME")]
    table: Option<String>,
    /// What comes first
    #[arg(long, value_enum, default_value_t = By::Reads)]
    by: By,
    /// How many
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=i64::from(TOP_KEYS_MAX)))]
    count: u32,
}

/// The order of keys.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum By {
    /// Those that are read most
    Reads,
    /// Those that are changed most
    Writes,
    /// The largest
    Bytes,
}

impl By {
    fn name(self) -> &'static str {
        match self {
            Self::Reads => "reads",
            Self::Writes => "writes",
            Self::Bytes => "bytes",
        }
    }
}

/// Characters of a key that are always shown.
const KEY_MIN: usize = 12;

/// Runs the command.
pub fn run(global: &Global, top: &Top) -> Result<ExitCode, Failure> {
    let (keys, json) = match &top.what {
        What::Servers(servers) => return top_servers::run(global, servers),
        What::Keys(keys) => (keys.clone(), global.json),
    };
    with_session(global, 1, move |Session { client, .. }| async move {
        let all = ask(&client, &keys).await?;
        if json {
            print_json(&all.as_json(keys.by))?;
        } else {
            print_line(&all.as_text_within(keys.by, width()))?;
        }
        Ok(ExitCode::SUCCESS)
    })
}

/// A key of the list.
#[derive(Clone, PartialEq, Debug)]
pub struct Listed {
    hash: KeyHash,
    /// Its first bytes.
    pub key: Vec<u8>,
    key_len: u32,
    /// In a second; or bytes.
    pub amount: f64,
    less: f64,
    more: f64,
    /// The server that told most of it.
    pub server: ServerId,
    of_server: f64,
}

/// What all servers told.
struct All {
    tables: BTreeMap<TableId, String>,
    /// By table and hash, most first.
    keys: Vec<((TableId, KeyHash), Listed)>,
    answers: Vec<TopKeys>,
    silent: Vec<ServerId>,
}

async fn ask(client: &Client, keys: &Keys) -> Result<All, Failure> {
    let infos = client.list_tables().await?;
    let wanted = match &keys.table {
        None => None,
        Some(name) => Some(client.table(name).await?.id()),
    };
    let list = client.server_list().await?;
    // Keys that move are at two servers: each tells its part.
    let request = GetTopKeys {
        table: wanted,
        count: TOP_KEYS_MAX,
    };
    let asked = list.up().map(|info| {
        let (address, request) = (Address::from(&*info.address), &request);
        async move { (info.id, client.top_keys(&address, request).await.ok()) }
    });
    let (mut answers, mut silent) = (Vec::new(), Vec::new());
    for (server, answer) in join_all(asked).await {
        match answer {
            Some(answer) => answers.push(answer),
            None => silent.push(server),
        }
    }
    for server in &silent {
        say(format_args!(
            "server {server} does not answer: its keys are missing"
        ));
    }
    let mut merged = merge(&answers, keys.by);
    merged.truncate(keys.count as usize);
    Ok(All {
        tables: infos.into_iter().map(|info| (info.id, info.name)).collect(),
        keys: merged,
        answers,
        silent,
    })
}

/// The keys of all servers, most first.
pub fn merge(answers: &[TopKeys], by: By) -> Vec<((TableId, KeyHash), Listed)> {
    let mut all: BTreeMap<(TableId, KeyHash), Listed> = BTreeMap::new();
    for answer in answers {
        for of_table in &answer.tables {
            let hot = |hot: &HotKey| Listed {
                hash: hot.hash,
                key: hot.key.clone(),
                key_len: hot.key_len,
                amount: hot.per_s,
                less: hot.less,
                more: hot.more,
                server: answer.server,
                of_server: hot.per_s,
            };
            let listed: Vec<_> = match by {
                By::Reads => of_table.reads.iter().map(hot).collect(),
                By::Writes => of_table.writes.iter().map(hot).collect(),
                By::Bytes => {
                    let large = of_table.largest.iter().map(|large| Listed {
                        hash: large.hash,
                        key: large.key.clone(),
                        key_len: large.key_len,
                        amount: large.bytes as f64,
                        less: 0.0,
                        more: 0.0,
                        server: answer.server,
                        of_server: large.bytes as f64,
                    });
                    large.collect()
                }
            };
            for new in listed {
                let place = (of_table.table, new.hash);
                let Some(known) = all.get_mut(&place) else {
                    all.insert(place, new);
                    continue;
                };
                if new.of_server > known.of_server {
                    (known.server, known.of_server) = (new.server, new.of_server);
                }
                match by {
                    By::Bytes => known.amount = known.amount.max(new.amount),
                    By::Reads | By::Writes => {
                        known.amount += new.amount;
                        known.less += new.less;
                        known.more += new.more;
                    }
                }
            }
        }
    }
    let mut all: Vec<_> = all.into_iter().collect();
    all.sort_by(|(_, a), (_, b)| b.amount.total_cmp(&a.amount));
    all
}

impl All {
    fn table(&self, id: TableId) -> String {
        let name = self.tables.get(&id).cloned();
        name.unwrap_or_else(|| format!("(dropped: {id})"))
    }

    fn as_json(&self, by: By) -> Value {
        let keys = self.keys.iter().map(|((table, _), listed)| {
            let mut shown = Map::new();
            shown.insert("table".into(), self.table(*table).into());
            put_bytes(&mut shown, "key", &listed.key);
            shown.insert("key_bytes".into(), listed.key_len.into());
            match by {
                By::Bytes => {
                    shown.insert("bytes".into(), (listed.amount as u64).into());
                }
                By::Reads | By::Writes => {
                    shown.insert("per_s".into(), listed.amount.into());
                    let range = [listed.amount - listed.less, listed.amount + listed.more];
                    shown.insert("range".into(), range.as_slice().into());
                }
            }
            shown.insert("server".into(), listed.server.0.into());
            Value::Object(shown)
        });
        let servers = self.answers.iter().map(|answer| {
            json!({
                "server": answer.server,
                "seconds": answer.seconds,
                "one_in": answer.one_in,
                "tables": answer.tables.iter().map(|of_table| json!({
                    "table": self.table(of_table.table),
                    "reads_per_s": of_table.reads_per_s,
                    "writes_per_s": of_table.writes_per_s,
                })).collect::<Vec<_>>(),
            })
        });
        json!({
            "by": by.name(),
            "keys": keys.collect::<Vec<_>>(),
            "servers": servers.collect::<Vec<_>>(),
            "silent": self.silent,
        })
    }

    /// Within `width` columns: long keys are cut for that.
    fn as_text_within(&self, by: By, width: usize) -> String {
        let longest = |text: &str| text.lines().map(|line| line.chars().count()).max();
        let whole = self.as_text(by, usize::MAX);
        let over = longest(&whole).unwrap_or(0).saturating_sub(width);
        if over == 0 {
            return whole;
        }
        let keys = self.keys.iter().map(|(_, listed)| shown_key(listed));
        let key = keys.map(|key| key.chars().count()).max().unwrap_or(0);
        self.as_text(by, key.saturating_sub(over).max(KEY_MIN))
    }

    fn as_text(&self, by: By, key_max: usize) -> String {
        if self.keys.is_empty() {
            return "no keys were sampled".to_owned();
        }
        let mut text = match by {
            By::Reads => table(&["table", "key", "reads/s", "between", "server"], &[2, 4]),
            By::Writes => table(&["table", "key", "writes/s", "between", "server"], &[2, 4]),
            By::Bytes => table(&["table", "key", "size", "server"], &[2, 3]),
        };
        for ((id, _), listed) in &self.keys {
            let mut row = vec![self.table(*id), cut(shown_key(listed), key_max)];
            match by {
                By::Bytes => row.push(bytes(listed.amount as u64)),
                By::Reads | By::Writes => {
                    row.push(rate(listed.amount));
                    let (from, to) = (listed.amount - listed.less, listed.amount + listed.more);
                    row.push(format!("{} and {}", rate(from), rate(to)));
                }
            }
            row.push(listed.server.to_string());
            text.add_row(row);
        }
        table_text(&text)
    }
}

/// Its beginning, within `most` characters.
fn cut(key: String, most: usize) -> String {
    match key.char_indices().nth(most) {
        None => key,
        Some(_) => {
            let kept: String = key.chars().take(most.saturating_sub(3)).collect();
            format!("{kept}...")
        }
    }
}

/// The columns of the terminal; without end where there is none.
fn width() -> usize {
    match rustix::termios::tcgetwinsize(std::io::stdout()) {
        Ok(size) if size.ws_col > 0 => size.ws_col.into(),
        Ok(_) | Err(_) => usize::MAX,
    }
}

/// A key as text: its first bytes where it is long.
fn shown_key(listed: &Listed) -> String {
    let key = escaped(&listed.key);
    match listed.key_len as usize > listed.key.len() {
        true => format!("{key}... ({} bytes)", listed.key_len),
        false => key.into_owned(),
    }
}

/// A rate with as many digits as say something.
fn rate(per_s: f64) -> String {
    match per_s {
        0.0 => "0".to_owned(),
        ..10.0 => format!("{per_s:.2}"),
        _ => format!("{per_s:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pluvio_wire::{LargeKey, TopKeysOfTable};

    fn answer(server: u64, reads: &[(&[u8], f64)], largest: &[(&[u8], u64)]) -> TopKeys {
        let hash = |key: &[u8]| KeyHash::of(0, key);
        let hot = |(key, per_s): &(&[u8], f64)| HotKey {
            hash: hash(key),
            key: key.to_vec(),
            key_len: u32::try_from(key.len()).unwrap(),
            per_s: *per_s,
            less: 1.0,
            more: 2.0,
        };
        let large = |(key, bytes): &(&[u8], u64)| LargeKey {
            hash: hash(key),
            key: key.to_vec(),
            key_len: 300,
            bytes: *bytes,
        };
        TopKeys {
            server: ServerId(server),
            seconds: 30.0,
            one_in: 4,
            tables: vec![TopKeysOfTable {
                table: TableId(7),
                reads: reads.iter().map(hot).collect(),
                largest: largest.iter().map(large).collect(),
                ..TopKeysOfTable::default()
            }],
        }
    }

    #[test]
    fn keys_of_all_servers_are_merged_and_shown_escaped() {
        let answers = vec![
            answer(
                1,
                &[(b"a\n\xff", 5.0), (b"moved", 40.0)],
                &[(b"x", 3 << 20)],
            ),
            answer(2, &[(b"moved", 60.0), (b"b", 70.0)], &[(b"x", 1)]),
        ];
        let all = |by| All {
            tables: BTreeMap::from([(TableId(7), "redis:0".to_owned())]),
            keys: merge(&answers, by),
            answers: answers.clone(),
            silent: vec![ServerId(3)],
        };
        let text = all(By::Reads).as_text(By::Reads, usize::MAX);
        let lines: Vec<Vec<&str>> = text
            .lines()
            .map(|l| l.split_whitespace().collect())
            .collect();
        assert_eq!(
            lines[1],
            ["redis:0", "moved", "100", "98", "and", "104", "2"]
        );
        assert_eq!(lines[2][1..3], ["b", "70"]);
        assert_eq!(lines[3][1..3], ["a\\n\\xff", "5.00"]);
        let mut long = all(By::Reads);
        long.keys[0].1.key = vec![b'k'; 256];
        let narrow = long.as_text_within(By::Reads, 60);
        assert!(
            narrow.lines().all(|line| line.chars().count() <= 60),
            "{narrow}"
        );
        assert!(
            narrow.contains("kkk...") && narrow.contains("98 and 104"),
            "{narrow}"
        );
        let json = all(By::Reads).as_json(By::Reads);
        assert_eq!(json["keys"][0]["range"], json!([98.0, 104.0]));
        assert_eq!(json["silent"], json!([3]));
        let text = all(By::Bytes).as_text(By::Bytes, usize::MAX);
        assert!(
            text.contains("x... (300 bytes)") && text.contains("3MiB"),
            "{text}"
        );
        let text = all(By::Writes).as_text(By::Writes, usize::MAX);
        assert_eq!(text, "no keys were sampled");
    }
}
