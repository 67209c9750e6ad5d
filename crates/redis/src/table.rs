//! The one table of commands: what exists, with how many arguments, where the keys are, and who
//! runs it. Dispatch, the COMMAND command, arity errors and `docs/redis.md` all read it. Its rows
//! are in `specs.rs`.
//!
//! Names, arities, flags, categories and key positions are Redis's, because clients route by them.

use crate::commands::{Data, Now, Own};
use crate::parser::Command;
use crate::reply::Failure;
use pluvio_units::FixedMap;
use std::sync::LazyLock;

pub use crate::specs::SPECS;

/// Where the keys of a command are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Keys {
    /// Position of the first; 0 when there are none.
    pub first: usize,
    /// Position of the last; negative counts from the end.
    pub last: isize,
    /// Distance between two.
    pub step: usize,
    /// Position of their number, which stands before the first; 0 when none is given.
    pub count_at: usize,
}

impl Keys {
    /// No keys.
    pub const NONE: Self = Self::at(0, 0, 0);
    /// The first argument.
    pub const ONE: Self = Self::at(1, 1, 1);
    /// The second argument, after a subcommand.
    pub const SECOND: Self = Self::at(2, 2, 1);
    /// The first two arguments.
    pub const TWO: Self = Self::at(1, 2, 1);
    /// All arguments.
    pub const ALL: Self = Self::at(1, -1, 1);
    /// Every other argument.
    pub const PAIRS: Self = Self::at(1, -1, 2);

    /// The second argument, and all behind it.
    pub const FROM_SECOND: Self = Self::at(2, -1, 1);
    /// Every other argument, as many as the first one says.
    pub const COUNTED_PAIRS: Self = Self::counted(1, 2);
    /// As many arguments as the second one says.
    pub const COUNTED: Self = Self::counted(2, 1);

    const fn at(first: usize, last: isize, step: usize) -> Self {
        Self {
            first,
            last,
            step,
            count_at: 0,
        }
    }

    const fn counted(count_at: usize, step: usize) -> Self {
        Self {
            first: count_at + 1,
            last: -1,
            step,
            count_at,
        }
    }

    /// Positions of the keys of a command. None where their number is none.
    pub fn of(self, command: &Command) -> impl Iterator<Item = usize> + use<> {
        let most = match self.count_at {
            0 => usize::MAX,
            at => crate::number::integer(command.get(at))
                .and_then(|count| usize::try_from(count).ok())
                .unwrap_or(0),
        };
        self.positions(command.len()).take(most)
    }

    /// Positions of the keys of a command with this number of parts, if their number is not given.
    fn positions(self, parts: usize) -> impl Iterator<Item = usize> {
        let last = if self.last < 0 {
            parts.saturating_sub(self.last.unsigned_abs())
        } else {
            self.last.unsigned_abs()
        };
        let none = self.first == 0;
        let end = if none { 0 } else { (last + 1).min(parts) };
        (self.first..end).step_by(self.step.max(1))
    }
}

/// The code that runs a command, and so its order among others of its connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Run {
    /// Has only subcommands.
    Container,
    /// Answered at once from what the process knows; ordered by its reply alone.
    Now(Now),
    /// Looks at or changes the connection: after all earlier commands, before all later ones.
    Own(Own),
    /// Works on the database: after all earlier commands, before all later ones (QUEUE-2).
    Data(Data),
}

/// One command or subcommand.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Spec {
    /// Lower case; a subcommand is `container|name`.
    pub name: &'static str,
    /// Number of parts, the name included; negative: at least that number.
    pub arity: i64,
    /// The code that runs it.
    pub run: Run,
    /// Flags as COMMAND shows them, separated by blanks.
    pub flags: &'static str,
    /// Categories as COMMAND shows them, without `@`, separated by blanks.
    pub categories: &'static str,
    /// Its keys.
    pub keys: Keys,
    /// The use of the keys, as COMMAND shows it; two uses of two keys are separated by `/`.
    pub access: &'static str,
    /// Its chapter in the documentation.
    pub group: &'static str,
    /// The version of Redis (or of another server) that had it first.
    pub since: &'static str,
    /// What it does.
    pub summary: &'static str,
    /// How clients of a cluster are to send it where it concerns several nodes, in the words of
    /// Redis, separated by blanks.
    pub tips: &'static str,
}

