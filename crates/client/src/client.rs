//! The client: what it owns, and how an operation on one object finds its server.

use crate::doors::Doors;
use crate::error::ClientError;
use crate::local::LocalMaster;
use crate::options::{ClientOptions, Parts};
use crate::request::DataRequest;
use crate::retry::Attempts;
use crate::sequence::{Sequence, Ticket};
use crate::table::{Table, Tablet};
use crate::window::{WindowPlace, Windows};
use core::time::Duration;
use pluvio_env::{CallError, timeout};
use pluvio_trace::{Span, SpanKind, TraceContext, Traceable, follow};
use pluvio_units::{ClientId, ClusterId, CoreId, KeyHash, ServerId, TableId};
use pluvio_wire::{
    Answer, Coordinators, Get, Header, Outcome, Refusal, RetryReason, RpcError, TableInfo,
};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Tables that are remembered without need, at most.
const TABLES_IDLE_MAX: usize = 64;

/// A client of one cluster. Cheap to clone; clones share what they know.
///
/// Every operation fails with
/// - [`ErrorKind::TimedOut`](crate::ErrorKind::TimedOut) when the cluster could not do it within
///   [`ClientOptions::timeout`] (retryable),
/// - [`ErrorKind::NoSuchTable`](crate::ErrorKind::NoSuchTable) when the table was dropped,
/// - [`ErrorKind::BadArgument`](crate::ErrorKind::BadArgument) when a key or value is too long,
/// - [`ErrorKind::Rejected`](crate::ErrorKind::Rejected) when it has reject rules and one fired,
/// - [`ErrorKind::MaybeExecuted`](crate::ErrorKind::MaybeExecuted) only when
///   [`ClientOptions::retry_ambiguous`] is off.
#[derive(Clone)]
pub struct Client {
    pub(crate) shared: Arc<Shared>,
    core: CoreId,
    /// Instead of [`ClientOptions::full_timeout`].
    full_timeout: Option<Duration>,
    /// What its operations are a part of.
    trace: Option<TraceContext>,
}

pub(crate) struct Shared {
    pub(crate) parts: Parts,
    pub(crate) options: ClientOptions,
    pub(crate) local: Option<Arc<dyn LocalMaster>>,
    /// `None`: all reads are requests, or go to `local`.
    doors: Option<Doors>,
    pub(crate) sequence: Sequence,
    windows: Windows,
    /// Where the coordinators are, and which of them led last.
    pub(crate) coordinators: Coordinators,
    /// So that all handles of a table share what is known of it. Bounded by the tables somebody has
    /// handles of, and [`TABLES_IDLE_MAX`].
    tables: Mutex<BTreeMap<TableId, Table>>,
}

/// The next steps after an attempt that did not succeed but may later.
#[derive(Clone, Copy)]
pub(crate) struct Again {
    /// Wait at least so long.
    pub(crate) after: Duration,
    /// Ask the coordinator for the tablets first.
    pub(crate) refresh: bool,
}

impl Again {
    /// Nothing was tried: what is known by now suffices.
    pub(crate) const AT_ONCE: Self = Self {
        after: Duration::ZERO,
        refresh: false,
    };
}

impl Client {
    /// A client. Nothing is sent before the first operation.
    pub fn new(parts: impl Into<Parts>, options: ClientOptions) -> Self {
        Self::build(parts.into(), options, None)
    }

    /// A client inside a server: operations on tablets of `local` run in place.
    pub fn embedded(
        parts: impl Into<Parts>,
        options: ClientOptions,
        local: Arc<dyn LocalMaster>,
    ) -> Self {
        Self::build(parts.into(), options, Some(local))
    }

    fn build(
        mut parts: Parts,
        options: ClientOptions,
        local: Option<Arc<dyn LocalMaster>>,
    ) -> Self {
        parts.network = Arc::new(Traceable::new(parts.network, Arc::clone(&parts.clock)));
        // Zero means "no identity".
        let id = ClientId(parts.rng.next_u64().max(1));
        let coordinators = Coordinators::new(options.coordinators.clone());
        // A server does not map other servers' memory.
        let maps = options.mapped_reads && local.is_none();
        let doors = maps.then(|| Doors::new(&parts)).flatten();
        Self {
            shared: Arc::new(Shared {
                parts,
                options,
                local,
                doors,
                sequence: Sequence::new(id),
                windows: Windows::default(),
                coordinators,
                tables: Mutex::new(BTreeMap::new()),
            }),
            core: CoreId(0),
            full_timeout: None,
            trace: None,
        }
    }

