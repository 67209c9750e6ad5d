//! Transactions whose keys are on several servers, while servers are killed: those with the keys,
//! and those that clients are connected to.

use crate::support::Random;
use crate::support::cluster::{Cluster, Setup};
use crate::support::patience::wait_for;
use crate::support::resp::{Reply, Resp};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};

/// They have no tag, so they are on all servers.
const ACCOUNTS: u64 = 12;
const CLIENTS: u64 = 6;

fn account(number: u64) -> String {
    format!("account {number}")
}

/// Clients that move amounts between accounts, and read all of them now and then.
pub(super) struct Bank {
    done: Arc<AtomicU64>,
    is_over: Arc<AtomicBool>,
    clients: Vec<JoinHandle<()>>,
}

impl Bank {
    pub(super) fn open(cluster: &Cluster, seed: u64) -> Self {
        let (done, is_over) = (Arc::<AtomicU64>::default(), Arc::<AtomicBool>::default());
        let clients = (0..CLIENTS).map(|number| {
            let (done, is_over) = (Arc::clone(&done), Arc::clone(&is_over));
            let addresses = cluster.all_redis();
            let mut random = Random::new(seed ^ number);
            let client = thread::Builder::new().spawn(move || {
                let mut connection = None;
                while !is_over.load(Ordering::Relaxed) {
                    let at = random.below(addresses.len() as u64) as usize;
                    let Some(mut open) = connection
                        .take()
                        .or_else(|| Resp::try_connect(&addresses[at]).ok())
                    else {
                        continue;
                    };
                    let moved = match random.below(5) {
                        0 => sum(&mut open).map(|sum| assert_eq!(sum, 0, "money was made or lost")),
                        _ => move_amount(&mut open, &mut random),
                    };
                    // Its server was killed: the next one goes on.
                    if moved.is_some() {
                        done.fetch_add(1, Ordering::Relaxed);
                        connection = Some(open);
                    }
                }
            });
            client.expect("a thread is begun")
        });
        Self {
            clients: clients.collect(),
            done,
            is_over,
        }
    }

    #[track_caller]
    pub(super) fn wait_for(&self, more: u64) {
        let wanted = self.done.load(Ordering::Relaxed) + more;
        wait_for("transactions", || {
            let missing = wanted.saturating_sub(self.done.load(Ordering::Relaxed));
            let failed = self.clients.iter().any(JoinHandle::is_finished);
            (missing == 0 || failed)
                .then_some(())
                .ok_or(format!("{missing} more"))
        });
    }

    #[track_caller]
    pub(super) fn close(self) {
        self.is_over.store(true, Ordering::Relaxed);
        for client in self.clients {
            client.join().unwrap();
        }
    }
}

/// `None`: it is not known, or was not done.
fn move_amount(redis: &mut Resp, random: &mut Random) -> Option<()> {
    let (from, to) = (random.below(ACCOUNTS), random.below(ACCOUNTS));
    let amount = random.below(100).to_string();
    redis.try_call(&["MULTI"]).ok()?;
    redis.try_call(&["DECRBY", &account(from), &amount]).ok()?;
    redis.try_call(&["INCRBY", &account(to), &amount]).ok()?;
    match redis.try_call(&["EXEC"]).ok()? {
        Reply::Array(replies) => {
            assert_eq!(replies.len(), 2);
            Some(())
        }
        _ => None,
    }
}

/// The sum of all accounts, which are read at one moment.
pub(super) fn sum(redis: &mut Resp) -> Option<i64> {
    redis.try_call(&["MULTI"]).ok()?;
    for number in 0..ACCOUNTS {
        redis.try_call(&["GET", &account(number)]).ok()?;
    }
    let Reply::Array(replies) = redis.try_call(&["EXEC"]).ok()? else {
        return None;
    };
    let number = |reply: &Reply| match reply {
        Reply::Bulk(text) => core::str::from_utf8(text).ok()?.parse::<i64>().ok(),
        _ => Some(0),
    };
    replies.iter().map(number).sum()
}

#[test]
fn amounts_on_several_servers_add_up_while_servers_are_killed() {
    let seed = Random::seed();
    let mut cluster = Setup::servers(5).start();
    let bank = Bank::open(&cluster, seed);
    bank.wait_for(300);
    for victim in [3, 4] {
        cluster.kill(victim);
        bank.wait_for(300);
        cluster.wait_settled(if victim == 3 { 4 } else { 3 });
        cluster.wait_replicated();
    }
    bank.close();
    let total = |cluster: &Cluster| {
        let mut redis = cluster.connect(0);
        wait_for("all accounts", || {
            sum(&mut redis).ok_or("not yet".to_owned())
        })
    };
    assert_eq!(total(&cluster), 0);
    cluster.kill_all();
    cluster.restart();
    assert_eq!(total(&cluster), 0);
}