impl Spec {
    /// The container of a subcommand.
    #[must_use]
    pub fn container(&self) -> Option<&'static str> {
        self.name.split_once('|').map(|(container, _)| container)
    }

    /// Whether a command with this number of parts may be run.
    #[must_use]
    pub fn accepts(&self, parts: usize) -> bool {
        let parts = i64::try_from(parts).unwrap_or(i64::MAX);
        if self.arity < 0 {
            parts >= -self.arity
        } else {
            parts == self.arity
        }
    }

    /// Whether a command of this name, with this number of parts, calls it for certain. False says
    /// nothing: a subcommand, and a command that has some, are found in the table only.
    #[must_use]
    pub fn is_called(&self, name: &[u8], parts: usize) -> bool {
        let is_plain = matches!(self.run, Run::Data(_) | Run::Now(Now::Ping));
        let is_same = self.name.as_bytes().eq_ignore_ascii_case(name);
        is_plain && is_same && self.accepts(parts)
    }

    /// Whether it is flagged so.
    #[must_use]
    pub fn has_flag(&self, flag: &str) -> bool {
        self.flags.split(' ').any(|f| f == flag)
    }

    /// Whether it may change objects: by itself, or by a script that is not read-only.
    #[must_use]
    pub fn may_change(&self) -> bool {
        match self.run {
            Run::Data(Data::Script(call)) => !call.is_read_only(),
            Run::Data(_) | Run::Container | Run::Now(_) | Run::Own(_) => self.has_flag("write"),
        }
    }

    /// The subcommands of a container.
    pub fn subcommands(&self) -> impl Iterator<Item = &'static Spec> {
        let name = self.name;
        SPECS.iter().filter(move |s| s.container() == Some(name))
    }
}

/// Flags that each command of a script is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Marks {
    pub(crate) no_script: bool,
    pub(crate) writes: bool,
}

/// Of the rows of the table: to look into the flags takes longer.
static MARKS: LazyLock<Vec<Marks>> = LazyLock::new(|| {
    let marks = SPECS.iter().map(|spec| Marks {
        no_script: spec.has_flag("noscript"),
        writes: spec.has_flag("write"),
    });
    marks.collect()
});

pub(crate) fn marks(spec: u16) -> Marks {
    MARKS[usize::from(spec)]
}

/// Longest name in the table, with its subcommand.
const NAME_MAX: usize = 32;

static BY_NAME: LazyLock<FixedMap<&'static [u8], u16>> = LazyLock::new(|| {
    let numbered = (0_u16..).zip(SPECS);
    numbered
        .map(|(n, spec)| (spec.name.as_bytes(), n))
        .collect()
});

/// Finds a command, or a subcommand as `container|name`, in any case; its number in [`SPECS`].
#[must_use]
pub fn find(name: &[u8]) -> Option<u16> {
    let mut lower = [0; NAME_MAX];
    let lower = lower.get_mut(..name.len())?;
    lower.copy_from_slice(name);
    lower.make_ascii_lowercase();
    BY_NAME.get(&*lower).copied()
}

/// Finds the command or subcommand that these parts call. A container is found when it stands
/// alone, and when `container|name` is written in one word nothing is.
#[must_use]
pub fn find_called(name: &[u8], sub: Option<&[u8]>) -> Option<u16> {
    let found = find(name).filter(|_| !name.contains(&b'|'))?;
    match (SPECS[usize::from(found)].run, sub) {
        (Run::Container, Some(sub)) => find(&[name, b"|", sub].concat()),
        (Run::Container, None) | (Run::Now(_) | Run::Own(_) | Run::Data(_), _) => {
            // COMMAND works alone and has subcommands.
            let Some(sub) = sub.filter(|_| name.eq_ignore_ascii_case(b"command")) else {
                return Some(found);
            };
            find(&[name, b"|", sub].concat())
        }
    }
}