    /// A clone for code that runs on this core's event loop: it tells the [`LocalMaster`] so.
    #[must_use]
    pub fn on_core(&self, core: CoreId) -> Self {
        Self {
            core,
            ..self.clone()
        }
    }

    /// A clone with another [`ClientOptions::full_timeout`]. With zero, an operation that finds
    /// memory full fails at once.
    #[must_use]
    pub fn with_full_timeout(&self, timeout: Duration) -> Self {
        Self {
            full_timeout: Some(timeout),
            ..self.clone()
        }
    }

    /// A clone whose operations are parts of a trace. Where it is sampled, servers record what they
    /// do for them, with this span as the parent. The process of the client records its own part
    /// if it has a recorder (crate `trace`).
    #[must_use]
    pub fn with_trace(&self, context: TraceContext) -> Self {
        Self {
            trace: Some(context).filter(TraceContext::is_sampled),
            ..self.clone()
        }
    }

    /// The span of an operation that is sampled. One inside another operation's trace is a part of
    /// that already.
    pub(crate) fn begin_trace(&self, name: &'static str) -> Option<Span> {
        if let Some(context) = self.trace {
            return Some(Span::child(context, SpanKind::Client, name));
        }
        let sampler = self.shared.options.trace;
        if sampler.is_off() || !sampler.draws(&*self.shared.parts.rng) {
            return None;
        }
        let is_new = pluvio_trace::current().is_none();
        is_new.then(|| Span::root(&*self.shared.parts.rng, SpanKind::Client, name))
    }

    /// Does an operation, under a span if it is sampled.
    pub(crate) async fn traced<T: Send>(
        &self,
        name: &'static str,
        work: impl Future<Output = T> + Send,
    ) -> T {
        match self.begin_trace(name) {
            None => work.await,
            Some(span) => follow(span, Box::pin(work)).await,
        }
    }

    /// How long an operation may take ([`ClientOptions::timeout`]).
    #[must_use]
    pub fn timeout(&self) -> Duration {
        self.shared.options.timeout
    }

