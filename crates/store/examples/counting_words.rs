//! Counts the words of standard input in an embedded store.
//!
//! `cargo run --release -p pluvio-store --example counting_words < README.md`

use pluvio_store::{Size, Store};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let store = Store::builder().memory(Size::mib(64)).build()?;
    let words = store.create_table("words")?;
    for line in std::io::stdin().lines() {
        for word in line?.split_whitespace() {
            words.increment(word.as_bytes(), 1)?;
        }
    }
    let mut counts: Vec<(u64, String)> = words
        .iter()
        .map(|(word, count)| {
            let count = String::from_utf8_lossy(&count).parse().unwrap_or(0);
            (count, String::from_utf8_lossy(&word).into_owned())
        })
        .collect();
    counts.sort_by(|a, b| b.cmp(a));
    for (count, word) in counts.iter().take(10) {
        println!("{count:8} {word}");
    }
    let stats = store.stats();
    println!(
        "{} words, {} bytes resident",
        stats.objects, stats.resident_bytes
    );
    Ok(())
}
