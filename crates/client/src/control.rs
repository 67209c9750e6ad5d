//! Tables, status, and everything else asked of the coordinator.

use crate::client::Client;
use crate::error::{ClientError, ErrorKind};
use crate::retry::Attempts;
use crate::table::Table;
use core::time::Duration;
use pluvio_env::{Address, CallError};
use pluvio_units::{ClusterId, HashKind, KeyHash, ServerId, TableId};
use pluvio_wire::{
    ClusterStatus, CountObjects, CountObjectsReply, CreateTable, DropTable, DurabilityWish,
    FatalKind, GetClusterStatus, GetLeader, GetServerList, GetServerStatus, GetTable, GetTopKeys,
    Header, ListTables, Opcode, Ping, QuotaWish, Refusal, Request, RetryReason, RpcError,
    ServerList, ServerStatus, SetTable, SplitTablet, TableInfo, TableRef, TopKeys,
    check_table_name,
};

/// How long a coordinator has to say what is wrong. It answers that at once.
const TROUBLE_LIMIT: Duration = Duration::from_millis(500);

/// How a table of this name hashes its keys unless its maker says otherwise. Those of the Redis
/// port are for cluster clients, too.
fn hash_kind_of(name: &str) -> HashKind {
    let number = name.strip_prefix("redis:").unwrap_or_default();
    match !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()) {
        true => HashKind::Slots,
        false => HashKind::Seeded,
    }
}

/// What a new table may be given.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TableOptions {
    /// How many bytes it may hold, and how many operations it may have in a second.
    pub quota: QuotaWish,
    /// In how many replicas its objects are kept, and when a write is acknowledged. Usual: as the
    /// cluster's settings say, also when they change. It never has another one.
    pub durability: DurabilityWish,
    /// How it hashes its keys. `None`: by slots if it is a table of the Redis port, `redis:` and a
    /// number, and otherwise in the usual way.
    pub hash: Option<HashKind>,
}

impl Client {
    /// Creates a table, or finds the one that has this name. `span` is the number of servers to
    /// spread it over, all of them when `None`; it means nothing for a table that exists. A new
    /// table of the Redis port, `redis:` and a number, hashes its keys by slots.
    ///
    /// # Errors
    /// See [`Client`]; [`ErrorKind::BadArgument`] for a name that is not allowed.
    pub async fn create_table(&self, name: &str, span: Option<u32>) -> Result<Table, ClientError> {
        self.create_table_hashed(name, span, hash_kind_of(name))
            .await
    }

    /// [`Client::create_table`], with the way in which the table hashes its keys. A table that
    /// exists keeps its own.
    ///
    /// # Errors
    /// As [`Client::create_table`].
    pub async fn create_table_hashed(
        &self,
        name: &str,
        span: Option<u32>,
        hash: HashKind,
    ) -> Result<Table, ClientError> {
        let options = TableOptions {
            hash: Some(hash),
            ..TableOptions::default()
        };
        self.create_table_with(name, span, options).await
    }

    /// [`Client::create_table`], with a quota. A table that exists keeps its own, or its having
    /// none.
    ///
    /// # Errors
    /// As [`Client::create_table`], and as [`Client::set_quota`].
    pub async fn create_table_with_quota(
        &self,
        name: &str,
        span: Option<u32>,
        quota: QuotaWish,
    ) -> Result<Table, ClientError> {
        let options = TableOptions {
            quota,
            ..TableOptions::default()
        };
        self.create_table_with(name, span, options).await
    }

    /// [`Client::create_table`], with options. A table that exists keeps its own.
    ///
    /// # Errors
    /// As [`Client::create_table`], and as [`Client::set_quota`]. [`ErrorKind::Refused`] for a
    /// durability that the cluster cannot give, which its text explains.
    pub async fn create_table_with(
        &self,
        name: &str,
        span: Option<u32>,
        options: TableOptions,
    ) -> Result<Table, ClientError> {
        check_table_name(name).map_err(ClientError::from_final)?;
        let request = CreateTable {
            name: name.to_owned(),
            span,
            hash: options.hash.unwrap_or_else(|| hash_kind_of(name)),
            quota: options.quota,
            durability: options.durability,
        };
        let mut attempts = self.attempts();
        let info = self.ask_for_change(&request, &mut attempts).await?;
        Ok(self.learn(&info))
    }