/// Finds what a command of `parts` parts calls and checks its number of arguments.
///
/// # Errors
/// The errors of Redis for unknown commands and subcommands and for a wrong number of arguments.
pub fn resolve(command: &Command, parts: usize) -> Result<u16, Failure> {
    let sub = (parts > 1).then(|| command.get(1));
    let Some(found) = find_called(command.get(0), sub) else {
        return Err(unknown(command));
    };
    let spec = &SPECS[usize::from(found)];
    let alone = spec.run == Run::Container;
    if alone || !spec.accepts(parts) {
        return Err(wrong_arity(spec.name));
    }
    Ok(found)
}

/// The error of a wrong number of arguments.
#[must_use]
pub fn wrong_arity(name: &str) -> Failure {
    Failure::new(format!(
        "ERR wrong number of arguments for '{name}' command"
    ))
}

/// The error of a wrong number of arguments, where Redis tells it of the subcommand as it was
/// written.
#[must_use]
pub fn wrong_subcommand(command: &Command) -> Failure {
    let text = [
        b"ERR unknown subcommand or wrong number of arguments for '".as_slice(),
        command.get(1),
        b"'. Try ",
        &command.get(0).to_ascii_uppercase(),
        b" HELP.",
    ];
    Failure::new(text.concat())
}

/// How much of unknown names and arguments is told back.
const ECHO_MAX: usize = 128;

