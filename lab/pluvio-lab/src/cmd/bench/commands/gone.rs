//! The cost of a key that expires and that nobody reads. It is the processor time of a server in
//! which a known number of keys goes. That of an equal time in which none does is taken off.

use super::load::{Fill, Load, Plan};
use crate::systems::pipeline::Pipeline;
use crate::systems::turns::Turn;
use pluvio_bench::processor_us;
use pluvio_bench::run::Latencies;
use pluvio_console::failure::Failure;
use pluvio_env::Env;
use pluvio_load::resp::Reply;
use std::time::Duration;

/// How often a server is asked how many keys it has.
const LOOK: Duration = Duration::from_millis(100);
/// How long keys may take to be gone behind their deadline.
const PATIENCE: Duration = Duration::from_secs(60);
/// Milliseconds that keys live: they must all be written before the first one expires.
const LIFETIME_LEAST_MS: u64 = 1_000;
/// Keys that a server surely takes in a millisecond.
const KEYS_PER_MS: u64 = 40;

/// Lets keys expire; the turn tells the processor time for each.
///
/// # Errors
/// The system refused, was too slow to write the keys, or does not drop them.
pub async fn expired(env: &Env, plan: &Plan, pids: &[u32]) -> Result<Turn, Failure> {
    let mut pipeline = Pipeline::open(&plan.address).await?;
    let others = count(&mut pipeline).await?;
    let lifetime_ms = LIFETIME_LEAST_MS + plan.requests / KEYS_PER_MS;
    let fill = Load::Fill(Fill::Short(lifetime_ms));
    plan.instead(env, fill).await?;
    let start = env.clock.now();
    let before = processor_us(pids);
    if count(&mut pipeline).await? != others + plan.requests {
        return Err(Failure::new(format!(
            "{} keys were not written in the {lifetime_ms} ms that they live: give fewer --requests",
            plan.requests
        )));
    }
    let until = start + Duration::from_millis(lifetime_ms) + PATIENCE;
    let mut looks = 0;
    while count(&mut pipeline).await? > others {
        if env.clock.now() > until {
            return Err(Failure::new(format!(
                "keys are not dropped within {PATIENCE:?} behind their deadline"
            )));
        }
        env.clock.sleep(LOOK).await;
        looks += 1;
    }
    let took = env.clock.now().since(start);
    let with = processor_us(pids) - before;
    let before = processor_us(pids);
    for _ in 0..looks {
        count(&mut pipeline).await?;
        env.clock.sleep(LOOK).await;
    }
    let without = processor_us(pids) - before;
    Ok(Turn {
        ops_per_s: plan.requests as f64 / took.as_secs_f64().max(1e-9),
        latencies: Latencies::default(),
        server_us: (with - without).max(0.0) / plan.requests as f64,
    })
}

async fn count(pipeline: &mut Pipeline) -> Result<u64, Failure> {
    match pipeline.call(&[b"DBSIZE"]).await? {
        Reply::Integer(count) => Ok(u64::try_from(count).unwrap_or(0)),
        other => Err(Failure::new(format!("DBSIZE gave {other:?}"))),
    }
}
