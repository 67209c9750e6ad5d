//! A store of volatile keys that is nearly full all the time: as keys expire, new ones are written.
//!
//! Writers may write as much as a *steward* allows. It looks at the live bytes, and lets no more in
//! than fits the utilization, nor much faster than one lifetime replaces all. So keys expire one
//! after the other, and the store turns over once in each lifetime.

use super::{ExpiryBench, Held, port};
use crate::systems::Ours;
use crate::systems::drive::{all, on_a_core};
use crate::systems::pipeline::Pipeline;
use indicatif::ProgressBar;
use pluvio_bench::experiment::{Row, Spread};
use pluvio_bench::run::Collector;
use pluvio_console::failure::Failure;
use pluvio_env::{Clock, Env};
use pluvio_load::{KEY_BYTES, Random, key};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Connections that write, and commands of each at once.
const WRITERS: usize = 4;
const BATCH: u64 = 16;
/// How often live bytes are looked at.
const LOOK: Duration = Duration::from_millis(20);
/// How long a writer waits that may write no more, and one that was refused.
const PAUSE: Duration = Duration::from_millis(2);
/// How much faster than keys expire they may be written: a store that fell behind comes back.
const HASTE: f64 = 1.25;
/// Most seconds of writing that may be made up for.
const SAVED_S: f64 = 1.0;
/// Bytes of the log for an object beside key and value, about.
const OVERHEAD: u64 = 30;

/// What writers share.
#[derive(Default)]
struct Shared {
    /// Numbers of keys below this may be written.
    allowed: AtomicU64,
    /// The next number.
    next: AtomicU64,
    refused: AtomicU64,
    stop: AtomicBool,
}

impl Shared {
    /// Keys that are allowed, and not taken by a writer yet.
    fn left(&self) -> u64 {
        let allowed = self.allowed.load(Ordering::Relaxed);
        allowed.saturating_sub(self.next.load(Ordering::Relaxed))
    }

    /// Numbers of keys that are to be written now; `None` where there are none.
    fn take(&self) -> Option<Range<u64>> {
        let allowed = self.allowed.load(Ordering::Relaxed);
        let until = |from: u64| allowed.min(from + BATCH);
        let taken = self
            .next
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |from| {
                (from < allowed).then(|| until(from))
            });
        taken.ok().map(|from| from..until(from))
    }
}

/// One row.
pub(super) async fn full(
    env: &Env,
    bench: &ExpiryBench,
    cluster: &Ours,
    progress: &ProgressBar,
) -> Result<Vec<Row>, Failure> {
    progress.set_length(bench.minutes.ceil() as u64);
    progress.set_message(format!("full for {} minutes", bench.minutes));
    let address = port(cluster)?;
    let shared = Arc::new(Shared::default());
    let value: Arc<[u8]> = Random::new(bench.seed, 0).bytes(bench.value_size).into();
    let mut ends = Vec::new();
    for number in 0..WRITERS {
        let writer = Writer {
            clock: Arc::clone(&env.clock),
            address: address.clone(),
            value: Arc::clone(&value),
            lifetime: bench.lifetime.to_string(),
            shared: Arc::clone(&shared),
        };
        ends.push(on_a_core(env, number, writer.run()));
    }
    let stewarded = steward(env, bench, cluster, &shared).await;
    shared.stop.store(true, Ordering::Relaxed);
    let mut latencies = Collector::new();
    for one in all(ends).await? {
        latencies.add(&one);
    }
    let seen = latencies.latencies();
    let refused = shared.refused.load(Ordering::Relaxed);
    let row = Row::new()
        .with("part", "full")
        .with("memory_bytes", bench.memory.bytes())
        .with("value_size", bench.value_size)
        .with("minutes", bench.minutes)
        .and(stewarded?)
        .with("refused", refused)
        .with("write_p50_us", seen.us(0.5))
        .with("write_p99_us", seen.us(0.99));
    Ok(vec![row])
}

/// Lets writers write, until the time is over; tells how full the store was behind the first
/// lifetime.
async fn steward(
    env: &Env,
    bench: &ExpiryBench,
    cluster: &Ours,
    shared: &Shared,
) -> Result<Row, Failure> {
    let each = KEY_BYTES as u64 + bench.value_size as u64 + OVERHEAD;
    let lifetime = Duration::from_secs(bench.lifetime);
    let memory = Held::now(cluster).await?.memory;
    let wanted = memory / 100 * bench.utilization;
    let rate = HASTE * wanted as f64 / each as f64 / lifetime.as_secs_f64();
    let start = env.clock.now();
    let until = start + Duration::from_secs_f64(bench.minutes * 60.0);
    let mut shares = Vec::new();
    // When was looked last, and how many keys the pace had let in by then that were not written.
    let (mut last, mut saved) = (start, 0.0_f64);
    let held = loop {
        let held = Held::now(cluster).await?;
        let now = env.clock.now();
        if now.since(start) > lifetime + Duration::from_secs(2) {
            shares.push(100.0 * held.live as f64 / held.memory as f64);
        }
        if now >= until {
            break held;
        }
        let left = shared.left();
        saved = (saved + rate * now.since(last).as_secs_f64()).min(rate * SAVED_S);
        last = now;
        // Keys that are allowed and not written yet take room as well.
        let room = (wanted.saturating_sub(held.live) / each).saturating_sub(left);
        let more = (saved as u64).min(room);
        saved -= more as f64;
        shared.allowed.fetch_add(more, Ordering::Relaxed);
        env.clock.sleep(LOOK).await;
    };
    let share = Spread::of(&shares).unwrap_or_default();
    let seconds = env.clock.now().since(start).as_secs_f64();
    Ok(Row::new()
        .and(share.cells("live_percent"))
        .with("written", shared.next.load(Ordering::Relaxed))
        .with("expired", held.expired)
        .with("expired_per_s", held.expired as f64 / seconds)
        .with("cleaner_moved_bytes", held.cleaned))
}

struct Writer {
    clock: Arc<dyn Clock>,
    address: String,
    value: Arc<[u8]>,
    lifetime: String,
    shared: Arc<Shared>,
}

impl Writer {
    /// Latencies of what was sent at once.
    async fn run(self) -> Result<Collector, Failure> {
        let mut pipeline = Pipeline::open(&self.address).await?;
        let mut latencies = Collector::new();
        let shared = &*self.shared;
        while !shared.stop.load(Ordering::Relaxed) {
            let Some(numbers) = shared.take() else {
                self.clock.sleep(PAUSE).await;
                continue;
            };
            for number in numbers {
                let lifetime = self.lifetime.as_bytes();
                pipeline.add(&[b"SET", &key(number), &self.value, b"EX", lifetime]);
            }
            let start = self.clock.now();
            let mut refused = 0;
            let each = |_, reply: pluvio_load::resp::Reply<'_>| {
                refused += u64::from(!reply.is_ok());
                Ok(())
            };
            pipeline.run(each).await?;
            latencies.record(self.clock.now().since(start));
            if refused > 0 {
                shared.refused.fetch_add(refused, Ordering::Relaxed);
                self.clock.sleep(PAUSE).await;
            }
        }
        Ok(latencies)
    }
}
