//! The loads of `pluvio bench commands`, and their callers.

use crate::systems::pipeline::{Pipeline, answered};
use crate::systems::turns::{Caller, Length, turn};
use pluvio_console::failure::Failure;
use pluvio_env::Env;
use pluvio_load::resp::Reply;
use pluvio_load::{KEY_BYTES, Random, key};
use std::sync::Arc;

/// Deletes a lock if it is the caller's, as clients' libraries release theirs.
pub const RELEASE: &[u8] = b"local owner = redis.call('get', KEYS[1])
if owner ~= ARGV[1] then
    return 0
end
redis.call('del', KEYS[1])
return 1";
/// What a lock holds.
const TOKEN: &[u8] = b"0123456789abcdef0123456789abcdef";
/// Milliseconds that a lock is held at most, and that volatile keys live: longer than a run's turn.
const LOCK_MS: &[u8] = b"600000";
/// Seconds that volatile keys live: longer than a run.
const LIFETIME_S: &[u8] = b"86400";
/// Commands of a block.
const BLOCK: usize = 10;

/// What is done again and again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Load {
    /// Makes objects; not measured.
    Fill(Fill),
    /// SET of random keys.
    Set,
    /// SET with a lifetime.
    SetVolatile,
    /// GET of random keys.
    Get,
    /// GET of keys that have a lifetime.
    GetVolatile,
    /// MULTI, ten SETs, EXEC.
    Block,
    /// SET with NX and PX, of a key that is free: the lock is taken.
    Acquire,
    /// EVALSHA of [`RELEASE`]: the lock is released.
    Release,
    /// DEL.
    Delete,
    /// A key expires, and nobody reads it.
    Expired,
}

/// Which objects are made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fill {
    /// For SET and GET.
    Plain,
    /// For the same with a lifetime.
    Volatile,
    /// For DEL.
    ToDelete,
    /// Locks that are held.
    Locks,
    /// Keys with a lifetime of this many milliseconds.
    Short(u64),
}

impl Load {
    /// All that callers do, in the order of the table.
    pub const ALL: [Self; 8] = [
        Self::Set,
        Self::SetVolatile,
        Self::Get,
        Self::GetVolatile,
        Self::Block,
        Self::Acquire,
        Self::Release,
        Self::Delete,
    ];
    /// Commands that are sent at once where the time does not count.
    pub const FILL_PIPELINE: usize = 64;

    /// For tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Fill(_) => "fill",
            Self::Set => "SET",
            Self::SetVolatile => "SET EX",
            Self::Get => "GET",
            Self::GetVolatile => "GET volatile",
            Self::Block => "EXEC of ten",
            Self::Acquire => "SET NX PX",
            Self::Release => "EVALSHA",
            Self::Delete => "DEL",
            Self::Expired => "expired",
        }
    }

    /// The plain command that it is compared with.
    pub fn base(self) -> Option<Self> {
        match self {
            Self::SetVolatile | Self::Block | Self::Acquire | Self::Release => Some(Self::Set),
            Self::GetVolatile => Some(Self::Get),
            Self::Expired => Some(Self::Delete),
            Self::Fill(_) | Self::Set | Self::Get | Self::Delete => None,
        }
    }

    fn prefix(self) -> [u8; 4] {
        *match self {
            Self::Fill(Fill::Plain) | Self::Set | Self::Get | Self::Block => b"key:",
            Self::Fill(Fill::Volatile) | Self::SetVolatile | Self::GetVolatile => b"vol:",
            Self::Fill(Fill::Locks) | Self::Acquire | Self::Release => b"lck:",
            Self::Fill(Fill::ToDelete) | Self::Delete => b"del:",
            Self::Fill(Fill::Short(_)) | Self::Expired => b"exp:",
        }
    }

    /// Whether its keys are drawn at random. Others are each used once.
    fn is_random(self) -> bool {
        match self {
            Self::Set | Self::SetVolatile | Self::Get | Self::GetVolatile | Self::Block => true,
            Self::Fill(_) | Self::Acquire | Self::Release | Self::Delete | Self::Expired => false,
        }
    }
}

/// What all callers of a turn know.
#[derive(Clone)]
pub struct Plan {
    pub address: String,
    /// The hash of [`RELEASE`].
    pub script: Arc<[u8]>,
    pub load: Load,
    pub pipeline: usize,
    pub callers: usize,
    /// Operations of all callers.
    pub requests: u64,
    /// Keys that are drawn at random.
    pub keys: u64,
    pub value: Arc<[u8]>,
    pub seed: u64,
}

impl Plan {
    /// Makes what the load needs.
    ///
    /// # Errors
    /// The system refused.
    pub async fn prepare(&self, env: &Env) -> Result<(), Failure> {
        match self.load {
            Load::Release => self.instead(env, Load::Fill(Fill::Locks)).await,
            Load::Delete => self.instead(env, Load::Fill(Fill::ToDelete)).await,
            _ => Ok(()),
        }
    }

    /// Removes what the load left.
    ///
    /// # Errors
    /// The system refused.
    pub async fn tidy(&self, env: &Env) -> Result<(), Failure> {
        match self.load {
            Load::Acquire => self.instead(env, Load::Release).await,
            _ => Ok(()),
        }
    }