    /// Changes the quota of a table: how many bytes of keys and values it may have, and how many
    /// operations a second. Its owners follow within about a second.
    ///
    /// A change that would make the table larger than its quota fails with
    /// [`ErrorKind::OverQuota`], which no retry helps against. Deletions and changes that make
    /// nothing larger go on. Operations that are too many wait, for at most
    /// [`ClientOptions::full_timeout`](crate::ClientOptions::full_timeout); then they fail as
    /// [`ErrorKind::TimedOut`] with [`RetryReason::QuotaOperations`].
    ///
    /// # Errors
    /// See [`Client`]; [`ErrorKind::NoSuchTable`]; [`ErrorKind::Refused`] while the cluster speaks
    /// a version without quotas.
    pub async fn set_quota(&self, name: &str, quota: QuotaWish) -> Result<TableInfo, ClientError> {
        let table = TableRef::Name(name.to_owned());
        let request = SetTable { table, quota };
        self.ask_for_change(&request, &mut self.attempts()).await
    }

    /// Finds a table by its name. Always asks the coordinator; keep the handle.
    ///
    /// # Errors
    /// See [`Client`].
    pub async fn table(&self, name: &str) -> Result<Table, ClientError> {
        Ok(self.learn(&self.describe_by(TableRef::Name(name.to_owned())).await?))
    }

    /// Finds a table by its id.
    ///
    /// # Errors
    /// See [`Client`].
    pub async fn table_by_id(&self, id: TableId) -> Result<Table, ClientError> {
        Ok(self.learn(&self.describe_by(TableRef::Id(id)).await?))
    }

    /// A table's tablets, as they are now.
    ///
    /// # Errors
    /// See [`Client`].
    pub async fn table_info(&self, table: &Table) -> Result<TableInfo, ClientError> {
        self.describe_by(TableRef::Id(table.id())).await
    }

    async fn describe_by(&self, table: TableRef) -> Result<TableInfo, ClientError> {
        self.ask(&GetTable { table }, &mut self.attempts()).await
    }

    /// Drops the table that has this name now, and all its objects. No server of the cluster serves
    /// it any more when this ends, nor one of the name that was dropped before. A table that gets
    /// the name later stays, also when answers are lost.
    ///
    /// # Errors
    /// See [`Client`]; [`ErrorKind::NoSuchTable`] when there is none of this name.
    pub async fn drop_table(&self, name: &str) -> Result<(), ClientError> {
        self.drop_table_named(name, false).await
    }

    /// [`Client::drop_table`] of a table that is made anew: the next one of the name has its quota.
    ///
    /// # Errors
    /// As there.
    pub async fn empty_table(&self, name: &str) -> Result<(), ClientError> {
        self.drop_table_named(name, true).await
    }

    async fn drop_table_named(&self, name: &str, keep_quota: bool) -> Result<(), ClientError> {
        let mut attempts = self.attempts();
        let named = GetTable {
            table: TableRef::Name(name.to_owned()),
        };
        let id = match self.ask(&named, &mut attempts).await {
            Ok(found) => found.id,
            Err(error) if error.kind() == ErrorKind::NoSuchTable => {
                // Somebody else may be dropping it: the coordinator answers when servers have
                // followed.
                return self.until_dropped(named.table, &mut attempts).await;
            }
            Err(error) => return Err(error),
        };
        // By its id: when an attempt comes late or again, another table may have the name.
        let request = DropTable {
            keep_quota,
            ..DropTable::of(TableRef::Id(id))
        };
        match self.ask_for_change(&request, &mut attempts).await {
            // An earlier attempt has dropped it: its reply was lost, or it did not wait to the end.
            Err(e) if e.kind() == ErrorKind::NoSuchTable && attempts.is_ambiguous() => {
                self.until_dropped(named.table, &mut attempts).await?;
            }
            other => other?,
        }
        self.forget(id);
        Ok(())
    }