fn unknown(command: &Command) -> Failure {
    let start = |part: &[u8], max: usize| {
        let end = part.iter().position(|b| *b == 0).unwrap_or(part.len());
        part[..end.min(max)].to_vec()
    };
    let name = command.get(0);
    if find(name).is_some() && command.len() > 1 && !name.contains(&b'|') {
        let sub = start(command.get(1), ECHO_MAX);
        let container = start(&name.to_ascii_uppercase(), NAME_MAX);
        let text = [
            b"ERR unknown subcommand '".as_slice(),
            &sub,
            b"'. Try ",
            &container,
            b" HELP.",
        ];
        return Failure::new(text.concat());
    }
    let mut arguments = Vec::new();
    for part in command.from(1) {
        if arguments.len() >= ECHO_MAX {
            break;
        }
        let part = start(part, ECHO_MAX - arguments.len());
        arguments.extend_from_slice(&[b"'", &part[..], b"' "].concat());
    }
    let text = [
        b"ERR unknown command '".as_slice(),
        &start(name, ECHO_MAX),
        b"', with args beginning with: ",
        &arguments,
    ];
    Failure::new(text.concat())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::{Scratch, one_key};
    use pluvio_client::Operation;
    use pluvio_units::UnixMs;

    #[test]
    fn every_name_is_found_in_any_case_and_only_once() {
        for (number, spec) in (0_u16..).zip(SPECS) {
            assert_eq!(find(spec.name.as_bytes()), Some(number), "{}", spec.name);
            assert_eq!(find(spec.name.to_uppercase().as_bytes()), Some(number));
            assert!(spec.name.len() <= NAME_MAX);
        }
        assert_eq!(find(b"nosuch"), None);
        assert_eq!(find(&[b'x'; 1000]), None);
    }

    #[test]
    fn rows_are_consistent() {
        for spec in SPECS {
            assert_eq!(
                spec.keys == Keys::NONE,
                spec.access.is_empty(),
                "{}",
                spec.name
            );
            assert!(
                !spec.summary.is_empty() && !spec.summary.ends_with('.'),
                "{}",
                spec.name
            );
            if let Some(container) = spec.container() {
                assert!(find(container.as_bytes()).is_some(), "{}", spec.name);
            }
            let enough = if spec.arity < 0 {
                -spec.arity
            } else {
                spec.arity
            };
            assert!(spec.accepts(usize::try_from(enough).unwrap()));
        }
    }

    /// The parts of a command in this row, with an argument that is a number, a key and a value.
    fn example(spec: &Spec) -> Command {
        let (name, sub) = spec.name.split_once('|').unwrap_or((spec.name, ""));
        let parts = usize::try_from(spec.arity.unsigned_abs()).unwrap();
        let all = [name, sub].into_iter().filter(|part| !part.is_empty());
        let all: Vec<_> = all.chain(core::iter::repeat("1")).take(parts).collect();
        Command::from_parts(&all)
    }

    #[test]
    fn each_command_is_of_one_kind_that_agrees_with_its_flags_and_keys() {
        for spec in SPECS {
            let name = spec.name;
            let (reads, writes) = (spec.has_flag("readonly"), spec.has_flag("write"));
            let has_keys = spec.keys != Keys::NONE;
            let is_flagged = reads || writes;
            assert!(!(reads && writes), "{name}");
            let fits = match spec.run {
                Run::Container => !has_keys && !is_flagged && spec.subcommands().count() > 0,
                Run::Now(_) | Run::Own(_) => !has_keys,
                Run::Data(what) => match what {
                    Data::Single(_) => spec.keys == Keys::ONE && is_flagged,
                    Data::EachKey(_) => matches!(spec.keys, Keys::ALL | Keys::PAIRS) && is_flagged,
                    Data::ReadsFirst(_) => has_keys && writes,
                    Data::Script(call) => {
                        spec.keys == Keys::COUNTED && reads == call.is_read_only() && !writes
                    }
                    Data::Survey(_) => !writes && !spec.has_flag("noscript"),
                    Data::Exec | Data::LogIn | Data::Watch => spec.has_flag("noscript"),
                    Data::Other(_) => !(has_keys && writes),
                },
            };
            assert!(fits, "{name} is {:?}", spec.run);
        }
    }

    #[test]
    fn commands_on_one_key_change_it_only_if_they_are_flagged_so() {
        let mut scratch = Scratch::default();
        let mut seen = 0;
        for spec in SPECS {
            let Run::Data(what) = spec.run else { continue };
            let command = example(spec);
            let one = one_key(what, &command, &mut scratch, &UnixMs::default);
            let is_single = matches!(what, Data::Single(_) | Data::EachKey(_));
            assert!(is_single || one.is_none(), "{}", spec.name);
            if let Some(Ok(one)) = one {
                seen += 1;
                let changes = matches!(one.request, Operation::Mutate(_));
                assert!(!changes || spec.has_flag("write"), "{}", spec.name);
            }
        }
        assert!(seen > 30, "{seen} examples made sense");
    }

    #[test]
    fn key_positions_follow_the_number_of_parts() {
        let positions = |keys: Keys, parts| keys.positions(parts).collect::<Vec<_>>();
        assert_eq!(positions(Keys::NONE, 5), [0; 0]);
        assert_eq!(positions(Keys::ONE, 3), [1]);
        assert_eq!(positions(Keys::ALL, 4), [1, 2, 3]);
        assert_eq!(positions(Keys::PAIRS, 5), [1, 3]);
        assert_eq!(positions(Keys::ONE, 1), [0; 0]);
    }

    #[test]
    fn errors_tell_names_back_as_redis_does() {
        let text = |parts: &[&[u8]]| {
            let command = Command::from_parts(parts);
            let failure = resolve(&command, command.len()).unwrap_err();
            String::from_utf8(failure.text().to_vec()).unwrap()
        };
        assert_eq!(
            text(&[b"FOO", b"a\r\nb", b"c\0d", b"e"]),
            "ERR unknown command 'FOO', with args beginning with: 'a  b' 'c' 'e' "
        );
        assert_eq!(
            text(&[b"F\nOO"]),
            "ERR unknown command 'F OO', with args beginning with: "
        );
        let long = text(&[b"FOO", &[b'a'; 200], b"b"]);
        assert!(long.ends_with(&format!("'{}' ", "a".repeat(128))));
        assert_eq!(
            text(&[b"Client", b"maint_notifications", b"on"]),
            "ERR unknown subcommand 'maint_notifications'. Try CLIENT HELP."
        );
        for (parts, name) in [
            (&[b"client".as_slice()][..], "client"),
            (&[b"client", b"setname"], "client|setname"),
            (&[b"GET"], "get"),
            (&[b"command", b"count", b"x"], "command|count"),
        ] {
            let expected = format!("ERR wrong number of arguments for '{name}' command");
            assert_eq!(text(parts), expected);
        }
    }
}