    /// Does as much of another load, unmeasured.
    ///
    /// # Errors
    /// The system refused.
    pub async fn instead(&self, env: &Env, load: Load) -> Result<(), Failure> {
        let plan = Self {
            load,
            pipeline: Load::FILL_PIPELINE,
            ..self.clone()
        };
        let done = turn::<Operator>(env, &plan, &[], self.callers, Length::Work);
        done.await.map(drop)
    }
}

/// One caller.
pub struct Operator {
    plan: Plan,
    pipeline: Pipeline,
    random: Random,
    /// Numbers of the operations that are left.
    next: u64,
    end: u64,
}

impl Caller for Operator {
    type Load = Plan;

    async fn open(plan: &Plan, number: usize) -> Result<Self, Failure> {
        let border = |number: usize| plan.requests * number as u64 / plan.callers as u64;
        Ok(Self {
            pipeline: Pipeline::open(&plan.address).await?,
            random: Random::new(plan.seed, number as u64),
            next: border(number),
            end: border(number + 1),
            plan: plan.clone(),
        })
    }

    async fn next(&mut self) -> Result<u64, Failure> {
        let count = (self.end - self.next).min(self.plan.pipeline as u64);
        if count == 0 {
            return Ok(0);
        }
        for number in self.next..self.next + count {
            self.add(number);
        }
        self.next += count;
        let load = self.plan.load;
        self.pipeline
            .run(|number, reply| check(load, number, answered(reply)?))
            .await?;
        Ok(count)
    }
}

impl Operator {
    fn key(&mut self, number: u64) -> [u8; KEY_BYTES] {
        let number = match self.plan.load.is_random() {
            true => self.random.below(self.plan.keys),
            false => number,
        };
        let mut key = key(number);
        let prefix = self.plan.load.prefix();
        key[..prefix.len()].copy_from_slice(&prefix);
        key
    }

    fn add(&mut self, number: u64) {
        let key = &self.key(number)[..];
        let (pipeline, value) = (&mut self.pipeline, &self.plan.value[..]);
        match self.plan.load {
            Load::Fill(Fill::Plain | Fill::ToDelete) | Load::Set => {
                pipeline.add(&[b"SET", key, value]);
            }
            Load::Fill(Fill::Volatile) | Load::SetVolatile => {
                pipeline.add(&[b"SET", key, value, b"EX", LIFETIME_S]);
            }
            Load::Get | Load::GetVolatile => pipeline.add(&[b"GET", key]),
            Load::Fill(Fill::Locks) | Load::Acquire => {
                pipeline.add(&[b"SET", key, TOKEN, b"NX", b"PX", LOCK_MS]);
            }
            Load::Release => {
                let script = &self.plan.script[..];
                pipeline.add(&[b"EVALSHA", script, b"1", key, TOKEN]);
            }
            Load::Delete => pipeline.add(&[b"DEL", key]),
            Load::Fill(Fill::Short(ms)) => {
                let ms = ms.to_string();
                pipeline.add(&[b"SET", key, value, b"PX", ms.as_bytes()]);
            }
            Load::Block => self.add_block(),
            Load::Expired => {}
        }
    }

    fn add_block(&mut self) {
        self.pipeline.add(&[b"MULTI"]);
        for _ in 0..BLOCK {
            let key = self.key(0);
            self.pipeline.add(&[b"SET", &key, &self.plan.value]);
        }
        self.pipeline.add(&[b"EXEC"]);
    }
}

/// Whether this is the reply that the load must get.
fn check(load: Load, number: usize, reply: Reply<'_>) -> Result<(), Failure> {
    let is_right = match load {
        Load::Block => match number % (BLOCK + 2) == BLOCK + 1 {
            true => matches!(&reply, Reply::Array(items) if items.len() == BLOCK),
            false => matches!(reply, Reply::Simple(_)),
        },
        Load::Get | Load::GetVolatile => matches!(reply, Reply::Bulk(_)),
        Load::Release | Load::Delete => reply == Reply::Integer(1),
        Load::Fill(_) | Load::Set | Load::SetVolatile | Load::Acquire | Load::Expired => {
            reply.is_ok()
        }
    };
    match is_right {
        true => Ok(()),
        false => Err(Failure::new(format!("{} gave {reply:?}", load.name()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_that_tells_of_nothing_done_is_no_answer() {
        let block = || Reply::Array(vec![Reply::Nil; BLOCK]);
        for (load, number, reply) in [
            (Load::Set, 0, Reply::Simple("OK".into())),
            (Load::Release, 3, Reply::Integer(1)),
            (Load::Get, 0, Reply::bulk("v")),
            (Load::Block, 23, block()),
            (Load::Block, 12, Reply::Simple("OK".into())),
        ] {
            assert!(check(load, number, reply).is_ok(), "{load:?}");
        }
        for (load, number, reply) in [
            (Load::Acquire, 0, Reply::Nil),
            (Load::Release, 3, Reply::Integer(0)),
            (Load::GetVolatile, 0, Reply::Nil),
            (Load::Block, 23, Reply::Nil),
            (Load::Block, 12, block()),
        ] {
            assert!(check(load, number, reply).is_err(), "{load:?}");
        }
    }
}
