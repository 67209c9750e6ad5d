//! Tasks that a person starts, because they take long or need more than CI has.

use anyhow::{Result, bail};

pub mod applications;
pub mod example;
pub mod long;
pub mod measure;
pub mod packages;
pub mod porcupine;
pub mod tsan;

/// Names with commas, each one of the `known` names of a `kind`.
fn names<'a>(list: &str, kind: &str, known: impl Iterator<Item = &'a str>) -> Result<Vec<String>> {
    let known: Vec<&str> = known.collect();
    let names: Vec<String> = list.split(',').map(str::to_owned).collect();
    match names.iter().find(|name| !known.contains(&name.as_str())) {
        Some(name) => bail!("no {kind} {name}; give {}", known.join(", ")),
        None => Ok(names),
    }
}
