//! Tables and tablets: creating, dropping, splitting.
//!
//! Each of these stores what shall be, and leaves telling the servers to the tasks of
//! `assign`, `drop_table` and `cut`, which the supervisor starts.

use crate::shared::Shared;
use crate::state::{State, TableRecord, TabletRecord, no_such_table};
use core::time::Duration;
use pluvio_env::{Rng, timeout};
use pluvio_units::{HashRange, KeyHash, ServerId, TableId};
use pluvio_wire::{
    CreateTable, DropTable, FatalKind, Refusal, RetryReason, SplitTablet, TableInfo, TableRef,
    TabletState, check_table_name,
};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Most tables. Lists of them travel whole, and every change looks at all of them.
const TABLES_MAX: usize = 4096;
/// Most tablets of one table. Maps of tables travel whole; this is 64 KiB at most.
pub(crate) const TABLETS_MAX: usize = 1024;
/// The longest a request waits for servers to follow before it asks to come again.
const WAIT_MAX: Duration = Duration::from_secs(1);
/// When to come again.
pub(crate) const COME_AGAIN: Duration = Duration::from_millis(50);

impl State {
    /// Stores a new table, its tablets not yet confirmed; or finds the one of that name.
    pub(crate) fn create_table(
        &mut self,
        request: CreateTable,
        seed: u64,
        rng: &dyn Rng,
    ) -> Result<TableId, Refusal> {
        check_table_name(&request.name)?;
        if request.span == Some(0) {
            let message = "a table spans at least one server";
            return Err(Refusal::fatal(FatalKind::Malformed, message));
        }
        if let Ok(table) = self.find(&TableRef::Name(request.name.clone())) {
            return Ok(table.id);
        }
        if self.tables.len() >= TABLES_MAX {
            let message = format!("the cluster has {TABLES_MAX} tables, the most it can have");
            return Err(Refusal::fatal(FatalKind::Other, message));
        }
        let owners = self.choose_owners(request.span, rng);
        if owners.is_empty() {
            let after = Duration::from_millis(200);
            return Err(Refusal::retry(after, RetryReason::NotServing));
        }
        let id = self.globals.last_table.next();
        self.globals.last_table = id;
        let tablets = HashRange::ALL
            .split(owners.len() as u64)
            .into_iter()
            .zip(owners)
            .map(|(range, owner)| TabletRecord::new(range, owner))
            .collect();
        let record = TableRecord {
            id,
            name: request.name,
            seed,
            dropping: false,
            tablets,
            cuts: Vec::new(),
            moves: Vec::new(),
        };
        self.tables.insert(id, Arc::new(record));
        Ok(id)
    }

    /// The servers with the fewest tablets; among equals, any.
    fn choose_owners(&self, span: Option<u32>, rng: &dyn Rng) -> Vec<ServerId> {
        let mut candidates: Vec<(usize, ServerId)> = self
            .loads()
            .into_iter()
            .map(|(server, load)| (load, server))
            .collect();
        rng.shuffle(&mut candidates);
        candidates.sort_by_key(|(load, _)| *load);
        let wanted = span.map_or(TABLETS_MAX, |n| n as usize).min(TABLETS_MAX);
        candidates.truncate(wanted);
        candidates.into_iter().map(|(_, server)| server).collect()
    }

    /// Gives tablets that nobody confirmed, of owners that crashed and serve nothing any more, to
    /// servers that are up. False when there is none.
    pub(crate) fn reassign(
        &mut self,
        table: TableId,
        crashed: &BTreeSet<ServerId>,
        rng: &dyn Rng,
    ) -> bool {
        let Some(record) = self.tables.get(&table) else {
            return true;
        };
        let orphans: Vec<usize> = (0..record.tablets.len())
            .filter(|i| {
                let tablet = &record.tablets[*i];
                tablet.state == TabletState::Assigning && crashed.contains(&tablet.owner)
            })
            .collect();
        for index in orphans {
            let Some(owner) = self.choose_owners(Some(1), rng).pop() else {
                return false;
            };
            let record = self.table_mut(table).expect("it was just there");
            record.tablets[index].owner = owner;
        }
        true
    }

