//! Whether a leader reaches the servers (LEAD-5): what its latest pings of servers chosen at random
//! showed.

use crate::suspicion::Sign;
use std::collections::VecDeque;

/// Pings that are remembered. While servers are silent that is the last three to four seconds; a
/// leader that has sent fewer says nothing about itself.
const WINDOW: usize = 8;
/// A quarter: with as few answers, or fewer, contact is lost.
const LOST_MAX: usize = WINDOW / 4;

/// What the latest pings showed. Pure.
#[derive(Default, Debug)]
pub(crate) struct Contact {
    /// Whether somebody answered, the oldest one first.
    latest: VecDeque<bool>,
}

impl Contact {
    /// Takes in one ping. A machine that refuses the connection is reached: it says that the
    /// process is gone.
    pub(crate) fn note(&mut self, sign: Sign) {
        if self.latest.len() == WINDOW {
            self.latest.pop_front();
        }
        self.latest.push_back(match sign {
            Sign::Alive | Sign::Gone => true,
            Sign::Silent => false,
        });
    }

    /// Whether hardly any server is reached.
    pub(crate) fn is_lost(&self) -> bool {
        let answered = self.latest.iter().filter(|answered| **answered).count();
        self.latest.len() == WINDOW && answered <= LOST_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // shows: LEAD-5
    #[test]
    fn contact_is_lost_after_many_pings_and_found_again_after_few() {
        let mut contact = Contact::default();
        for _ in 0..WINDOW {
            assert!(!contact.is_lost());
            contact.note(Sign::Silent);
        }
        assert!(contact.is_lost());
        for _ in 0..LOST_MAX {
            contact.note(Sign::Alive);
            assert!(contact.is_lost());
        }
        contact.note(Sign::Alive);
        assert!(!contact.is_lost());
    }

    // shows: LEAD-5
    #[test]
    fn a_refused_connection_is_contact() {
        let mut contact = Contact::default();
        for _ in 0..2 * WINDOW {
            contact.note(Sign::Gone);
        }
        assert!(!contact.is_lost());
    }
}
