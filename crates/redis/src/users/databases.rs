//! Rights by database: the databases that a set of rights has, and those that a command uses.
//!
//! - RIGHTS-2: a command that uses databases is allowed only if all of them are. These are the
//!   database of the connection, for a command on keys or on the database, and those that SELECT,
//!   SWAPDB, MOVE and COPY name. FLUSHALL uses all.

use super::rules::RuleError;
use crate::commands::{Data, Now, Other, Own, Query, ReadsFirst};
use crate::database::{DATABASES, DatabaseId};
use crate::number::integer;
use crate::parser::Command;
use crate::table::{Keys, Run, SPECS, Spec};
use core::num::IntErrorKind;
use std::sync::LazyLock;

/// The databases that a set of rights has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum DatabaseSet {
    /// All, also those that later versions have.
    All,
    /// A bit for each.
    Only(u16),
}

const _: () = assert!(DATABASES <= 16, "a bit for each");

impl DatabaseSet {
    pub(super) const NONE: Self = Self::Only(0);

    /// From their numbers, with commas between them.
    ///
    /// # Errors
    /// One is no number, or there is no such database.
    pub(super) fn of_numbers(numbers: &[u8]) -> Result<Self, RuleError> {
        let mut bits = 0;
        for number in numbers.split(|byte| *byte == b',') {
            bits |= bit(parse(number)?);
        }
        Ok(Self::Only(bits))
    }

    fn has(self, database: DatabaseId) -> bool {
        match self {
            Self::All => true,
            Self::Only(bits) => bits & bit(database) != 0,
        }
    }

    /// The rule that makes it, as ACL GETUSER shows it: of none, nothing.
    pub(super) fn text(self) -> String {
        match self {
            Self::All => "alldbs".to_owned(),
            Self::NONE => String::new(),
            Self::Only(_) => {
                let here = DatabaseId::all().filter(|database| self.has(*database));
                let numbers: Vec<_> = here.map(|one| one.number().to_string()).collect();
                format!("db={}", numbers.join(","))
            }
        }
    }

    /// The rule that makes it from all.
    pub(super) fn rule(self) -> Option<String> {
        match self {
            Self::All => None,
            Self::NONE => Some("resetdbs".to_owned()),
            Self::Only(_) => Some(self.text()),
        }
    }

    /// The position in a command of the first database that it uses and that is not here
    /// (RIGHTS-2). 0: no argument names that one.
    pub(super) fn lacks(self, spec: u16, database: DatabaseId, command: &Command) -> Option<usize> {
        if self == Self::All {
            return None;
        }
        let own = || (!self.has(database)).then_some(0);
        // An argument that makes no sense is left to the command.
        let named = |at: usize| {
            let named = integer(command.get(at)).and_then(DatabaseId::new);
            named.filter(|named| !self.has(*named)).map(|_| at)
        };
        match USES[usize::from(spec)] {
            Uses::Nothing => None,
            Uses::Own => own(),
            Uses::All => DatabaseId::all().any(|one| !self.has(one)).then_some(0),
            Uses::Select => named(1),
            Uses::SwapDb => named(1).or_else(|| named(2)),
            Uses::Move => own().or_else(|| named(2)),
            Uses::Copy => {
                let mut options = 3..command.len().saturating_sub(1);
                own().or_else(|| {
                    options.find_map(|at| match command.is(at, "DB") {
                        true => named(at + 1),
                        false => None,
                    })
                })
            }
        }
    }
}

fn bit(database: DatabaseId) -> u16 {
    1 << database.number()
}

fn parse(number: &[u8]) -> Result<DatabaseId, RuleError> {
    let text = core::str::from_utf8(number).map_err(|_| RuleError::Syntax)?;
    match text.parse::<i64>() {
        Ok(number) => DatabaseId::new(number).ok_or(RuleError::NoSuchDatabase),
        Err(error) => Err(match error.kind() {
            IntErrorKind::PosOverflow | IntErrorKind::NegOverflow => RuleError::NoSuchDatabase,
            _ => RuleError::Syntax,
        }),
    }
}

/// Which databases a command uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Uses {
    Nothing,
    /// That of the connection.
    Own,
    All,
    /// Those that the command of this name says.
    Select,
    SwapDb,
    Move,
    Copy,
}

impl Uses {
    fn of(spec: &Spec) -> Self {
        let is_in = |category| super::rights::is_in(spec, category);
        match spec.run {
            Run::Own(Own::Select) => Self::Select,
            Run::Now(Now::SwapDb) => Self::SwapDb,
            Run::Data(Data::ReadsFirst(ReadsFirst::Move)) => Self::Move,
            Run::Data(Data::ReadsFirst(ReadsFirst::Copy)) => Self::Copy,
            Run::Data(Data::Other(Other::FlushAll)) => Self::All,
            // They have no category that says so.
            Run::Data(Data::Other(Other::Debug | Other::Cluster(Query::CountKeysInSlot))) => {
                Self::Own
            }
            Run::Container | Run::Now(_) | Run::Own(_) | Run::Data(_) => {
                let is_on_data = is_in(b"keyspace") || is_in(b"read") || is_in(b"write");
                match is_on_data || spec.keys != Keys::NONE {
                    true => Self::Own,
                    false => Self::Nothing,
                }
            }
        }
    }
}

/// Of the rows of the table: to look into the categories takes longer.
static USES: LazyLock<Vec<Uses>> = LazyLock::new(|| SPECS.iter().map(Uses::of).collect());