    /// Takes a table's name away; its tablets stay listed until their owners have forgotten them.
    fn drop_table(&mut self, table: &TableRef) -> Result<TableId, Refusal> {
        let id = self.find(table)?.id;
        let record = self.table_mut(id).expect("it was just found");
        record.dropping = true;
        record.cuts.clear();
        record.give_up_moves();
        Ok(id)
    }

    /// Dropped tables that had the name of this one and that servers still serve.
    fn leaving(&self, table: &TableRef) -> BTreeSet<TableId> {
        let name = match table {
            TableRef::Id(id) => self.tables.get(id).map(|record| &record.name),
            TableRef::Name(name) => Some(name),
        };
        let is_meant = |record: &&Arc<TableRecord>| Some(&record.name) == name;
        let records = self.tables.values().filter(is_meant);
        let dropped = records.filter(|record| record.dropping && record.has(TabletState::Normal));
        dropped.map(|record| record.id).collect()
    }

    /// Cuts a tablet in two. A cut that is there already is no error.
    fn split(&mut self, request: &SplitTablet) -> Result<TableId, Refusal> {
        let table = self.find(&request.table)?;
        let id = table.id;
        let widest = table
            .tablets
            .iter()
            .max_by_key(|t| t.range.last.0 - t.range.first.0)
            .expect("a table has tablets (COORD-5)");
        let middle = widest.range.split(2).last().expect("two parts").first;
        let at = request.at.unwrap_or(middle);
        let tablet = table
            .tablets
            .iter()
            .find(|t| t.range.contains(at))
            .expect("tablets cover every hash (COORD-5)");
        if tablet.range.first == at {
            return Ok(id);
        }
        if tablet.state != TabletState::Normal || table.moves_within(tablet.range) {
            return Err(Refusal::retry(COME_AGAIN, RetryReason::TabletNotReady));
        }
        if table.tablets.len() >= TABLETS_MAX {
            let message = format!("the table has {TABLETS_MAX} tablets, the most it can have");
            return Err(Refusal::fatal(FatalKind::Other, message));
        }
        let record = self.table_mut(id).expect("it was just found");
        if record.cut(at) {
            record.cuts.push(at);
        }
        Ok(id)
    }
}

impl Shared {
    pub(crate) async fn create_table(
        self: Arc<Self>,
        request: CreateTable,
    ) -> Result<TableInfo, Refusal> {
        let seed = self.env.rng.next_u64();
        let rng = self.env.rng.clone();
        let name = request.name.clone();
        let (id, is_new) = self
            .change_for_caller(move |state| {
                let last = state.globals.last_table;
                let id = state.create_table(request, seed, &*rng)?;
                Ok((id, state.globals.last_table != last))
            })
            .await?;
        if is_new {
            tracing::info!(table = %id, name, "table created");
        }
        let not_taken = |state: &Arc<State>| {
            let table = state.tables.get(&id);
            table.is_some_and(|t| !t.dropping && t.has(TabletState::Assigning))
        };
        let taken = self.until(|state| !not_taken(state));
        if timeout(&*self.env.clock, WAIT_MAX, taken).await.is_err() {
            let why = match self.tenure.is_stuck() {
                // Its servers have it perhaps, and nobody can store that.
                true => RetryReason::MetadataTrouble,
                false => {
                    let known = self.memory().troubles.get(&id).copied();
                    known.unwrap_or(RetryReason::TabletNotReady)
                }
            };
            return Err(Refusal::retry(COME_AGAIN, why));
        }
        let state = self.state();
        Ok(state.info(state.find(&TableRef::Id(id))?))
    }

