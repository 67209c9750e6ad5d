//! `cargo xtask day --rounds N`: how long clients wait while balancing moves tablets, beside how
//! long they wait without it, in turns.
//!
//! Before each turn a drain empties a server, and is taken back. So balancing has to fill it.

use crate::load::latencies;
use crate::support::patience::pause;
use crate::{Asked, Clients, Crew, Day, OLD, balance};
use std::path::Path;
use std::time::Duration;

/// Servers.
const SERVERS: usize = 3;
/// A turn without balancing.
const QUIET: Duration = Duration::from_secs(12);

/// Measures `rounds` turns of each.
///
/// # Errors
/// A client found a value lost, older or damaged, or was refused something.
pub fn run(asked: &Asked, directory: &Path, rounds: u32) -> Result<(), String> {
    let crew = Crew::start(directory, asked.memory, OLD, SERVERS);
    let mut clients = Clients::new(asked, &crew);
    clients.fill()?;
    clients.stay(&crew);
    let mut day = Day { crew, clients };
    let (mut without, mut with) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        day.crew.ask(&["balance", "off"]);
        let id = day.crew.ids()[round as usize % SERVERS].to_string();
        day.crew.ask(&["drain", &id]);
        day.crew.ask(&["drain", "--cancel", &id]);
        day.hour("balancing is off", |_| pause(QUIET))?;
        without.append(&mut day.clients.latencies());
        day.crew.ask(&["balance", "on"]);
        balance(&mut day)?;
        with.append(&mut day.clients.latencies());
    }
    println!("without balancing: {}", latencies(&mut without));
    println!("while it moves:    {}", latencies(&mut with));
    day.clients.compare_all(&day.crew)
}