    /// Waits until no server serves a dropped table of this name; drops nothing.
    ///
    /// # Errors
    /// [`ErrorKind::NoSuchTable`] when there was nothing to wait for and no attempt to drop one
    /// before.
    async fn until_dropped(
        &self,
        table: TableRef,
        attempts: &mut Attempts<'_>,
    ) -> Result<(), ClientError> {
        let request = DropTable {
            table,
            only_wait: true,
            keep_quota: false,
        };
        match self.ask_for_change(&request, attempts).await {
            Err(e) if e.kind() == ErrorKind::NoSuchTable && attempts.is_ambiguous() => Ok(()),
            other => other,
        }
    }

    /// All tables, by name.
    ///
    /// # Errors
    /// See [`Client`].
    pub async fn list_tables(&self) -> Result<Vec<TableInfo>, ClientError> {
        let reply = self.ask(&ListTables {}, &mut self.attempts()).await?;
        Ok(reply.tables)
    }

    /// Cuts a tablet in two: `at` is the first hash of the upper part, the middle of the widest
    /// tablet when `None`. A cut that is there already is no error. Repeated without `at`, it cuts
    /// again.
    ///
    /// # Errors
    /// See [`Client`].
    pub async fn split_tablet(
        &self,
        table: &Table,
        at: Option<KeyHash>,
    ) -> Result<TableInfo, ClientError> {
        let request = SplitTablet {
            table: TableRef::Id(table.id()),
            at,
        };
        let mut attempts = self.attempts();
        let info = self.ask_for_change(&request, &mut attempts).await?;
        self.learn(&info);
        Ok(info)
    }

    /// What the whole cluster has and does.
    ///
    /// # Errors
    /// See [`Client`].
    pub async fn cluster_status(&self) -> Result<ClusterStatus, ClientError> {
        self.ask(&GetClusterStatus {}, &mut self.attempts()).await
    }

    /// The troubles of the metadata store as each coordinator sees them, for people. Each
    /// coordinator is asked once. For the case that none leads: [`Client::cluster_status`] needs
    /// one that does.
    pub async fn coordinators_troubles(&self) -> Vec<String> {
        let network = &*self.shared.parts.network;
        let mut troubles = Vec::new();
        for address in self.shared.coordinators.known() {
            let limit = self.attempts().next_limit().min(TROUBLE_LIMIT);
            let asked =
                pluvio_wire::call(network, address, Header::default(), &GetLeader {}, limit).await;
            let trouble = asked.ok().and_then(|reply| reply.trouble);
            troubles.extend(trouble.map(|trouble| format!("coordinator at {address}: {trouble}")));
        }
        troubles
    }

    /// The servers of the cluster.
    ///
    /// # Errors
    /// See [`Client`].
    pub async fn server_list(&self) -> Result<ServerList, ClientError> {
        let reply = self.ask(&GetServerList {}, &mut self.attempts()).await?;
        Ok(reply.list)
    }

    /// One round trip to a server (or a coordinator) that does nothing else. Asked once, without
    /// retries.
    ///
    /// # Errors
    /// [`ErrorKind::TimedOut`] when it does not answer within one attempt's time.
    pub async fn ping(&self, address: &Address) -> Result<(), ClientError> {
        // Clients have no id.
        let ping = Ping { from: ServerId(0) };
        self.ask_once(address, &ping).await.map(|_| ())
    }

    /// What one server has and does. Asked once, without retries.
    ///
    /// # Errors
    /// [`ErrorKind::TimedOut`] when it does not answer within one attempt's time.
    pub async fn server_status(&self, address: &Address) -> Result<ServerStatus, ClientError> {
        self.ask_once(address, &GetServerStatus {}).await
    }