    /// Answers when the name is free and no server serves a dropped table of this name any more:
    /// also one that an earlier request has dropped, whose answer was lost.
    ///
    /// # Errors
    /// There is no such table. Servers have not followed in time: the name is free, and whoever
    /// asks again waits on.
    pub(crate) async fn drop_table(self: Arc<Self>, request: DropTable) -> Result<(), Refusal> {
        let table = request.table.clone();
        let dropped = if request.only_wait {
            Err(no_such_table(&table))
        } else {
            let drop = move |state: &mut State| state.drop_table(&request.table);
            self.change_for_caller(drop).await
        };
        match &dropped {
            Ok(id) => tracing::info!(table = %id, "table dropped"),
            Err(refusal) if refusal.fatal_kind() == Some(FatalKind::NoSuchTable) => {}
            Err(refusal) => return Err(refusal.clone()),
        }
        let leaving = self.state().leaving(&table);
        let is_served = |state: &Arc<State>| {
            let mut records = leaving.iter().filter_map(|id| state.tables.get(id));
            records.any(|record| record.has(TabletState::Normal))
        };
        let forgotten = self.until(|state| !is_served(state));
        if timeout(&*self.env.clock, WAIT_MAX, forgotten)
            .await
            .is_err()
        {
            tracing::info!(
                ?leaving,
                "not all servers have forgotten the dropped table yet"
            );
            let why = match self.tenure.is_stuck() {
                true => RetryReason::MetadataTrouble,
                false => RetryReason::NotReady,
            };
            return Err(Refusal::retry(COME_AGAIN, why));
        }
        dropped.map(|_| ())
    }

    pub(crate) async fn split_tablet(
        self: Arc<Self>,
        request: SplitTablet,
    ) -> Result<TableInfo, Refusal> {
        let split = move |state: &mut State| state.split(&request);
        let id = self.change_for_caller(split).await?;
        // Whether the owner has heard of it makes no difference to anybody: it has both parts.
        let state = self.state();
        Ok(state.info(state.find(&TableRef::Id(id))?))
    }
}

