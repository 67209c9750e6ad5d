//! Keeps the server list of one server up to date [RAMCloud §7.3].
//!
//! A short list is sent whole. Of a long one each server is sent the differences from the list that
//! it has ([`ChangeServerList`]). Otherwise each change would send 150 MB to a thousand servers. A
//! server says which list it has. If that is not among the recent ones, it is sent the whole list.

use crate::context::Context;
use crate::state::{ServerRecord, State};
use core::time::Duration;
use pluvio_units::{ServerId, ServerListVersion};
use pluvio_wire::{
    ChangeServerList, FatalKind, RpcError, ServerInfo, ServerList, ServerState, UpdateServerList,
};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

/// The pause before a list that was not acknowledged is sent again.
const RETRY: Duration = Duration::from_millis(100);
/// Lists whose differences from the newest can be told. They share what they have in common.
const RECENT_MAX: usize = 256;

/// The work of `Work::Push`.
pub(crate) struct Pushes {
    context: Arc<Context>,
    recent: Recent,
}

/// The latest server lists, and the differences of the newest from them. Locks: held for single
/// steps.
#[derive(Default)]
struct Recent(Mutex<Lists>);

#[derive(Default)]
struct Lists {
    /// States with different server lists, by ascending version of their lists.
    states: VecDeque<Arc<State>>,
    /// The list of the last state.
    newest: Arc<ServerList>,
    digest: u32,
    /// The differences of the newest list from earlier ones, by the version that they begin at.
    /// Many servers get the same.
    changes: BTreeMap<ServerListVersion, Arc<ChangeServerList>>,
}

impl Recent {
    /// The newest list, that of this state or a later one.
    fn newest(&self, state: &Arc<State>) -> Arc<ServerList> {
        let mut lists = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_new = |last: &Arc<State>| last.globals.list_version < state.globals.list_version;
        if lists.states.back().is_none_or(is_new) {
            if lists.states.len() == RECENT_MAX {
                lists.states.pop_front();
            }
            lists.states.push_back(state.clone());
            lists.newest = Arc::new(state.list());
            lists.digest = lists.newest.digest();
            lists.changes.clear();
        }
        lists.newest.clone()
    }

    /// The differences of the newest list from an earlier one, if that is known.
    fn changes(&self, since: ServerListVersion) -> Option<Arc<ChangeServerList>> {
        let mut lists = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(change) = lists.changes.get(&since) {
            return Some(change.clone());
        }
        let versions = &lists.states;
        let at = versions.binary_search_by_key(&since, |state| state.globals.list_version);
        let (before, after) = (&versions[at.ok()?].servers, versions.back()?);
        let stays = |record: &&Arc<ServerRecord>| {
            let former = before.get(&record.info.id);
            former.is_some_and(|former| Arc::ptr_eq(former, record) || former.info == record.info)
        };
        let changed = after.servers.values().filter(|record| !stays(record));
        let gone = before.keys().filter(|id| !after.servers.contains_key(id));
        let change = Arc::new(ChangeServerList {
            cluster: after.globals.cluster,
            since,
            list: ServerList {
                servers: changed.map(|record| record.info.clone()).collect(),
                ..after.list_without_servers()
            },
            gone: gone.copied().collect(),
            digest: lists.digest,
        });
        lists.changes.insert(since, change.clone());
        Some(change)
    }
}

/// The list that a server has, as far as is known.
#[derive(Clone, Copy)]
enum Has {
    /// Any: it is sent the whole list.
    Any,
    /// This one, by its own word or since it enlisted just now.
    List(ServerListVersion),
}

impl Pushes {
    pub(super) fn new(context: Arc<Context>) -> Self {
        Self {
            context,
            recent: Recent::default(),
        }
    }

    /// Sends each new version to `server` until it acknowledges it or a newer one supersedes it.
    /// Ends when the server is not up any more; then that is what it hears last.
    pub(super) async fn push(&self, server: ServerId) {
        let mut states = self.context.ledger.watch();
        let mut acknowledged = None;
        let mut latest = None;
        let mut has = None;
        // Whether its program knows what differences are.
        let mut knows_changes = true;
        loop {
            let state = states.borrow_and_update().clone();
            let record = state.servers.get(&server);
            let Some(record) = record.filter(|record| record.info.state == ServerState::Up) else {
                // One that had nothing to recover may have left the list already.
                if let Some(dead) = record.map(|record| &record.info).or(latest.as_ref()) {
                    self.notify_crashed(dead).await;
                }
                return;
            };
            latest = Some(record.info.clone());
            let version = state.globals.list_version;
            if acknowledged >= Some(version) {
                states
                    .changed()
                    .await
                    .expect("the sender lives as long as this");
                continue;
            }
            let list = self.recent.newest(&state);
            let is_long = list.servers.len() > self.context.options.whole_list_max;
            // One that has just enlisted was given a list with the answer.
            let since = *has.get_or_insert(Has::List(list.version));
            let sent = match since {
                Has::List(since) if is_long && knows_changes => match self.recent.changes(since) {
                    Some(change) => self.send_change(&record.info, &change).await,
                    None => self.send_whole(&record.info, &state, &list).await,
                },
                Has::List(_) | Has::Any => self.send_whole(&record.info, &state, &list).await,
            };
            match sent {
                None => {}
                Some(Ok(theirs)) => {
                    let is_taken = theirs >= list.version;
                    acknowledged = is_taken.then_some(theirs);
                    has = Some(match since {
                        Has::List(since) if !is_taken && theirs == since => Has::Any,
                        Has::List(_) | Has::Any => Has::List(theirs),
                    });
                }
                // Once: a process that takes whole lists no more than differences is none of ours.
                Some(Err(RpcError::Refused(refusal)))
                    if knows_changes && refusal.fatal_kind() == Some(FatalKind::Unsupported) =>
                {
                    knows_changes = false;
                }
                Some(Err(error)) => {
                    tracing::debug!(%server, %version, %error, "server list not acknowledged");
                    self.context.sleep(RETRY).await;
                }
            }
        }
    }

    /// Gives the version of the list that the server has then; `None` if it is not up any more.
    async fn send_change(
        &self,
        to: &ServerInfo,
        change: &ChangeServerList,
    ) -> Option<Result<ServerListVersion, RpcError>> {
        pluvio_units::mark("server-list-by-changes");
        let sent = self.context.calls.call_while_up(to, change).await?;
        Some(sent.map(|has| has.version))
    }

    /// The same with the whole list.
    async fn send_whole(
        &self,
        to: &ServerInfo,
        state: &State,
        list: &ServerList,
    ) -> Option<Result<ServerListVersion, RpcError>> {
        let request = UpdateServerList {
            cluster: state.globals.cluster,
            list: list.clone(),
        };
        let sent = self.context.calls.call_while_up(to, &request).await?;
        Some(sent.map(|()| list.version))
    }

    /// Sends a server that was declared crashed the list, once: a zombie stops the sooner. It finds
    /// out anyway, from pings and from backups [RAMCloud §7.11].
    async fn notify_crashed(&self, info: &ServerInfo) {
        let state = self.context.state();
        let request = UpdateServerList {
            cluster: state.globals.cluster,
            list: state.list(),
        };
        let limit = self.context.options.call_limit;
        let result = self.context.calls.call(info, &request, limit).await;
        tracing::debug!(server = %info.id, told = result.is_ok(), "told a crashed server");
    }
}
