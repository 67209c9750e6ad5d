//! The port for cluster clients: which server has a key, and what the cluster looks like.
//!
//! On that port a server presents itself as a node of a Redis Cluster. The nodes are the servers
//! that have such a port; each is a master of the slots of its tablets of database 0.
//!
//! - SLOT-1: a command on keys of a slot that another server serves is answered with MOVED. The map
//!   that names that server was asked for after the command came. So it is never older than the one
//!   by which the client came here. The command by which this server finds out that it lost a slot
//!   is passed on: its answer is the new owner's.
//! - SLOT-2: while no server serves a slot, the command waits as on the ordinary port, then it is
//!   answered with TRYAGAIN. To clients such a slot belongs to the server they ask.
//! - SLOT-3: every slot belongs to one node in each answer. The slots of a server without such a
//!   port belong to the server that is asked, which passes commands on.
//! - SLOT-4: no client is sent to a server that does not answer a ping: it may have crashed before
//!   anybody knew. Its slots are treated as those that no server serves.
//!
//! Nothing here is needed for correctness: a command that is run by the wrong server finds its
//! owner, as on the ordinary port.

use super::{CommandResult, Data, Survey};
use crate::database::DatabaseId;
use crate::failure::{self, CROSS_SLOT, NO_CLUSTER, SEEDED_DATABASE};
use crate::number::integer;
use crate::parser::Command;
use crate::reply::{Failure, Reply};
use crate::shared::{ClusterPort, Core, node_id};
use crate::table::{Keys, SPECS, resolve};
use core::fmt::Write;
use core::time::Duration;
use futures_util::future::join_all;
use pluvio_client::{ServerInfo, Table};
use pluvio_units::{HashKind, KeySlot, SLOTS, ServerId};
use std::collections::BTreeSet;

/// How long a server has to answer before clients are kept from it. A server that is only busy
/// takes a millisecond or two.
const PING_LIMIT: Duration = Duration::from_millis(200);

/// A question about the cluster.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // they are named after their commands
pub enum Query {
    CountKeysInSlot,
    Info,
    Links,
    MyId,
    Nodes,
    Shards,
    Slots,
}

/// The keys of a command.
fn keys_of(command: &Command) -> impl Iterator<Item = &[u8]> {
    let keys = resolve(command, command.len()).map_or(Keys::NONE, |n| SPECS[usize::from(n)].keys);
    keys.of(command).map(|at| command.get(at))
}

/// Whether a command without keys works on keys all the same.
fn looks_at_all(what: Data) -> bool {
    matches!(
        what,
        Data::Survey(Survey::DbSize | Survey::Keys | Survey::RandomKey | Survey::Scan)
    )
}

/// Whether a command may be run as on the ordinary port, without a closer look. Asked of every
/// command of the port, so it takes little.
#[inline]
pub(super) fn is_here(core: &Core, what: Data, command: &Command) -> bool {
    if core.options().cluster.is_none() {
        return true;
    }
    let table = core.databases.known(DatabaseId::default());
    let Some(table) = table.filter(|table| table.hash_kind() == HashKind::Slots) else {
        return false;
    };
    if looks_at_all(what) {
        return true;
    }
    let mut keys = keys_of(command);
    let Some(first) = keys.next() else {
        return true;
    };
    let slot = KeySlot::of(first);
    keys.all(|key| KeySlot::of(key) == slot) && core.databases.is_local(&table, slot)
}

/// Looks closer at a command of which [`is_here`] was not sure.
///
/// # Errors
/// It is not to be run here: CROSSSLOT, MOVED, or a database that has no slots.
pub(super) async fn admit(
    core: &Core,
    db: DatabaseId,
    what: Data,
    command: &Command,
) -> Result<(), Failure> {
    if !looks_at_all(what) && keys_of(command).next().is_none() {
        return Ok(());
    }
    let mut slots = keys_of(command).map(KeySlot::of);
    let slot = slots.next();
    if slots.any(|other| Some(other) != slot) {
        return Err(CROSS_SLOT);
    }
    let table = core.databases.slots(db).await?;
    if table.hash_kind() != HashKind::Slots {
        return Err(SEEDED_DATABASE);
    }
    let (Some(slot), Some(port)) = (slot, &core.options().cluster) else {
        return Ok(());
    };
    if core.databases.is_local(&table, slot) {
        return Ok(());
    }
    // SLOT-1. Where it cannot be asked for, the command is passed on.
    let Ok(table) = core.databases.slots_anew(db).await else {
        return Ok(());
    };
    let list = port.list();
    let owner = owner(&table, slot).and_then(|owner| list.up().find(|info| info.id == owner));
    // Otherwise SLOT-2, SLOT-3 or SLOT-4.
    if let Some(info) = owner
        && let Some(address) = &info.redis_cluster
        && info.id != port.own_id()
        && answers(core, port, info).await
    {
        return Err(Failure::new(format!("MOVED {slot} {address}")));
    }
    Ok(())
}

