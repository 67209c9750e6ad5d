//! Quotas of tables: the request that sets them, and sharing them among the owners of tablets.
//!
//! One task looks at all tables with quotas, about twice a second, and when their owners change:
//!
//! 1. It asks the owners what they have used.
//! 2. `plan` says what share each should have.
//! 3. Owners that have more are given less, and say that they have it.
//! 4. Then all are given their shares.
//!
//! The quota is stored with the table. Shares are not: a coordinator that takes over asks for them.
//! `docs/quotas.md` tells the whole way.

mod plan;

use crate::context::Context;
use crate::state::{State, TableRecord};
use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use futures_util::stream::{self, StreamExt};
use plan::{Book, Target};
use pluvio_env::{Moment, timeout};
use pluvio_units::{ServerId, TableId};
use pluvio_wire::{
    FatalKind, QUOTAS_SINCE, QuotaRound, QuotaShare, QuotaState, QuotaUse, QuotaWish, Refusal,
    SetTable, ShareQuotas, TableInfo, TableQuota, TableRef,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The pause between two rounds. A write that its owner has no share for waits that long.
const PAUSE: Duration = Duration::from_millis(500);
/// The least pause, when owners change all the time.
const PAUSE_MIN: Duration = Duration::from_millis(20);
/// Servers that do not answer within this time keep what they have.
const LIMIT: Duration = Duration::from_millis(500);
/// Servers asked at a time.
const CALLS_MAX: usize = 64;

impl State {
    /// A quota after a change; `None` where there is and was none.
    ///
    /// # Errors
    /// The cluster does not speak a version that knows quotas, or the quota is too large.
    pub(in crate::work) fn changed_quota(
        &self,
        quota: Option<TableQuota>,
        wish: &QuotaWish,
    ) -> Result<Option<TableQuota>, Refusal> {
        if wish.is_empty() {
            return Ok(quota);
        }
        let active = self.globals.active;
        if active < QUOTAS_SINCE {
            let message = format!(
                "quotas need version {QUOTAS_SINCE} of the cluster, which speaks {active}: run the newer version of pluvio everywhere, and then `pluvio finalize`"
            );
            return Err(Refusal::fatal(FatalKind::WrongVersion, message));
        }
        let changed = quota.unwrap_or(TableQuota::NONE).with(wish);
        let changed = changed.map_err(|why| Refusal::fatal(FatalKind::Other, why))?;
        Ok((quota.is_some() || !changed.is_none()).then_some(changed))
    }

    /// Changes what is set of a table.
    ///
    /// # Errors
    /// There is no such table, or see [`State::changed_quota`].
    pub(in crate::work) fn set_table(&mut self, request: &SetTable) -> Result<TableId, Refusal> {
        let table = self.find(&request.table)?;
        let (id, quota) = (table.id, table.quota);
        let quota = self.changed_quota(quota, &request.quota)?;
        let record = self.table_mut(id).expect("it was just found");
        record.quota = quota;
        Ok(id)
    }

    /// The tables that have, or had, a quota.
    fn with_quotas(&self) -> impl Iterator<Item = (&Arc<TableRecord>, TableQuota)> {
        let tables = self.tables.values().filter(|table| !table.dropping);
        tables.filter_map(|table| Some((table, table.quota?)))
    }

    /// Whether any table has, or had, a quota.
    pub(in crate::work) fn wants_quotas(&self) -> bool {
        self.with_quotas().next().is_some()
    }

    /// Those tables, and the servers that are up and own something of them.
    fn quota_owners(&self) -> BTreeMap<TableId, (TableQuota, BTreeSet<ServerId>)> {
        let owners = |table: &TableRecord| {
            let owners = table.tablets.iter().map(|tablet| tablet.owner);
            owners.filter(|owner| self.is_up(*owner)).collect()
        };
        let tables = self.with_quotas();
        tables
            .map(|(table, quota)| (table.id, (quota, owners(table))))
            .collect()
    }
}

/// Whether nothing of a table comes or goes, as far as it is stored.
fn is_settled(state: &State, table: TableId) -> bool {
    state.tables.get(&table).is_some_and(|table| {
        let mut tablets = table.tablets.iter();
        table.moves.is_empty()
            && tablets.all(|tablet| tablet.is_settled() && state.is_up(tablet.owner))
    })
}

/// The shares of a table, and the operations done.
#[derive(Default)]
struct Known {
    book: Book,
    looked: Option<Moment>,
    operations: BTreeMap<(ServerId, u64), u64>,
    per_second: u64,
}

impl Known {
    /// How many operations were done in a second since the look before.
    fn count(&mut self, now: Moment) {
        let operations = self.book.operations();
        if let Some(then) = self.looked {
            let more = operations.iter().map(|(holder, count)| {
                let before = self.operations.get(holder).copied();
                count.saturating_sub(before.unwrap_or(*count))
            });
            let more = u128::from(more.sum::<u64>());
            let millis = now.since(then).as_millis().max(1);
            self.per_second = u64::try_from(more * 1000 / millis).unwrap_or(u64::MAX);
        }
        (self.looked, self.operations) = (Some(now), operations);
    }
}

/// Uses by table and server.
type Uses = BTreeMap<TableId, BTreeMap<ServerId, QuotaUse>>;

/// The work of `Work::Quotas`, and the request that leads to it.
pub(crate) struct Quotas {
    context: Arc<Context>,
    known: Mutex<BTreeMap<TableId, Known>>,
    /// Messages so far.
    number: AtomicU64,
}

impl Quotas {
    pub(super) fn new(context: Arc<Context>) -> Self {
        Self {
            context,
            known: Mutex::default(),
            number: AtomicU64::new(0),
        }
    }

    fn known(&self) -> MutexGuard<'_, BTreeMap<TableId, Known>> {
        // Held for single steps.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets what is to be set of a table; answers when it is stored.
    pub(crate) async fn set_table(&self, request: SetTable) -> Result<TableInfo, Refusal> {
        let set = move |state: &mut State| state.set_table(&request);
        let id = self.context.ledger.change_for_caller(set).await?;
        let state = self.context.state();
        let info = state.info(state.find(&TableRef::Id(id))?);
        tracing::info!(table = %id, name = info.name, quota = %info.quota, "quota of a table");
        Ok(self.described(info))
    }

    /// The table, with how it uses its quota.
    pub(crate) fn described(&self, mut info: TableInfo) -> TableInfo {
        if info.quota.is_none() {
            return info;
        }
        let known = self.known();
        info.quota_state = known.get(&info.id).map(|known| {
            let (bytes, refused_bytes, refused_operations) = known.book.shown();
            QuotaState {
                bytes,
                operations: known.per_second,
                refused_bytes,
                refused_operations,
            }
        });
        info
    }

    /// Runs as long as a table has, or had, a quota.
    pub(super) async fn share(&self) {
        loop {
            let state = self.context.state();
            if !state.wants_quotas() {
                self.known().clear();
                return;
            }
            self.round(&state).await;
            let seen = state.quota_owners();
            let ledger = &self.context.ledger;
            let changed = ledger.until(|state| state.quota_owners() != seen);
            let changed = timeout(&*self.context.env.clock, PAUSE, changed).await;
            if changed.is_ok() {
                self.context.sleep(PAUSE_MIN).await;
            }
        }
    }

    async fn round(&self, state: &Arc<State>) {
        let tables = state.quota_owners();
        self.known().retain(|table, _| tables.contains_key(table));
        let mut asked: BTreeMap<ServerId, Vec<QuotaShare>> = BTreeMap::new();
        for (table, (_, owners)) in &tables {
            for owner in owners {
                let (table, grant) = (*table, None);
                let of_owner = asked.entry(*owner).or_default();
                of_owner.push(QuotaShare { table, grant });
            }
        }
        let mut uses = self.exchange(state, asked).await;
        let now = self.context.now();
        let after = self.context.state();
        let mut targets = BTreeMap::new();
        let mut lowered = Vec::new();
        for (table, (quota, owners)) in &tables {
            let uses = uses.remove(table).unwrap_or_default();
            let all = owners.iter().all(|owner| uses.contains_key(owner));
            let settled = all
                && uses.values().all(|used| used.settled)
                && is_settled(state, *table)
                && is_settled(&after, *table)
                && after.quota_owners().get(table).map(|(_, now)| now) == Some(owners);
            let mut known = self.known();
            let known = known.entry(*table).or_default();
            known.book.look(owners, uses, settled);
            known.count(now);
            let wanted = known.book.targets(*quota);
            lowered.push((*table, known.book.lowered(&wanted)));
            targets.insert(*table, wanted);
        }
        self.give(state, lowered).await;
        let mut raised = Vec::new();
        for (table, (quota, _)) in &tables {
            let mut known = self.known();
            if let (Some(known), Some(wanted)) = (known.get_mut(table), targets.get(table)) {
                raised.push((*table, known.book.raised(*quota, wanted)));
            }
        }
        self.give(state, raised).await;
    }

    /// Gives shares, and notes what their owners say.
    async fn give(&self, state: &Arc<State>, shares: Vec<(TableId, BTreeMap<ServerId, Target>)>) {
        let mut given: BTreeMap<ServerId, Vec<QuotaShare>> = BTreeMap::new();
        for (table, targets) in shares {
            let Some(record) = state.tables.get(&table) else {
                continue;
            };
            let quota = record.quota.unwrap_or(TableQuota::NONE);
            let known = self.known();
            let Some(known) = known.get(&table) else {
                continue;
            };
            for (server, target) in &targets {
                let named = (record.name.as_str(), quota);
                let grant = known.book.grant(*server, target, named);
                let of_server = given.entry(*server).or_default();
                of_server.push(QuotaShare { table, grant });
            }
        }
        for (table, uses) in self.exchange(state, given).await {
            if let Some(known) = self.known().get_mut(&table) {
                known.book.confirm(uses);
            }
        }
    }

    /// Sends each server its message. Gives what those say that answer in time.
    async fn exchange(
        &self,
        state: &Arc<State>,
        messages: BTreeMap<ServerId, Vec<QuotaShare>>,
    ) -> Uses {
        let number = self.number.fetch_add(1, Ordering::Relaxed) + 1;
        let term = self.context.ledger.tenure().term();
        let round = QuotaRound { term, number };
        let calls = &self.context.calls;
        let calls = stream::iter(messages).map(|(server, tables)| async move {
            let info = &state.servers.get(&server)?.info;
            let request = ShareQuotas { round, tables };
            match calls.call(info, &request, LIMIT).await {
                Ok(reply) => Some((server, reply.uses)),
                Err(error) => {
                    tracing::debug!(%server, %error, "shares of quotas not confirmed");
                    None
                }
            }
        });
        let answers = calls.buffer_unordered(CALLS_MAX);
        let answers: Vec<_> = answers.filter_map(|a| async move { a }).collect().await;
        let mut uses = Uses::new();
        for (server, said) in answers {
            for used in said {
                uses.entry(used.table).or_default().insert(server, used);
            }
        }
        uses
    }
}
