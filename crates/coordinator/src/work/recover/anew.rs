//! Tablets without replicas: nobody can recover them, so they begin anew (`docs/classes.md`).
//!
//! - COORD-23: a tablet of a volatile class, or of a server without replicas, begins anew when its
//!   owner has crashed: empty, on another server. That is so once nobody answers reads of it any
//!   more. No version of what was lost is given again. Other tablets never begin anew.

use crate::context::Context;
use crate::state::{State, TableRecord, TabletRecord};
use pluvio_env::{Moment, Rng};
use pluvio_units::{ObjectVersion, ServerId};
use pluvio_wire::{ServerInfo, TabletSpec, TabletState};
use std::collections::BTreeSet;

/// The versions that a server gives from one beginning to the next are fewer. It would have to give
/// a million of them a second for half a year.
const VERSIONS_EACH: u64 = 1 << 44;
/// Beginnings that are counted. With more of them versions may come again.
const COUNTED_MAX: u64 = 1 << 19;

/// Whether a tablet has no replicas in a cluster where others have.
pub(super) fn is_volatile(tablet: &TabletSpec) -> bool {
    tablet.class.is_some_and(|class| class.is_volatile())
}

impl State {
    /// Gives tablets of a crashed server to others, empty (COORD-23). Says how many.
    pub(super) fn begin_anew(
        &mut self,
        crashed: ServerId,
        specs: &[TabletSpec],
        rng: &dyn Rng,
    ) -> usize {
        let mut begun = 0;
        for spec in specs {
            let Some(table) = self.table_mut(spec.table) else {
                continue;
            };
            let lost = |t: &&mut TabletRecord| {
                t.range == spec.range && t.owner == crashed && t.state == TabletState::Recovering
            };
            for tablet in table.tablets.iter_mut().filter(lost) {
                *tablet = TabletRecord::new(tablet.range, crashed);
                begun += 1;
            }
            // Without a server that is up it stays where it is, and `Work::Assign` tries again.
            self.reassign(spec.table, &BTreeSet::from([crashed]), rng);
        }
        self.globals.begun_anew += u64::from(begun > 0);
        begun
    }

    /// The least version that this server may give in a tablet of this table that holds nothing. 0:
    /// any, as nothing of the table begins anew.
    pub(crate) fn first_version(&self, table: &TableRecord, owner: &ServerInfo) -> ObjectVersion {
        let is_volatile = owner.volatile || table.class.is_some_and(|class| class.is_volatile());
        let begun = match is_volatile {
            true => self.globals.begun_anew.min(COUNTED_MAX),
            false => 0,
        };
        ObjectVersion(begun * VERSIONS_EACH)
    }
}

/// Lets volatile tablets of a crashed server begin anew, once it has lost its lease. Backups had
/// fenced it at `fenced`. Where that cannot be stored now, the next attempt does it.
pub(super) async fn begin_anew(
    context: &Context,
    crashed: ServerId,
    volatile: Vec<TabletSpec>,
    fenced: Moment,
) {
    if volatile.is_empty() {
        return;
    }
    let wait = (fenced + context.options.zombie_grace).since(context.now());
    if !wait.is_zero() {
        context.sleep(wait).await;
    }
    let rng = context.env.rng.clone();
    let change = move |state: &mut State| Ok(state.begin_anew(crashed, &volatile, &*rng));
    if let Ok(tablets) = context.ledger.change(change).await {
        pluvio_units::mark("volatile-tablets-begin-anew");
        tracing::warn!(
            %crashed, tablets,
            "tablets of volatile tables have lost their server, and begin anew, empty"
        );
    }
}