/// Whether a server answers (SLOT-4). Each is asked ten times a second at most.
async fn answers(core: &Core, port: &ClusterPort, info: &ServerInfo) -> bool {
    let now = core.shared.now();
    if info.id == port.own_id() {
        return true;
    }
    if let Some(answered) = port.answered(info.id, now) {
        return answered;
    }
    let answered = core.databases.answers(&info.address, PING_LIMIT).await;
    port.note_answer(info.id, core.shared.now(), answered);
    answered
}

/// The server that serves a slot.
fn owner(table: &Table, slot: KeySlot) -> Option<ServerId> {
    let tablet = table.tablet_of(slot.hashes_to(slot).first)?;
    tablet.is_served.then_some(tablet.owner)
}

/// Answers a question about the cluster.
pub(super) async fn query(core: &Core, query: Query, command: &Command) -> CommandResult {
    let port = core.options().cluster.as_ref().ok_or(NO_CLUSTER)?;
    if let Query::CountKeysInSlot = query {
        return count_in_slot(core, command).await;
    }
    if let Query::MyId = query {
        return Ok(Reply::copy(node_id(port.own_id())));
    }
    if let Query::Links = query {
        return Ok(Reply::Array(Vec::new()));
    }
    let view = View::of(core, port).await?;
    Ok(match query {
        Query::Info => view.info(),
        Query::Nodes => view.nodes(),
        Query::Shards => view.shards(),
        Query::Slots => view.slots(),
        Query::CountKeysInSlot | Query::Links | Query::MyId => unreachable!("answered above"),
    })
}

fn slot_of(argument: &[u8]) -> Result<KeySlot, Failure> {
    let number = integer(argument).and_then(|n| u16::try_from(n).ok());
    number.and_then(KeySlot::new).ok_or(failure::BAD_SLOT)
}

async fn count_in_slot(core: &Core, command: &Command) -> CommandResult {
    let slot = slot_of(command.get(2))?;
    let db = DatabaseId::default();
    let table = core.databases.slots(db).await?;
    if table.hash_kind() != HashKind::Slots || !core.databases.is_local(&table, slot) {
        return Ok(Reply::Integer(0));
    }
    let count = core.databases.count_in_slot(&table, slot).await?;
    Ok(Reply::count(count))
}

/// The slot of a key.
pub(super) fn key_slot(core: &Core, command: &Command) -> CommandResult {
    if core.options().cluster.is_none() {
        return Err(NO_CLUSTER);
    }
    let slot = KeySlot::of(command.get(2));
    Ok(Reply::Integer(slot.number().into()))
}

/// READONLY, READWRITE and ASKING: every server answers for what it has, and never asks.
pub(super) fn flag(core: &Core) -> CommandResult {
    match core.options().cluster {
        Some(_) => Ok(Reply::OK),
        None => Err(NO_CLUSTER),
    }
}

/// Slots that follow each other and belong to one node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Stretch {
    first: u16,
    last: u16,
    node: ServerId,
}

/// The cluster as cluster clients see it.
struct View<'a> {
    port: &'a ClusterPort,
    own: ServerId,
    epoch: u64,
    /// By ascending id.
    nodes: Vec<ServerInfo>,
    /// By ascending slot; they cover all (SLOT-3).
    stretches: Vec<Stretch>,
}

impl<'a> View<'a> {
    async fn of(core: &Core, port: &'a ClusterPort) -> Result<Self, Failure> {
        let table = core.databases.slots_anew(DatabaseId::default()).await?;
        let list = port.list();
        let has_port = |info: &&ServerInfo| info.redis_cluster.is_some();
        let mut view = Self {
            port,
            own: port.own_id(),
            epoch: list.version.0,
            nodes: list.up().filter(has_port).cloned().collect(),
            stretches: Vec::new(),
        };
        let owners: BTreeSet<ServerId> = table.tablets().iter().map(|t| t.owner).collect();
        let owners = view.nodes.iter().filter(|node| owners.contains(&node.id));
        let asked = owners.map(async |node| answers(core, port, node).await.then_some(node.id));
        let answering = join_all(asked).await.into_iter().flatten().collect();
        view.share_out(&table, &answering);
        Ok(view)
    }

