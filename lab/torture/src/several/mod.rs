//! Transactions over registers and lists that lie on several servers, and single operations on the
//! same keys.
//!
//! Every write has a token of its own ([`pluvio_sim::history::transactions`]). Keys come in groups:
//! two registers and two lists. A transaction meets the keys of one group, some those of two.
//!
//! - TORT-7: a group has at most [`GROUP_OPERATIONS_MAX`] operations of clients at work, some more
//!   of those that overlap with its end, and the last reads. Then another group takes its place.
//!   So each is a window that a search for an order gets through.

mod native;
mod redis;

pub use native::read_all;
pub use pluvio_sim::cluster::several::Shared;

use super::draw::Draw;
use super::journal::Journal;
use pluvio_sim::cluster::several::{Wanted, Wish};
use pluvio_sim::history::transactions::Holds;

/// Of a hundred steps of a client this many are of this kind.
const PERCENT: u64 = 25;
/// Operations that are begun on one group.
pub const GROUP_OPERATIONS_MAX: u64 = 150;
/// The fewest.
pub const GROUP_OPERATIONS_MIN: u64 = 60;
/// Groups in use at a time.
pub const GROUPS: usize = 2;
/// What the keys of a group hold.
pub const GROUP: [(Holds, char); 4] = [
    (Holds::Register, 's'),
    (Holds::List, 'l'),
    (Holds::Register, 's'),
    (Holds::List, 'l'),
];
/// Of a hundred transactions this many meet two groups.
pub const BRIDGES_PERCENT: u64 = 8;

/// Whether the next step of a client is of this kind.
pub fn draw(draw: &mut Draw) -> bool {
    draw.percent(PERCENT)
}

/// A wish for a key.
fn wish(journal: &Journal, draw: &mut Draw, holds: Holds) -> Wish {
    Wish::of(holds, draw.below(100), || journal.token())
}

/// Some parts on these keys; a key may occur twice.
fn parts(journal: &Journal, draw: &mut Draw, keys: &[Shared]) -> Vec<Wanted> {
    let count = 2 + draw.below(3);
    let mut part = || {
        let key = keys[draw.place(keys.len())].clone();
        let wish = wish(journal, draw, key.holds);
        Wanted { key, wish }
    };
    (0..count).map(|_| part()).collect()
}
