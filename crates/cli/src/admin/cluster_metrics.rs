//! The numbers of the whole cluster, which the coordinator that leads tells.

use super::metrics::Metrics;
use pluvio_client::{ClusterStatus, TableInfo};
use pluvio_wire::{ServerState, TabletState};
use std::collections::BTreeMap;

/// Most tables whose quotas are told: more would make the page long.
const QUOTAS_MAX: usize = 100;

impl Metrics {
    /// The whole cluster, as its coordinator sees it.
    pub fn cluster(&mut self, status: &ClusterStatus) {
        let servers = |state| {
            status
                .list
                .servers
                .iter()
                .filter(|s| s.state == state)
                .count() as u64
        };
        let tablets = |state| {
            let all = status.tables.iter().flat_map(|t| &t.tablets);
            all.filter(|t| t.state == state).count() as u64
        };
        self.gauge(
            "cluster_servers_up",
            "Servers that are members.",
            servers(ServerState::Up),
        );
        self.gauge(
            "cluster_servers_crashed",
            "Servers declared dead and not recovered yet.",
            servers(ServerState::Crashed),
        );
        self.gauge(
            "cluster_servers_drained",
            "Servers whose tablets move, or have moved, away.",
            status.drains.len() as u64,
        );
        self.gauge(
            "cluster_balance_on",
            "1 while tablets are balanced, 0 when that is switched off.",
            u64::from(status.balance.on),
        );
        self.counter(
            "balance_moves",
            "Migrations begun for the sake of balance since this coordinator leads.",
            status.balance.begun,
        );
        self.counter(
            "balance_moved_bytes",
            "Bytes of those, about.",
            status.balance.begun_bytes,
        );
        self.counter(
            "tablets_joined",
            "Joins of neighbouring tablets since this coordinator leads.",
            status.balance.joined,
        );
        self.gauge("cluster_tables", "Tables.", status.tables.len() as u64);
        self.gauge(
            "cluster_tablets_served",
            "Tablets that are served.",
            tablets(TabletState::Normal),
        );
        self.gauge(
            "cluster_tablets_recovering",
            "Tablets that wait for recovery.",
            tablets(TabletState::Recovering),
        );
        self.gauge(
            "cluster_tablets_assigning",
            "Tablets whose owner has not confirmed them.",
            tablets(TabletState::Assigning),
        );
        let mut stages: BTreeMap<&str, u64> = BTreeMap::new();
        for recovery in status.recoveries.iter().filter(|r| !r.done) {
            *stages.entry(recovery.stage.name()).or_default() += 1;
        }
        self.gauge(
            "cluster_recoveries_under_way",
            "Recoveries under way.",
            stages.values().sum(),
        );
        let stages = stages.into_iter();
        self.gauges(
            "cluster_recoveries_in_stage",
            "Recoveries under way, by stage.",
            stages
                .map(|(stage, count)| (vec![("stage", stage.to_owned())], count))
                .collect(),
        );
        self.counter(
            "volatile_tablets_begun_anew",
            "Times that tablets without replicas began anew, empty, after their server had died.",
            status.begun_anew,
        );
        let moved = status.migrations.iter().filter(|m| !m.done);
        self.gauge(
            "cluster_migrations_bytes",
            "Bytes copied so far by the migrations under way.",
            moved.map(|m| m.progress.bytes).sum(),
        );
        self.gauge(
            "cluster_servers_waiting",
            "Servers whose writes wait.",
            status
                .servers
                .iter()
                .filter(|s| s.writes_wait.is_some())
                .count() as u64,
        );
        self.gauge(
            "cluster_servers_silent",
            "Members that did not answer when they were asked for this page.",
            servers(ServerState::Up).saturating_sub(status.servers.len() as u64),
        );
        let under_way = status.migrations.iter().filter(|m| !m.done).count();
        self.gauge(
            "cluster_migrations_under_way",
            "Migrations of tablets under way.",
            under_way as u64,
        );
        self.gauge(
            "cluster_server_list_version",
            "Version of the server list.",
            status.list.version.0,
        );
        self.quotas(status);
    }

    /// Quotas of tables, by the tables' ids: names of users would have no bound.
    fn quotas(&mut self, status: &ClusterStatus) {
        let with_quota = status.tables.iter().filter(|table| !table.quota.is_none());
        let tables: Vec<&TableInfo> = with_quota.take(QUOTAS_MAX).collect();
        let mut told = |name: &str, help: &str, of: fn(&TableInfo) -> Option<u64>| {
            let samples = tables.iter().filter_map(|table| {
                let label = vec![("table", table.id.to_string())];
                Some((label, of(table)?))
            });
            self.gauges(name, help, samples.collect());
        };
        told(
            "table_quota_bytes",
            "Bytes that a table may have.",
            |table| table.quota.bytes,
        );
        told(
            "table_quota_used_bytes",
            "Bytes that a table with a quota has.",
            |table| Some(table.quota_state?.bytes),
        );
        told(
            "table_quota_operations",
            "Operations a second that a table may have.",
            |table| table.quota.operations,
        );
        told(
            "table_quota_used_operations",
            "Operations a second that a table with a quota has.",
            |table| Some(table.quota_state?.operations),
        );
        told(
            "table_quota_refused",
            "Writes and operations of a table that its owners have refused for its quota.",
            |table| {
                let state = table.quota_state?;
                Some(state.refused_bytes + state.refused_operations)
            },
        );
    }
}