    /// Which keys of one server are used most, and which are the largest that it has noticed. Asked
    /// once, without retries.
    ///
    /// # Errors
    /// [`ErrorKind::TimedOut`] when it does not answer within one attempt's time.
    pub async fn top_keys(
        &self,
        address: &Address,
        request: &GetTopKeys,
    ) -> Result<TopKeys, ClientError> {
        self.ask_once(address, request).await
    }

    async fn ask_once<R: Request>(
        &self,
        address: &Address,
        request: &R,
    ) -> Result<R::Reply, ClientError> {
        let mut attempts = self.attempts();
        let network = &*self.shared.parts.network;
        let limit = attempts.next_limit();
        let asked = pluvio_wire::call(network, address, Header::default(), request, limit).await;
        asked.map_err(|error| {
            self.after_failure(error, false, &mut attempts)
                .err()
                .unwrap_or_else(|| attempts.timed_out())
        })
    }

    /// Number and bytes of a table's objects. The coordinator is asked where they are, then
    /// servers, one after the other. Objects that come and go meanwhile may or may not count. Those
    /// of tablets that move meanwhile may count twice or not at all.
    ///
    /// # Errors
    /// See [`Client`].
    pub async fn count(&self, table: &Table) -> Result<CountObjectsReply, ClientError> {
        let mut attempts = self.attempts();
        'from_the_start: loop {
            // A server counts what it has and says nothing of what has moved away, so an old map
            // would leave that out.
            let seen = table.map().generation;
            self.refresh(table, seen, &mut attempts).await?;
            let map = table.map();
            let Some(owners) = map.owners() else {
                attempts.failed(
                    format!("a tablet of table {:?} is not served", table.name()),
                    Some(RetryReason::TabletNotReady),
                );
                attempts.pause(Duration::ZERO).await?;
                continue;
            };
            let mut total = CountObjectsReply::default();
            for (owner, address) in owners {
                let request = CountObjects { table: table.id() };
                let header = Header::within(table.cluster(), owner);
                let result = if let Some(master) = self.local(owner) {
                    let answer = master.count(self.core(), &header, &request);
                    self.finish_local::<CountObjects>(answer, &mut attempts)
                        .await?
                } else {
                    let limit = attempts.next_limit();
                    let network = &*self.shared.parts.network;
                    pluvio_wire::call(network, &address, header, &request, limit).await
                };
                match result {
                    Ok(part) => {
                        total.objects += part.objects;
                        total.bytes += part.bytes;
                        total.bounded += part.bounded;
                    }
                    Err(error) => {
                        let again = self.after_failure(error, false, &mut attempts)?;
                        attempts.pause(again.after).await?;
                        continue 'from_the_start;
                    }
                }
            }
            return Ok(total);
        }
    }

    /// Number and bytes of a table's objects on the server that embeds this client; 0 elsewhere.
    ///
    /// # Errors
    /// See [`Client`].
    pub async fn count_here(&self, table: &Table) -> Result<CountObjectsReply, ClientError> {
        let Some(master) = self.shared.local.as_deref() else {
            return Ok(CountObjectsReply::default());
        };
        let mut attempts = self.attempts();
        loop {
            let own = master.owns();
            if !table.tablets().iter().any(|tablet| tablet.owner == own) {
                return Ok(CountObjectsReply::default());
            }
            let request = CountObjects { table: table.id() };
            let header = Header::within(table.cluster(), own);
            let answer = master.count(self.core(), &header, &request);
            let counted = self.finish_local::<CountObjects>(answer, &mut attempts);
            match counted.await? {
                Ok(count) => return Ok(count),
                Err(error) => {
                    let seen = table.map().generation;
                    let again = self.after_failure(error, false, &mut attempts)?;
                    attempts.pause(again.after).await?;
                    self.refresh(table, seen, &mut attempts).await?;
                }
            }
        }
    }

    /// Asks the coordinator where a table's tablets are, unless somebody else has since `seen`.
    pub(crate) async fn refresh(
        &self,
        table: &Table,
        seen: u64,
        attempts: &mut Attempts<'_>,
    ) -> Result<(), ClientError> {
        let limit = attempts.remaining();
        let clock = &*self.shared.parts.clock;
        let turn = pluvio_env::timeout(clock, limit, table.lock_refresh()).await;
        let Ok(_turn) = turn else {
            return Err(attempts.timed_out());
        };
        if table.map().generation != seen {
            return Ok(());
        }
        let request = GetTable {
            table: TableRef::Id(table.id()),
        };
        match self.ask(&request, attempts).await {
            Ok(info) if table.is_described_by(&info) => {
                table.update(&info);
                Ok(())
            }
            // The id names another table: this client has outlived its cluster, or the
            // coordinator's metadata were set back.
            Ok(_) => {
                self.forget(table.id());
                let message = format!(
                    "table {:?} is gone, and another one has its id",
                    table.name()
                );
                let gone = Refusal::fatal(FatalKind::NoSuchTable, message);
                Err(ClientError::from_final(gone))
            }
            Err(error) => {
                if error.kind() == ErrorKind::NoSuchTable {
                    self.forget(table.id());
                }
                Err(error)
            }
        }
    }

    /// Asks the coordinators until the one that leads answers. For questions; it leaves nothing in
    /// doubt.
    pub(crate) async fn ask<R: Request>(
        &self,
        request: &R,
        attempts: &mut Attempts<'_>,
    ) -> Result<R::Reply, ClientError> {
        self.ask_leader(request, false, attempts).await
    }

    /// [`Client::ask`] for requests that change something.
    pub(crate) async fn ask_for_change<R: Request>(
        &self,
        request: &R,
        attempts: &mut Attempts<'_>,
    ) -> Result<R::Reply, ClientError> {
        self.ask_leader(request, true, attempts).await
    }

    async fn ask_leader<R: Request>(
        &self,
        request: &R,
        changes: bool,
        attempts: &mut Attempts<'_>,
    ) -> Result<R::Reply, ClientError> {
        let coordinators = &self.shared.coordinators;
        if coordinators.is_empty() {
            return Err(ClientError::NoCoordinator);
        }
        let network = &*self.shared.parts.network;
        // A server's client never follows a coordinator of another cluster, whose tables have the
        // same names and numbers.
        let local = self.shared.local.as_ref();
        let own = local.map_or(ClusterId(0), |local| local.cluster());
        loop {
            let limit = attempts.next_limit();
            if limit.is_zero() {
                return Err(attempts.timed_out());
            }
            let answer = coordinators.call_within(own, network, request, limit);
            let error = match answer.await {
                Ok(reply) => return Ok(reply),
                Err(RpcError::Refused(refusal)) if is_of_others(&refusal) => {
                    // The own one may come back, or be at another address.
                    attempts.failed(refusal.to_string(), None);
                    attempts.pause(Duration::ZERO).await?;
                    continue;
                }
                Err(error) => error,
            };
            if changes && maybe_done(R::OPCODE, &error) {
                attempts.ambiguous();
            }
            let again = self.after_failure(error, false, attempts)?;
            attempts.pause(again.after).await?;
        }
    }
}

/// Whether it is the coordinator of another cluster that refuses.
fn is_of_others(refusal: &Refusal) -> bool {
    refusal.fatal_kind() == Some(FatalKind::WrongCluster)
}

/// Whether a coordinator may have done what it was asked although this is what came of it.
fn maybe_done(opcode: Opcode, error: &RpcError) -> bool {
    match error {
        RpcError::Call(CallError::Unreachable(..)) => false,
        RpcError::Call(_) | RpcError::BadReply(..) => true,
        RpcError::Refused(Refusal::Retry { why, .. }) => {
            // It may have led when it began.
            *why == RetryReason::NotLeader
                // It may wait for the store since an earlier moment.
                || *why == RetryReason::MetadataTrouble
                // The name is gone, servers have not followed yet.
                || opcode == Opcode::DropTable && *why == RetryReason::NotReady
                // It is stored, and its servers have not taken it yet.
                || opcode == Opcode::CreateTable
        }
        RpcError::Refused(_) => false,
    }
}