/// Where to cut a range into about `parts` parts of equal width: the first hashes of the upper
/// ones.
pub(crate) fn cuts_of(range: HashRange, parts: u64) -> Vec<KeyHash> {
    let parts = range.split(parts.max(1));
    parts.into_iter().skip(1).map(|part| part.first).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;
    use pluvio_units::ClusterId;
    use pluvio_wire::{Enlist, PROTOCOL_VERSION};

    struct NoChoice;
    impl Rng for NoChoice {
        fn next_u64(&self) -> u64 {
            0
        }
    }

    fn cluster(servers: u64) -> State {
        let mut state = State::new(ClusterId(1));
        for attempt in 1..=servers {
            let info = testing::server(0, attempt.to_string());
            let request = Enlist {
                protocol: PROTOCOL_VERSION,
                cluster: None,
                replaces: None,
                attempt,
                info,
            };
            state.enlist(request).unwrap();
        }
        state
    }

    fn create(state: &mut State, name: &str, span: Option<u32>) -> Result<TableId, Refusal> {
        let name = name.to_owned();
        let id = state.create_table(CreateTable { name, span }, 1, &NoChoice)?;
        state.check();
        Ok(id)
    }

    #[test]
    fn tablets_go_to_the_servers_that_have_fewest() {
        let mut state = cluster(4);
        for n in 0..8 {
            create(&mut state, &format!("t{n}"), Some(1)).unwrap();
        }
        assert!(state.loads().values().all(|load| *load == 2));
        let wide = create(&mut state, "wide", None).unwrap();
        assert_eq!(state.tables[&wide].tablets.len(), 4);
        let wider = create(&mut state, "wider", Some(100)).unwrap();
        assert_eq!(state.tables[&wider].tablets.len(), 4);
    }

    #[test]
    fn a_name_has_one_table() {
        let mut state = cluster(1);
        let id = create(&mut state, "t", None).unwrap();
        assert_eq!(create(&mut state, "t", None), Ok(id));
        state.drop_table(&TableRef::Name("t".into())).unwrap();
        let gone = state.drop_table(&TableRef::Name("t".into()));
        assert_eq!(gone.unwrap_err().fatal_kind(), Some(FatalKind::NoSuchTable));
        assert_ne!(create(&mut state, "t", None), Ok(id));
        assert!(create(&mut state, "", None).is_err());
        assert!(create(&mut state, "u", Some(0)).is_err());
    }

    #[test]
    fn a_cluster_has_4096_tables_at_most() {
        let mut state = cluster(1);
        let first = create(&mut state, "t", None).unwrap();
        let record = TableRecord::clone(&state.tables[&first]);
        for id in (2..=4095).map(TableId) {
            let name = format!("t{id}");
            let record = record.clone();
            let other = TableRecord { id, name, ..record };
            state.tables.insert(id, Arc::new(other));
        }
        state.globals.last_table = TableId(4095);
        create(&mut state, "last", None).unwrap();
        let before = state.clone();
        let refused = create(&mut state, "more", None).unwrap_err();
        assert_eq!(refused.fatal_kind(), Some(FatalKind::Other));
        assert!(state.tables == before.tables && state.globals == before.globals);
        // One that is there is found, and one that is gone makes room.
        assert_eq!(create(&mut state, "t", None), Ok(first));
        state.tables.remove(&first);
        create(&mut state, "more", None).unwrap();
    }

    #[test]
    fn a_table_has_1024_tablets_at_most() {
        let mut state = cluster(1030);
        let id = create(&mut state, "t", Some(5000)).unwrap();
        let tablets = &mut state.table_mut(id).unwrap().tablets;
        assert_eq!(tablets.len(), 1024);
        for tablet in tablets {
            tablet.state = TabletState::Normal;
        }
        let before = state.clone();
        let table = TableRef::Id(id);
        let refused = state.split(&SplitTablet { table, at: None }).unwrap_err();
        assert_eq!(refused.fatal_kind(), Some(FatalKind::Other));
        assert!(state.tables == before.tables);
    }

    #[test]
    fn without_servers_a_table_waits() {
        let mut state = cluster(0);
        let refused = create(&mut state, "t", None).unwrap_err();
        assert!(matches!(refused, Refusal::Retry { .. }));
    }

    #[test]
    fn tablets_of_a_crashed_owner_that_hold_nothing_are_given_to_others() {
        let mut state = cluster(2);
        let id = create(&mut state, "t", None).unwrap();
        let crash = |state: &mut State, server| {
            state.mark_crashed(server);
            state.reassign(id, &BTreeSet::from([server]), &NoChoice)
        };
        assert!(crash(&mut state, ServerId(1)));
        let tablets = &state.tables[&id].tablets;
        assert!(tablets.iter().all(|t| t.owner == ServerId(2)));
        assert!(!crash(&mut state, ServerId(2)));
    }

    // shows: COORD-4, COORD-5
    #[test]
    fn a_split_keeps_the_cover_and_repeats_harmlessly() {
        let mut state = cluster(1);
        let id = create(&mut state, "t", None).unwrap();
        let split = |state: &mut State, at: Option<u64>| {
            let request = SplitTablet {
                table: TableRef::Id(id),
                at: at.map(KeyHash),
            };
            let result = state.split(&request);
            state.check();
            result.map(|_| state.tables[&id].tablets.len())
        };
        assert!(split(&mut state, None).is_err(), "not confirmed yet");
        state.table_mut(id).unwrap().tablets[0].state = TabletState::Normal;
        assert_eq!(split(&mut state, None), Ok(2));
        assert_eq!(split(&mut state, Some(1 << 63)), Ok(2));
        assert_eq!(split(&mut state, Some(0)), Ok(2));
        assert_eq!(split(&mut state, Some(1)), Ok(3));
        assert_eq!(split(&mut state, Some(u64::MAX)), Ok(4));
        let cuts = &state.tables[&id].cuts;
        assert_eq!(*cuts, [KeyHash(1 << 63), KeyHash(1), KeyHash(u64::MAX)]);
        while state.tables[&id].tablets.len() < TABLETS_MAX {
            split(&mut state, None).unwrap();
        }
        assert!(split(&mut state, None).unwrap_err().fatal_kind().is_some());
    }
}
