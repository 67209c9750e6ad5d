//! The HELP subcommands: made from the table.

use crate::reply::Reply;
use crate::table::{SPECS, find};

/// What `container|help` answers.
pub(super) fn lines(name: &str) -> Reply {
    let container = name.split('|').next().unwrap_or(name);
    let upper = container.to_uppercase();
    let mut lines = vec![Reply::Word(format!(
        "{upper} <subcommand> [<arg> [value] [opt] ...]. Subcommands are:"
    ))];
    let spec = find(container.as_bytes()).map(|n| &SPECS[usize::from(n)]);
    for sub in spec.into_iter().flat_map(|s| s.subcommands()) {
        let name = sub.name.split('|').next_back().unwrap_or(sub.name);
        let name = name.to_uppercase();
        let arguments = match sub.arity {
            ..0 => " <arg> ...",
            0..=2 => "",
            3.. => " <arg>",
        };
        lines.push(Reply::Word(format!("{name}{arguments}")));
        lines.push(Reply::Word(format!("    {}.", sub.summary)));
    }
    Reply::Array(lines)
}