    pub(crate) fn attempts(&self) -> Attempts<'_> {
        let options = &self.shared.options;
        let full = self.full_timeout.unwrap_or(options.full_timeout);
        Attempts::new(&self.shared.parts, options, full)
    }

    /// The servers on this machine whose memory this client reads by now, by ascending id
    /// ([`ClientOptions::mapped_reads`]).
    #[must_use]
    pub fn mapped_servers(&self) -> Vec<ServerId> {
        self.shared.doors.as_ref().map_or(Vec::new(), Doors::mapped)
    }

    /// The outcome of a read that was checked, if mapped memory of its server tells it.
    #[inline]
    pub(crate) fn get_mapped(
        &self,
        table: &Table,
        hash: KeyHash,
        get: &Get<'_>,
    ) -> Option<Outcome> {
        self.shared.doors.as_ref()?.read(table, hash, get)
    }

    /// Whether the server that embeds this client has a hash of a table, as far as it knows.
    #[must_use]
    pub fn is_local(&self, table: &Table, hash: KeyHash) -> bool {
        table
            .owner(hash)
            .is_some_and(|owner| self.local(owner).is_some())
    }

    /// The local master, if `owner` is it.
    pub(crate) fn local(&self, owner: ServerId) -> Option<&dyn LocalMaster> {
        self.shared
            .local
            .as_deref()
            .filter(|local| owner != ServerId(0) && local.owns() == owner)
    }

    pub(crate) fn core(&self) -> CoreId {
        self.core
    }

    /// Executes a request on the server that has this hash: at once when that is possible.
    pub(crate) async fn on_hash<R: DataRequest>(
        &self,
        table: &Table,
        hash: KeyHash,
        request: &R,
    ) -> Result<R::Done, ClientError> {
        self.on_hash_within(table, hash, request, self.attempts())
            .await
    }

    /// [`Client::on_hash`] with these attempts.
    pub(crate) async fn on_hash_within<R: DataRequest>(
        &self,
        table: &Table,
        hash: KeyHash,
        request: &R,
        attempts: Attempts<'_>,
    ) -> Result<R::Done, ClientError> {
        let mut first = None;
        let span = self.begin_trace(R::NAME);
        if self.shared.local.is_some()
            && span.is_none()
            && let Some(owner) = table.owner(hash)
            && let Some(master) = self.local(owner)
        {
            request.check(owner)?;
            // Without identity: only this process has been asked, so nothing can be executed twice
            // and no record is kept.
            let mut header =
                Self::local_header(table.cluster(), owner, self.shared.options.timeout);
            header.operation = request.operation();
            first = Some(match request.local(master, self.core, &header) {
                Answer::Now(Ok(reply)) => match R::done(reply) {
                    Ok(done) => return Ok(done),
                    Err(refusal) => Answer::Now(Err(refusal)),
                },
                other => other,
            });
        }
        // Boxed, so that the futures of operations that are answered at once stay small.
        let waiting = Box::pin(self.on_hash_waiting(table, hash, request, attempts, first));
        match span {
            None => waiting.await,
            Some(span) => follow(span, waiting).await,
        }
    }

    pub(crate) fn local_header(cluster: ClusterId, owner: ServerId, limit: Duration) -> Header {
        Header {
            deadline_us: u32::try_from(limit.as_micros()).unwrap_or(u32::MAX),
            ..Header::within(cluster, owner)
        }
    }

    async fn on_hash_waiting<R: DataRequest>(
        &self,
        table: &Table,
        hash: KeyHash,
        request: &R,
        mut attempts: Attempts<'_>,
        mut first: Option<Answer<R::Reply>>,
    ) -> Result<R::Done, ClientError> {
        let begun = attempts.until_deadline();
        let mut ticket: Option<Ticket<'_>> = None;
        loop {
            let map = table.map();
            let result = if let Some(answer) = first.take() {
                let finished = self.finish_local::<R>(answer, &mut attempts).await;
                finished.inspect_err(|_| request.unanswered())?
            } else if let Some(tablet) = map.locate(hash) {
                // A server that may have done it is asked again.
                if !attempts.is_ambiguous() {
                    request.check(tablet.owner)?;
                }
                let has_moved = || table.map().generation != map.generation;
                let at = (table.cluster(), tablet);
                let asked = self.ask_owner(at, request, &mut ticket, &mut attempts, has_moved);
                match asked.await? {
                    Some(result) => result,
                    None => continue,
                }
            } else {
                attempts.failed(
                    format!("a tablet of table {:?} is not served", table.name()),
                    Some(RetryReason::TabletNotReady),
                );
                attempts.pause(Duration::ZERO).await?;
                self.refresh(table, map.generation, &mut attempts).await?;
                continue;
            };
            let result = result.and_then(|reply| R::done(reply).map_err(RpcError::Refused));
            let again = match result {
                Ok(done) => return Ok(done),
                Err(error) => {
                    let spent = begun.saturating_sub(attempts.until_deadline());
                    self.after_attempt(request, error, spent, &mut attempts)?
                }
            };
            attempts.pause(again.after).await?;
            if again.refresh {
                self.refresh(table, map.generation, &mut attempts).await?;
                for other in request.tables() {
                    if other.unique_key() != table.unique_key() {
                        let seen = other.map().generation;
                        self.refresh(other, seen, &mut attempts).await?;
                    }
                }
            }
        }
    }

    /// Asks the owner of a tablet once: in this process, or over the network. `None` when the key
    /// is to be located anew.
    ///
    /// # Errors
    /// The time is up.
    async fn ask_owner<'a, R: DataRequest>(
        &'a self,
        (cluster, tablet): (ClusterId, &Tablet),
        request: &R,
        ticket: &mut Option<Ticket<'a>>,
        attempts: &mut Attempts<'_>,
        has_moved: impl Fn() -> bool,
    ) -> Result<Option<Result<R::Reply, RpcError>>, ClientError> {
        // With a ticket another server may have been asked before: it has an identity.
        let identity = |ticket: &Option<Ticket<'_>>, attempts: &Attempts<'_>| match ticket {
            Some(ticket) => ticket.id(attempts.until_deadline()),
            None => request.operation(),
        };
        if let Some(master) = self.local(tablet.owner) {
            let limit = attempts.remaining();
            let mut header = Self::local_header(cluster, tablet.owner, limit);
            header.operation = identity(ticket, attempts);
            let answer = request.local(master, self.core, &header);
            let finished = self.finish_local::<R>(answer, attempts).await;
            return finished.inspect_err(|_| request.unanswered()).map(Some);
        }
        let place = self.enter(tablet.owner, R::CHANGES_DATA, ticket, attempts, has_moved);
        let Some(_place) = place.await? else {
            return Ok(None);
        };
        let mut header = Header::within(cluster, tablet.owner);
        header.operation = identity(ticket, attempts);
        let limit = attempts.next_limit();
        let network = &*self.shared.parts.network;
        let called = request.call(network, &tablet.address, header, limit);
        Ok(Some(called.await))
    }

    /// Decides what to do about an attempt that failed, when so long was spent.
    ///
    /// # Errors
    /// No retry helps, or may be made, or the request gives up.
    fn after_attempt<R: DataRequest>(
        &self,
        request: &R,
        error: RpcError,
        spent: Duration,
        attempts: &mut Attempts<'_>,
    ) -> Result<Again, ClientError> {
        if is_unanswered(&error) {
            request.unanswered();
        }
        let is_in_vain = request.is_in_vain(&error, spent);
        let again = self.after_failure(error, R::CHANGES_DATA, attempts)?;
        match is_in_vain {
            true => Err(attempts.timed_out()),
            false => Ok(again),
        }
    }

    /// A place for one operation, which has an identity then if it is to be `numbered`; `None` when
    /// it is to be located anew.
    ///
    /// Whoever has to wait for an identity does so without a place (CLIENT-6).
    ///
    /// # Errors
    /// The time was up before there were both.
    async fn enter<'a>(
        &'a self,
        server: ServerId,
        numbered: bool,
        ticket: &mut Option<Ticket<'a>>,
        attempts: &Attempts<'_>,
        has_moved: impl Fn() -> bool,
    ) -> Result<Option<WindowPlace>, ClientError> {
        let place = self.place(server, attempts, has_moved).await?;
        if place.is_none() || !numbered || ticket.is_some() {
            return Ok(place);
        }
        *ticket = self.shared.sequence.try_begin(1);
        if ticket.is_some() {
            return Ok(place);
        }
        drop(place);
        self.identify(ticket, 1, attempts).await?;
        Ok(None)
    }

    /// A place among the requests under way to a server; `None` when another server is to be asked.
    /// A task that has it may wait for the answer of that server only (CLIENT-6).
    ///
    /// # Errors
    /// The time was up before there was one.
    pub(crate) async fn place(
        &self,
        server: ServerId,
        attempts: &Attempts<'_>,
        has_moved: impl Fn() -> bool,
    ) -> Result<Option<WindowPlace>, ClientError> {
        let clock = &*self.shared.parts.clock;
        let windows = &self.shared.windows;
        let place = windows
            .enter(server, clock, attempts.remaining(), has_moved)
            .await;
        if place.is_none() && attempts.is_over() {
            return Err(attempts.timed_out());
        }
        Ok(place)
    }

    /// Gives operations that change data their identity, the same for all their attempts. Not for
    /// those who have a place (CLIENT-6).
    ///
    /// # Errors
    /// The time was up before fewer operations were under way.
    pub(crate) async fn identify<'a>(
        &'a self,
        ticket: &mut Option<Ticket<'a>>,
        count: u32,
        attempts: &Attempts<'_>,
    ) -> Result<(), ClientError> {
        if ticket.is_some() {
            return Ok(());
        }
        let sequence = &self.shared.sequence;
        let begun = match sequence.try_begin(count) {
            Some(begun) => begun,
            None => {
                let clock = &*self.shared.parts.clock;
                let turn = timeout(clock, attempts.remaining(), sequence.begin(count)).await;
                turn.map_err(|_| attempts.timed_out())?
            }
        };
        *ticket = Some(begun);
        Ok(())
    }

    /// Waits for a local answer, at most until the time is up.
    pub(crate) async fn finish_local<R: DataRequest>(
        &self,
        answer: Answer<R::Reply>,
        attempts: &mut Attempts<'_>,
    ) -> Result<Result<R::Reply, RpcError>, ClientError> {
        let result = match answer {
            Answer::Now(result) => result,
            Answer::Later(future) => {
                let clock = &*self.shared.parts.clock;
                match timeout(clock, attempts.remaining(), future).await {
                    Ok(result) => result,
                    Err(_) => {
                        attempts.unanswered();
                        if R::CHANGES_DATA {
                            attempts.ambiguous();
                        }
                        return Err(attempts.timed_out());
                    }
                }
            }
        };
        Ok(result.map_err(RpcError::Refused))
    }

    /// Decides what to do about a failed attempt.
    ///
    /// # Errors
    /// No retry helps, or may be made.
    pub(crate) fn after_failure(
        &self,
        error: RpcError,
        changes_data: bool,
        attempts: &mut Attempts<'_>,
    ) -> Result<Again, ClientError> {
        let text = error.to_string();
        match error {
            RpcError::Refused(refusal) => match refusal {
                Refusal::Retry { after_us, why } => {
                    attempts.failed(text, Some(why));
                    Ok(Again {
                        after: Duration::from_micros(u64::from(after_us)),
                        refresh: matches!(
                            why,
                            RetryReason::TabletNotReady | RetryReason::NotServing
                        ),
                    })
                }
                Refusal::Refresh => {
                    attempts.failed(text, None);
                    Ok(Again {
                        after: Duration::ZERO,
                        refresh: true,
                    })
                }
                Refusal::Rejected { .. } | Refusal::Fatal { .. } => {
                    Err(ClientError::from_final(refusal))
                }
            },
            RpcError::BadReply(..) => Err(ClientError::Protocol(text)),
            RpcError::Call(CallError::TooLarge(..)) => Err(ClientError::Protocol(text)),
            RpcError::Call(call) => {
                let unknown = changes_data && !matches!(call, CallError::Unreachable(..));
                if unknown {
                    attempts.ambiguous();
                    if !self.shared.options.retry_ambiguous {
                        return Err(ClientError::MaybeExecuted(text));
                    }
                }
                attempts.failed(text, None);
                Ok(Again {
                    after: Duration::ZERO,
                    refresh: true,
                })
            }
        }
    }

    /// Remembers what the coordinator said of a table, and gives its handle.
    pub(crate) fn learn(&self, info: &TableInfo) -> Table {
        let mut tables = self.tables();
        // A table of another cluster may have had the id; its handles are not to lead to this one.
        if let Some(table) = tables
            .get(&info.id)
            .filter(|table| table.is_described_by(info))
        {
            table.update(info);
            return table.clone();
        }
        if tables.len() >= TABLES_IDLE_MAX {
            tables.retain(|_, table| table.is_held());
        }
        let table = Table::new(info);
        tables.insert(info.id, table.clone());
        table
    }

    /// Forgets a table that was dropped.
    pub(crate) fn forget(&self, table: TableId) {
        self.tables().remove(&table);
    }

    fn tables(&self) -> std::sync::MutexGuard<'_, BTreeMap<TableId, Table>> {
        self.shared
            .tables
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether the request was sent, and may have been executed although no reply said so.
fn is_unanswered(error: &RpcError) -> bool {
    match error {
        RpcError::Call(call) => !matches!(call, CallError::Unreachable(..)),
        RpcError::BadReply(..) => true,
        RpcError::Refused(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::FakeCluster;

    #[test]
    fn tables_of_which_nobody_has_a_handle_are_forgotten() {
        let cluster = FakeCluster::new(1);
        let client = cluster.client();
        cluster.run(async {
            let held = client.create_table("held", None).await.unwrap();
            for n in 0..3 * TABLES_IDLE_MAX {
                let name = format!("table {n}");
                client.create_table(&name, None).await.unwrap();
            }
            let tables = client.tables();
            assert!(tables.len() <= TABLES_IDLE_MAX);
            assert!(tables.contains_key(&held.id()));
        });
    }
}
