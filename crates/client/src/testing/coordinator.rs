//! The fake coordinator.

use super::master::{answer, refuse};
use super::{FakeTable, State, is_coordinators, spread};
use pluvio_env::Frame;
use pluvio_units::{
    ClusterId, KeyHash, ObjectVersion, ServerId, ServerListVersion, TableHash, TableId,
};
use pluvio_wire::{
    ClusterStatus, CreateTable, DropTable, FatalKind, GetClusterStatus, GetServerList,
    GetServerListReply, GetTable, Header, ListTables, ListTablesReply, Opcode, Refusal, ServerInfo,
    ServerList, ServerState, SplitTablet, TableInfo, TableRef, check_table_name,
};
use std::collections::BTreeMap;

impl State {
    /// The coordinator of another cluster, that has no tables.
    fn coordinate_others(opcode: Opcode, request: &Frame) -> Frame {
        let meant = Header::decode(&request.meta).map(|(header, _)| header.cluster);
        if meant.is_ok_and(|cluster| cluster != ClusterId(0)) {
            let why = "this is the coordinator of another cluster";
            return refuse(opcode, &Refusal::fatal(FatalKind::WrongCluster, why));
        }
        match opcode {
            Opcode::ListTables => {
                answer::<ListTables>(request, |_, _| Ok(ListTablesReply { tables: Vec::new() }))
            }
            other => refuse(
                other,
                &Refusal::fatal(FatalKind::NoSuchTable, "none is here"),
            ),
        }
    }

    pub(super) fn coordinate(&mut self, opcode: Opcode, request: &Frame) -> Frame {
        if self.is_replaced {
            return Self::coordinate_others(opcode, request);
        }
        match opcode {
            Opcode::CreateTable => answer::<CreateTable>(request, |_, r| self.create(r)),
            Opcode::GetTable => answer::<GetTable>(request, |_, r| {
                let id = self.find(&r.table)?;
                Ok(self.info(id))
            }),
            Opcode::DropTable => answer::<DropTable>(request, |_, r| {
                if r.only_wait {
                    let none = "there is no such table";
                    return Err(Refusal::fatal(FatalKind::NoSuchTable, none));
                }
                let id = self.find(&r.table)?;
                self.tables.remove(&id);
                Ok(())
            }),
            Opcode::ListTables => answer::<ListTables>(request, |_, _| {
                Ok(ListTablesReply {
                    tables: self.infos(),
                })
            }),
            Opcode::SplitTablet => answer::<SplitTablet>(request, |_, r| self.split(&r)),
            Opcode::GetServerList => answer::<GetServerList>(request, |_, _| {
                Ok(GetServerListReply {
                    cluster: self.cluster,
                    list: self.list(),
                })
            }),
            Opcode::GetClusterStatus => answer::<GetClusterStatus>(request, |_, _| {
                Ok(ClusterStatus {
                    cluster: self.cluster,
                    list: self.list(),
                    servers: Vec::new(),
                    tables: self.infos(),
                    recoveries: Vec::new(),
                    migrations: Vec::new(),
                    drains: Vec::new(),
                    balance: Default::default(),
                    losses: Vec::new(),
                    begun_anew: 0,
                    metadata_trouble: None,
                })
            }),
            other => {
                let message = if is_coordinators(other) {
                    "the fake coordinator cannot do this"
                } else {
                    "not an operation of the coordinator"
                };
                refuse(other, &Refusal::fatal(FatalKind::Unsupported, message))
            }
        }
    }

    fn find(&self, table: &TableRef) -> Result<TableId, Refusal> {
        let found = match table {
            TableRef::Id(id) => self.tables.contains_key(id).then_some(*id),
            TableRef::Name(name) => self
                .tables
                .iter()
                .find(|(_, t)| t.name == *name)
                .map(|(id, _)| *id),
        };
        found.ok_or_else(|| Refusal::fatal(FatalKind::NoSuchTable, format!("no table {table:?}")))
    }

    fn create(&mut self, request: CreateTable) -> Result<TableInfo, Refusal> {
        check_table_name(&request.name)?;
        if let Ok(id) = self.find(&TableRef::Name(request.name.clone())) {
            return Ok(self.info(id));
        }
        let up: Vec<ServerId> = self
            .servers
            .iter()
            .filter(|(_, (_, up))| *up)
            .map(|(id, _)| *id)
            .collect();
        self.table_last = self.table_last.next();
        let id = self.table_last;
        let table = FakeTable {
            name: request.name,
            hash: TableHash {
                kind: request.hash,
                seed: ((self.cluster.0 - 1) << 32) | id.0,
            },
            tablets: spread(&up, request.span, request.hash),
            objects: BTreeMap::new(),
            version_last: ObjectVersion(0),
        };
        self.tables.insert(id, table);
        Ok(self.info(id))
    }

    fn split(&mut self, request: &SplitTablet) -> Result<TableInfo, Refusal> {
        let id = self.find(&request.table)?;
        let table = self.tables.get_mut(&id).expect("it was just found");
        let at = table
            .hash
            .kind
            .border(request.at.unwrap_or(KeyHash(1 << 62)));
        let index = table
            .tablets
            .iter()
            .position(|t| t.range.contains(at))
            .expect("tablets cover every hash");
        if table.tablets[index].range.first < at {
            let mut upper = table.tablets[index];
            upper.range.first = at;
            table.tablets[index].range.last = KeyHash(at.0 - 1);
            table.tablets.insert(index + 1, upper);
        }
        Ok(self.info(id))
    }

    fn info(&self, id: TableId) -> TableInfo {
        let table = &self.tables[&id];
        let mut owners: Vec<ServerId> = table.tablets.iter().map(|t| t.owner).collect();
        owners.sort();
        owners.dedup();
        TableInfo {
            cluster: self.cluster,
            id,
            name: table.name.clone(),
            seed: table.hash.seed,
            hash: table.hash.kind,
            quota: pluvio_wire::TableQuota::NONE,
            quota_state: None,
            class: None,
            tablets: table.tablets.clone(),
            addresses: owners
                .into_iter()
                .filter_map(|id| Some((id, self.servers.get(&id)?.0.to_string())))
                .collect(),
        }
    }

    fn infos(&self) -> Vec<TableInfo> {
        let mut all: Vec<_> = self.tables.keys().map(|id| self.info(*id)).collect();
        all.sort_by(|a, b| a.name.cmp(&b.name));
        all
    }

    fn list(&self) -> ServerList {
        let servers = self.servers.iter().map(|(id, (address, up))| ServerInfo {
            volatile: true,
            state: if *up {
                ServerState::Up
            } else {
                ServerState::Crashed
            },
            ..ServerInfo::plain(*id, address.to_string())
        });
        ServerList {
            version: ServerListVersion(1),
            servers: servers.collect(),
            grown: self.servers.len() > 1,
            ..ServerList::default()
        }
    }
}