    fn share_out(&mut self, table: &Table, answering: &BTreeSet<ServerId>) {
        if table.hash_kind() == HashKind::Slots {
            for tablet in table.tablets() {
                let [first, last] = [tablet.range.first, tablet.range.last].map(KeySlot::of_hash);
                self.give(Stretch {
                    first: first.number(),
                    last: last.number(),
                    node: match tablet.is_served && answering.contains(&tablet.owner) {
                        true => tablet.owner,
                        false => self.own,
                    },
                });
            }
        } else {
            // Whoever is asked refuses them, with the reason.
            self.give(Stretch {
                first: 0,
                last: SLOTS - 1,
                node: self.own,
            });
        }
    }

    fn give(&mut self, stretch: Stretch) {
        match self.stretches.last_mut() {
            Some(last) if last.node == stretch.node => last.last = stretch.last,
            Some(_) | None => self.stretches.push(stretch),
        }
    }

    fn slots_of(&self, node: ServerId) -> impl Iterator<Item = &Stretch> {
        self.stretches.iter().filter(move |s| s.node == node)
    }

    /// Host and port of a node.
    fn place(&self, node: ServerId) -> (String, i64) {
        let address = self.port.address_of(node).unwrap_or_default();
        let (host, port) = address.rsplit_once(':').unwrap_or((&address, "0"));
        let host = host.trim_start_matches('[').trim_end_matches(']');
        (host.to_owned(), port.parse().unwrap_or(0))
    }

    fn slots(&self) -> Reply {
        let stretch = |stretch: &Stretch| {
            let (host, port) = self.place(stretch.node);
            let node = vec![
                Reply::copy(host),
                Reply::Integer(port),
                Reply::copy(node_id(stretch.node)),
                // There is no other way to reach it.
                Reply::Map(Vec::new()),
            ];
            Reply::Array(vec![
                Reply::Integer(stretch.first.into()),
                Reply::Integer(stretch.last.into()),
                Reply::Array(node),
            ])
        };
        Reply::Array(self.stretches.iter().map(stretch).collect())
    }

    fn shards(&self) -> Reply {
        let shard = |info: &ServerInfo| {
            let ends = self.slots_of(info.id).flat_map(|s| [s.first, s.last]);
            let (host, port) = self.place(info.id);
            let node = vec![
                (Reply::Text("id"), Reply::copy(node_id(info.id))),
                (Reply::Text("port"), Reply::Integer(port)),
                (Reply::Text("ip"), Reply::copy(&host)),
                (Reply::Text("endpoint"), Reply::copy(&host)),
                (Reply::Text("role"), Reply::Text("master")),
                (Reply::Text("replication-offset"), Reply::Integer(0)),
                (Reply::Text("health"), Reply::Text("online")),
            ];
            Reply::Map(vec![
                (
                    Reply::Text("slots"),
                    Reply::Array(ends.map(|slot| Reply::Integer(slot.into())).collect()),
                ),
                (Reply::Text("nodes"), Reply::Array(vec![Reply::Map(node)])),
            ])
        };
        Reply::Array(self.nodes.iter().map(shard).collect())
    }

    fn nodes(&self) -> Reply {
        let mut text = String::new();
        for info in &self.nodes {
            let id = node_id(info.id);
            let (host, port) = self.place(info.id);
            let myself = if info.id == self.own { "myself," } else { "" };
            let epoch = info.id;
            // Writing to a string cannot fail. There is no bus between the nodes.
            let _ = write!(
                text,
                "{id} {host}:{port}@0 {myself}master - 0 0 {epoch} connected"
            );
            for stretch in self.slots_of(info.id) {
                let _ = match stretch.first == stretch.last {
                    true => write!(text, " {}", stretch.first),
                    false => write!(text, " {}-{}", stretch.first, stretch.last),
                };
            }
            text.push('\n');
        }
        Reply::Verbatim(text)
    }

    fn info(&self) -> Reply {
        let nodes = self.nodes.len();
        let size = self
            .nodes
            .iter()
            .filter(|node| self.slots_of(node.id).next().is_some());
        let (size, epoch) = (size.count(), self.epoch);
        Reply::Verbatim(format!(
            "cluster_enabled:1\r\ncluster_state:ok\r\ncluster_slots_assigned:{SLOTS}\r\n\
             cluster_slots_ok:{SLOTS}\r\ncluster_slots_pfail:0\r\ncluster_slots_fail:0\r\n\
             cluster_known_nodes:{nodes}\r\ncluster_size:{size}\r\ncluster_current_epoch:{epoch}\r\n\
             cluster_my_epoch:{}\r\ncluster_stats_messages_sent:0\r\n\
             cluster_stats_messages_received:0\r\ntotal_cluster_links_buffer_limit_exceeded:0\r\n",
            self.own
        ))
    }
}
