//! Cluster clients of Redis: they send each command to the owner of the key's slot, as far as they
//! know it, and follow MOVED.
//!
//! A command that was answered with MOVED was not executed, and is sent once more. So is one whose
//! server could not be connected to, to any other server.

use super::draw::Draw;
use super::redis::{CONNECT_PAUSE, PIPELINE_MAX, Redis, Sent};
use pluvio_env::timeout;
use pluvio_load::resp::{Connection, Reply};
use pluvio_sim::history::Outcome;
use pluvio_units::KeySlot;
use std::collections::BTreeMap;

/// Servers that a command is sent to, one after the other, before its client gives up. Redis's own
/// clients follow five redirections or more.
const SENDINGS_MAX: u32 = 6;

/// What a cluster client knows.
#[derive(Default)]
pub struct Slots {
    /// Cluster ports of all servers.
    servers: Vec<String>,
    /// The servers of slots, by number, as far as they are known.
    owners: BTreeMap<u16, String>,
    connections: BTreeMap<String, Connection>,
}

/// A command that waits to be sent.
struct Ready {
    slot: u16,
    bytes: Vec<u8>,
    sent: Sent,
}

/// What came back.
enum Back {
    Moved { slot: u16, to: String },
    Ended(Outcome),
}

impl Slots {
    /// A client that knows where servers listen, and no slot.
    pub fn new(servers: Vec<String>) -> Self {
        Self {
            servers,
            ..Self::default()
        }
    }

    fn server_of(&self, slot: u16, draw: &mut Draw) -> String {
        match self.owners.get(&slot) {
            Some(owner) => owner.clone(),
            None => self.servers[draw.place(self.servers.len())].clone(),
        }
    }

    /// Forgets what a server serves.
    fn forget(&mut self, server: &str) {
        self.owners.retain(|_, owner| owner != server);
    }
}

/// The slot and the address of MOVED.
fn moved(text: &str) -> Option<(u16, String)> {
    let mut words = text.strip_prefix("MOVED ")?.split(' ');
    let slot = words.next()?.parse().ok()?;
    Some((slot, words.next()?.to_owned()))
}

impl Redis {
    /// Some commands, in a pipeline for each server. Gives what it knows then.
    pub(super) async fn step_of_cluster(&mut self, mut slots: Slots) -> Slots {
        let mut ready = Vec::new();
        for _ in 0..=self.draw.below(PIPELINE_MAX) {
            let subject = self.journal.pick(&mut self.draw);
            let mut bytes = Vec::new();
            let sent = self.one(&subject, &mut bytes);
            let slot = KeySlot::of(&subject.key).number();
            ready.push(Ready { slot, bytes, sent });
        }
        for _ in 0..SENDINGS_MAX {
            let mut groups: BTreeMap<String, Vec<Ready>> = BTreeMap::new();
            for one in ready.drain(..) {
                let server = slots.server_of(one.slot, &mut self.draw);
                groups.entry(server).or_default().push(one);
            }
            for (server, group) in groups {
                ready.extend(self.send_all(&mut slots, &server, group).await);
            }
            if ready.is_empty() {
                return slots;
            }
        }
        for one in ready {
            self.journal
                .error("redis cluster: sent on and on".to_owned());
            self.end(one.sent, Some(Outcome::NotDone), true);
        }
        slots
    }

    /// A pipeline to one server. Gives commands that are to be sent to another one.
    async fn send_all(&mut self, slots: &mut Slots, server: &str, group: Vec<Ready>) -> Vec<Ready> {
        let known = slots.connections.remove(server);
        let connection = match known {
            Some(connection) => Some(connection),
            None => self.open(server).await,
        };
        let Some(mut connection) = connection else {
            slots.forget(server);
            self.clock.sleep(CONNECT_PAUSE).await;
            return group;
        };
        let bytes: Vec<u8> = group.iter().flat_map(|one| one.bytes.clone()).collect();
        let clock = self.clock.clone();
        let sent = timeout(&*clock, self.patience, connection.send(&bytes)).await;
        let mut is_whole = sent.is_ok_and(|result| result.is_ok());
        let mut again = Vec::new();
        for one in group {
            let mut back = None;
            if is_whole {
                let reply = connection.reply(|reply| self.back(&one.sent, reply));
                let waited = timeout(&*clock, self.patience, reply).await;
                back = waited.ok().and_then(Result::ok);
                is_whole = back.is_some();
            }
            match back {
                Some(Back::Moved { slot, to }) => {
                    self.journal.error("redis cluster: MOVED".to_owned());
                    slots.owners.insert(slot, to);
                    again.push(one);
                }
                Some(Back::Ended(outcome)) => {
                    slots.owners.insert(one.slot, server.to_owned());
                    self.end(one.sent, Some(outcome), true);
                }
                None => self.end(one.sent, None, true),
            }
        }
        if is_whole && !self.draw.percent(2) {
            slots.connections.insert(server.to_owned(), connection);
        } else if !is_whole {
            slots.forget(server);
        }
        again
    }

    fn back(&self, sent: &Sent, reply: Reply<'_>) -> Back {
        match reply.error().and_then(moved) {
            Some((slot, to)) => Back::Moved { slot, to },
            None => Back::Ended(self.outcome(sent, reply)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moved_names_a_slot_and_a_server() {
        let answer = moved("MOVED 3999 10.0.0.7:7000");
        assert_eq!(answer, Some((3_999, "10.0.0.7:7000".to_owned())));
        for other in ["MOVED", "MOVED x y", "TRYAGAIN later", "ERR MOVED 1 a:1"] {
            assert_eq!(moved(other), None, "{other}");
        }
    }
}
