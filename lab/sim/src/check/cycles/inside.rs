//! What a transaction says of one key: what it met there, and what it left.
//!
//! A transaction sees its own writes, and nothing else changes while it takes effect.

use crate::history::transactions::{Transaction, What};

/// What a transaction left at a key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Left {
    /// What it met.
    Untouched,
    /// This token only; `None`: no object.
    Only(Option<u64>),
    /// These tokens behind those that it met.
    Appended(Vec<u64>),
}

/// What a transaction says of one key.
#[derive(Clone, Debug)]
pub struct Use<'a> {
    /// The transaction.
    pub node: u32,
    /// The tokens that it met, if it says so.
    pub met: Option<&'a [u64]>,
    /// What it left.
    pub left: Left,
    /// Tokens that it appended and knows the places of.
    pub placed: Vec<(u64, u64)>,
}

/// What a transaction says of a key.
///
/// # Errors
/// It contradicts itself: how.
pub fn look(transaction: &Transaction, node: u32, key: u32) -> Result<Use<'_>, String> {
    let mut looked = Use {
        node,
        met: None,
        left: Left::Untouched,
        placed: Vec::new(),
    };
    for step in transaction.steps.iter().filter(|step| step.key == key) {
        match &step.what {
            What::Read { saw: None } => {}
            What::Read { saw: Some(saw) } => looked.read(saw)?,
            What::Set { token } => looked.left = Left::Only(Some(*token)),
            What::Append { token, length } => {
                let mut tokens = match looked.left {
                    Left::Appended(tokens) => tokens,
                    Left::Untouched | Left::Only(_) => Vec::new(),
                };
                tokens.push(*token);
                if let Some(length) = *length {
                    let own = tokens.len() as u64;
                    if looked
                        .met
                        .is_some_and(|met| met.len() as u64 + own != length)
                    {
                        return Err(format!("appended {token} as number {length}"));
                    }
                    looked.placed.push((*token, length));
                }
                looked.left = Left::Appended(tokens);
            }
            What::Delete { found } => looked.delete(*found)?,
        }
    }
    Ok(looked)
}

impl<'a> Use<'a> {
    fn read(&mut self, saw: &'a [u64]) -> Result<(), String> {
        let met = match &self.left {
            Left::Untouched => saw,
            Left::Only(token) => {
                return match saw == token.as_slice() {
                    true => Ok(()),
                    false => Err(format!("read {saw:?} after its own write")),
                };
            }
            Left::Appended(tokens) => saw
                .strip_suffix(&tokens[..])
                .ok_or_else(|| format!("read {saw:?} after its own appends"))?,
        };
        match self.met {
            Some(before) if before != met => {
                Err(format!("met {before:?} and then {met:?} in one moment"))
            }
            Some(_) | None => {
                self.met = Some(met);
                Ok(())
            }
        }
    }

    fn delete(&mut self, found: Option<bool>) -> Result<(), String> {
        let was_there = match &self.left {
            Left::Untouched => self.met.map(|met| !met.is_empty()),
            Left::Only(token) => Some(token.is_some()),
            Left::Appended(_) => Some(true),
        };
        if let (Some(found), Some(was_there)) = (found, was_there)
            && found != was_there
        {
            return Err(match found {
                true => "deleted an object, and there was none".to_owned(),
                false => "found nothing to delete, and there was an object".to_owned(),
            });
        }
        match (&self.left, found.or(was_there)) {
            // It met nothing, and leaves it so.
            (Left::Untouched, Some(false)) => self.met = Some(&[]),
            _ => self.left = Left::Only(None),
        }
        Ok(())
    }
}
