//! What a user may do: one set of commands, keys, channels and databases. A user has one, and
//! perhaps more (*selectors*); a command is allowed if one of them allows all of it.
//!
//! - RIGHTS-1: a command is allowed only if its row of the table is, or its first argument. Each of
//!   its keys has to match a pattern that allows this use of the key.

use super::databases::DatabaseSet;
use super::rules::RuleError;
use crate::database::DatabaseId;
use crate::glob;
use crate::parser::Command;
use crate::table::{Keys, SPECS, Spec, find};
use std::collections::BTreeMap;

/// The categories of Redis. Some have no commands here.
pub(crate) const CATEGORIES: [&str; 21] = [
    "keyspace",
    "read",
    "write",
    "set",
    "sortedset",
    "list",
    "hash",
    "string",
    "bitmap",
    "hyperloglog",
    "geo",
    "stream",
    "pubsub",
    "admin",
    "fast",
    "slow",
    "blocking",
    "dangerous",
    "connection",
    "transaction",
    "scripting",
];

/// Longest pattern of keys or channels.
const PATTERN_MAX: usize = 1024;

/// Whether a command is in a category.
pub(crate) fn is_in(spec: &Spec, category: &[u8]) -> bool {
    let mut words = spec.categories.split(' ');
    words.any(|word| !word.is_empty() && word.as_bytes().eq_ignore_ascii_case(category))
}

/// Why a command is refused. Of several reasons the greatest is told, as in Valkey.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Denied {
    /// The database that the word at this position names, or the command itself at 0.
    Database(usize),
    Command,
    /// The key at this position.
    Key(usize),
}

/// What is done with keys of a pattern.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Access {
    reads: bool,
    writes: bool,
}

impl Access {
    const BOTH: Self = Self {
        reads: true,
        writes: true,
    };

    /// From the words of a command's use of its keys.
    fn of_words(words: &str) -> Self {
        let has = |wanted: &str| words.split(' ').any(|word| word == wanted);
        Self {
            reads: has("access"),
            writes: has("insert") || has("delete") || has("update"),
        }
    }

    fn allows(self, wanted: Self) -> bool {
        (self.reads || !wanted.reads) && (self.writes || !wanted.writes)
    }

    fn prefix(self) -> &'static [u8] {
        match (self.reads, self.writes) {
            (true, true) | (false, false) => b"~",
            (true, false) => b"%R~",
            (false, true) => b"%W~",
        }
    }
}

/// One set of rights.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Rights {
    /// A bit for each row of the table.
    commands: Box<[u64]>,
    /// Also those that later versions have.
    begins_with_all: bool,
    /// The rules about commands since all were allowed or none, without those that others undo.
    rules: Vec<String>,
    /// First arguments with which a command is allowed that otherwise is not.
    first_arguments: BTreeMap<u16, Vec<Vec<u8>>>,
    all_keys: bool,
    keys: Vec<(Access, Vec<u8>)>,
    all_channels: bool,
    channels: Vec<Vec<u8>>,
    databases: DatabaseSet,
}

impl Default for Rights {
    /// None, in all databases.
    fn default() -> Self {
        Self {
            commands: vec![0; SPECS.len().div_ceil(64)].into(),
            begins_with_all: false,
            rules: Vec::new(),
            first_arguments: BTreeMap::new(),
            all_keys: false,
            keys: Vec::new(),
            all_channels: false,
            channels: Vec::new(),
            databases: DatabaseSet::All,
        }
    }
}

impl Rights {
    /// All.
    pub(crate) fn all() -> Self {
        let mut rights = Self {
            all_keys: true,
            all_channels: true,
            ..Self::default()
        };
        rights.set_all(true);
        rights
    }

    /// Whether nothing is refused.
    pub(crate) fn is_all(&self) -> bool {
        let has_all = self.begins_with_all && self.rules.is_empty();
        has_all && self.all_keys && self.databases == DatabaseSet::All
    }

    fn has(&self, spec: u16) -> bool {
        let (word, bit) = (usize::from(spec) / 64, spec % 64);
        self.commands[word] >> bit & 1 == 1
    }

    fn set(&mut self, spec: u16, is_allowed: bool) {
        let (word, bit) = (usize::from(spec) / 64, spec % 64);
        match is_allowed {
            true => self.commands[word] |= 1 << bit,
            false => self.commands[word] &= !(1 << bit),
        }
    }

    fn set_all(&mut self, is_allowed: bool) {
        self.commands.fill(if is_allowed { u64::MAX } else { 0 });
        self.begins_with_all = is_allowed;
        self.rules.clear();
        self.first_arguments.clear();
    }

    /// Whether a command may be run in a database (RIGHTS-1, RIGHTS-2).
    pub(crate) fn check(
        &self,
        spec: u16,
        database: DatabaseId,
        command: &Command,
    ) -> Result<(), Denied> {
        let row = &SPECS[usize::from(spec)];
        if let Some(at) = self.databases.lacks(spec, database, command) {
            return Err(Denied::Database(at));
        }
        if !self.has(spec) && !row.has_flag("no_auth") && !self.has_first_argument(spec, command) {
            return Err(Denied::Command);
        }
        if self.all_keys || row.keys == Keys::NONE {
            return Ok(());
        }
        let uses: Vec<&str> = use_of_keys(row, command).split('/').collect();
        for (index, at) in row.keys.of(command).enumerate() {
            let words = uses.get(index).or(uses.last()).copied().unwrap_or_default();
            if !self.allows_key(command.get(at), Access::of_words(words)) {
                return Err(Denied::Key(at));
            }
        }
        Ok(())
    }

    fn has_first_argument(&self, spec: u16, command: &Command) -> bool {
        let allowed = self.first_arguments.get(&spec);
        let mut allowed = allowed.into_iter().flatten();
        command.len() > 1 && allowed.any(|word| command.get(1).eq_ignore_ascii_case(word))
    }

    fn allows_key(&self, key: &[u8], wanted: Access) -> bool {
        let mut keys = self.keys.iter();
        keys.any(|(access, pattern)| access.allows(wanted) && glob::matches(pattern, key))
    }

    /// Applies a rule about commands, keys, channels or databases.
    ///
    /// # Errors
    /// It makes no sense; nothing was changed.
    pub(crate) fn apply(&mut self, rule: &[u8]) -> Result<(), RuleError> {
        let is = |word: &str| rule.eq_ignore_ascii_case(word.as_bytes());
        if is("allkeys") || rule == b"~*" {
            self.all_keys = true;
            self.keys.clear();
        } else if is("resetkeys") {
            self.all_keys = false;
            self.keys.clear();
        } else if is("allchannels") || rule == b"&*" {
            self.all_channels = true;
            self.channels.clear();
        } else if is("resetchannels") {
            self.all_channels = false;
            self.channels.clear();
        } else if is("alldbs") {
            self.databases = DatabaseSet::All;
        } else if is("resetdbs") {
            self.databases = DatabaseSet::NONE;
        } else if is("allcommands") || is("+@all") {
            self.set_all(true);
        } else if is("nocommands") || is("-@all") {
            self.set_all(false);
        } else {
            return match rule {
                [b'd' | b'D', b'b' | b'B', b'=', numbers @ ..] => {
                    self.databases = DatabaseSet::of_numbers(numbers)?;
                    Ok(())
                }
                [b'~', pattern @ ..] => self.add_keys(Access::BOTH, pattern),
                [b'%', rest @ ..] => self.add_keys_of(rest),
                [b'&', pattern @ ..] => self.add_channels(pattern),
                [b'+', b'@', name @ ..] => self.set_category(name, true),
                [b'-', b'@', name @ ..] => self.set_category(name, false),
                [b'+', name @ ..] => self.allow(name),
                [b'-', name @ ..] => self.forbid(name),
                _ => Err(RuleError::Syntax),
            };
        }
        Ok(())
    }

    /// `RW~pattern`, `R~pattern` or `W~pattern`.
    fn add_keys_of(&mut self, rest: &[u8]) -> Result<(), RuleError> {
        let tilde = rest.iter().position(|byte| *byte == b'~');
        let (letters, pattern) = rest.split_at(tilde.ok_or(RuleError::Syntax)?);
        let mut access = Access {
            reads: false,
            writes: false,
        };
        for letter in letters {
            match letter.to_ascii_uppercase() {
                b'R' if !access.reads => access.reads = true,
                b'W' if !access.writes => access.writes = true,
                _ => return Err(RuleError::Syntax),
            }
        }
        match letters.is_empty() {
            true => Err(RuleError::Syntax),
            false => self.add_keys(access, &pattern[1..]),
        }
    }

    fn add_keys(&mut self, access: Access, pattern: &[u8]) -> Result<(), RuleError> {
        if self.all_keys {
            return Err(RuleError::KeysAfterAll);
        }
        check_pattern(pattern)?;
        if access == Access::BOTH && pattern == b"*" {
            return self.apply(b"allkeys");
        }
        match self.keys.iter_mut().find(|(_, known)| known == pattern) {
            Some((known, _)) => {
                known.reads |= access.reads;
                known.writes |= access.writes;
            }
            None => self.keys.push((access, pattern.to_vec())),
        }
        Ok(())
    }

    fn add_channels(&mut self, pattern: &[u8]) -> Result<(), RuleError> {
        if self.all_channels {
            return Err(RuleError::ChannelsAfterAll);
        }
        check_pattern(pattern)?;
        if !self.channels.iter().any(|known| known == pattern) {
            self.channels.push(pattern.to_vec());
        }
        Ok(())
    }

    fn set_category(&mut self, name: &[u8], is_allowed: bool) -> Result<(), RuleError> {
        let mut known = CATEGORIES.iter();
        if !known.any(|category| name.eq_ignore_ascii_case(category.as_bytes())) {
            return Err(RuleError::Unknown);
        }
        for (number, _) in (0_u16..).zip(SPECS).filter(|(_, spec)| is_in(spec, name)) {
            self.set(number, is_allowed);
            self.first_arguments.remove(&number);
        }
        let name = String::from_utf8_lossy(name).to_ascii_lowercase();
        self.note(&format!("@{name}"), is_allowed);
        Ok(())
    }

    /// `+name`.
    fn allow(&mut self, name: &[u8]) -> Result<(), RuleError> {
        if let Some(spec) = find(name) {
            self.set_command(spec, true);
            return Ok(());
        }
        let bar = name.iter().position(|byte| *byte == b'|');
        let (command, argument) = name.split_at(bar.ok_or(RuleError::Unknown)?);
        let argument = &argument[1..];
        if argument.contains(&b'|') {
            return Err(RuleError::ArgumentOfSubcommand);
        }
        let spec = find(command).ok_or(RuleError::Unknown)?;
        if argument.is_empty() {
            return Err(RuleError::Syntax);
        }
        if SPECS[usize::from(spec)].subcommands().next().is_some() {
            return Err(RuleError::Unknown);
        }
        let argument = argument.to_ascii_lowercase();
        let shown = String::from_utf8(argument.clone()).map_err(|_| RuleError::Syntax)?;
        let known = self.first_arguments.entry(spec).or_default();
        if !known.contains(&argument) {
            known.push(argument);
        }
        self.note(&format!("{}|{shown}", SPECS[usize::from(spec)].name), true);
        Ok(())
    }

    /// `-name`.
    fn forbid(&mut self, name: &[u8]) -> Result<(), RuleError> {
        let spec = find(name).ok_or(RuleError::Unknown)?;
        self.set_command(spec, false);
        Ok(())
    }

    /// A command and its subcommands.
    fn set_command(&mut self, spec: u16, is_allowed: bool) {
        let row = &SPECS[usize::from(spec)];
        self.set(spec, is_allowed);
        self.first_arguments.remove(&spec);
        for sub in row.subcommands() {
            if let Some(sub) = find(sub.name.as_bytes()) {
                self.set(sub, is_allowed);
            }
        }
        self.note(row.name, is_allowed);
    }

    /// Keeps a rule, in place of those about the same commands.
    fn note(&mut self, what: &str, is_allowed: bool) {
        self.rules.retain(|rule| {
            let rest = rule[1..].strip_prefix(what);
            rest.is_none_or(|rest| !rest.is_empty() && !rest.starts_with('|'))
        });
        let sign = if is_allowed { '+' } else { '-' };
        self.rules.push(format!("{sign}{what}"));
    }

    // --- as it is shown ---------------------------------------------------------------------

    /// The rules about commands.
    pub(crate) fn commands_text(&self) -> String {
        let first = if self.begins_with_all {
            "+@all"
        } else {
            "-@all"
        };
        let rules = self.rules.iter().map(|rule| &rule[..]);
        let words: Vec<&str> = core::iter::once(first).chain(rules).collect();
        words.join(" ")
    }

    /// The patterns of keys.
    pub(crate) fn keys_text(&self) -> Vec<u8> {
        if self.all_keys {
            return b"~*".to_vec();
        }
        let shown = self.keys.iter();
        let shown = shown.map(|(access, pattern)| [access.prefix(), pattern].concat());
        shown.collect::<Vec<_>>().join(&b' ')
    }

    /// The patterns of channels.
    pub(crate) fn channels_text(&self) -> Vec<u8> {
        if self.all_channels {
            return b"&*".to_vec();
        }
        let shown = self.channels.iter();
        let shown = shown.map(|pattern| [b"&", &pattern[..]].concat());
        shown.collect::<Vec<_>>().join(&b' ')
    }

    /// The databases.
    pub(crate) fn databases_text(&self) -> String {
        self.databases.text()
    }

    /// All of it, as rules that make the same from nothing.
    pub(crate) fn text(&self) -> Vec<u8> {
        let mut words = Vec::new();
        let keys = self.keys_text();
        if !keys.is_empty() {
            words.push(keys);
        }
        if !self.all_channels {
            words.push(b"resetchannels".to_vec());
        }
        let channels = self.channels_text();
        if !channels.is_empty() {
            words.push(channels);
        }
        words.extend(self.databases.rule().map(String::into_bytes));
        words.push(self.commands_text().into_bytes());
        words.join(&b' ')
    }
}

fn check_pattern(pattern: &[u8]) -> Result<(), RuleError> {
    let is_blank = |byte: &u8| byte.is_ascii_whitespace() || *byte == 0;
    match pattern.len() > PATTERN_MAX || pattern.iter().any(is_blank) {
        true => Err(RuleError::Syntax),
        false => Ok(()),
    }
}

/// What a command does with its keys. That of two commands depends on their arguments.
fn use_of_keys(spec: &'static Spec, command: &Command) -> &'static str {
    match spec.name {
        "set" if !(3..command.len()).any(|at| command.is(at, "GET")) => "OW update",
        "bitfield" if only_reads(command) => "RO access",
        _ => spec.access,
    }
}

/// Whether a BITFIELD consists of GETs.
fn only_reads(command: &Command) -> bool {
    let mut gets = (2..command.len()).step_by(3);
    gets.all(|at| command.is(at, "GET"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::find_called;

    fn rights(rules: &str) -> Rights {
        let mut rights = Rights::default();
        for rule in rules.split(' ') {
            rights.apply(rule.as_bytes()).unwrap();
        }
        rights
    }

    fn check(rights: &Rights, command: &str) -> Result<(), Denied> {
        let parts: Vec<_> = command.split(' ').collect();
        let command = Command::from_parts(&parts);
        let sub = parts.get(1).map(|sub| sub.as_bytes());
        let spec = find_called(parts[0].as_bytes(), sub).unwrap();
        rights.check(spec, DatabaseId::default(), &command)
    }

    // shows: RIGHTS-1
    #[test]
    fn a_command_needs_its_row_and_all_of_its_keys() {
        let some = rights(
            "~a* %R~r* %W~w* +@read +set +rename +bitfield +copy +config|get -mget +select|1",
        );
        for command in [
            "get a1",
            "get r1",
            "set a1 v get",
            "set w1 v",
            "rename a1 a2",
            "copy r1 w1",
            "bitfield r1 get u8 0",
            "config get x",
            "select 1",
            "strlen w1",
            "auth x",
            "hello",
        ] {
            assert_eq!(check(&some, command), Ok(()), "{command}");
        }
        for (command, denied) in [
            ("get w1", Denied::Key(1)),
            ("set r1 v", Denied::Key(1)),
            ("set w1 v get", Denied::Key(1)),
            ("rename a1 b", Denied::Key(2)),
            ("copy w1 r1", Denied::Key(1)),
            ("bitfield r1 set u8 0 1", Denied::Key(1)),
            ("mget a1", Denied::Command),
            ("config set x y", Denied::Command),
            ("select 0", Denied::Command),
            ("ping", Denied::Command),
        ] {
            assert_eq!(check(&some, command), Err(denied), "{command}");
        }
        assert!(Rights::all().is_all() && !some.is_all());
        assert!(!rights("~* &* +@all db=0").is_all(), "not in all databases");
    }

    #[test]
    fn rules_are_shown_without_those_that_others_undo() {
        for (rules, shown) in [
            ("+get", "resetchannels -@all +get"),
            ("+get +@all", "resetchannels +@all"),
            ("+@all -get +get", "resetchannels +@all +get"),
            ("+config|get +config", "resetchannels -@all +config"),
            (
                "+config -config|set",
                "resetchannels -@all +config -config|set",
            ),
            ("+GET -GET", "resetchannels -@all -get"),
            ("+SELECT|0 ~x %R~x", "~x resetchannels -@all +select|0"),
            ("%r~x %W~y ~* &*", "~* &* -@all"),
            ("%RW~* +@hash", "~* resetchannels -@all +@hash"),
            ("&a &b", "resetchannels &a &b -@all"),
            ("db=2,1 +get", "resetchannels db=1,2 -@all +get"),
            ("db=1 resetdbs ~a", "~a resetchannels resetdbs -@all"),
            ("db=1 alldbs", "resetchannels -@all"),
        ] {
            let made = rights(rules);
            let text = String::from_utf8(made.text()).unwrap();
            assert_eq!(text, shown, "{rules}");
            assert_eq!(rights(&text), made, "{rules}");
        }
    }

    #[test]
    fn rules_that_make_no_sense_change_nothing() {
        let before = rights("~a +get");
        for (rule, error) in [
            ("", RuleError::Syntax),
            ("foo", RuleError::Syntax),
            ("%X~a", RuleError::Syntax),
            ("%~a", RuleError::Syntax),
            ("%RR~a", RuleError::Syntax),
            ("%R", RuleError::Syntax),
            ("~a b", RuleError::Syntax),
            ("+nosuch", RuleError::Unknown),
            ("+@nosuch", RuleError::Unknown),
            ("+config|nosuch", RuleError::Unknown),
            ("-select|0", RuleError::Unknown),
            ("+config|get|x", RuleError::ArgumentOfSubcommand),
            ("db=1,16", RuleError::NoSuchDatabase),
            ("db=", RuleError::Syntax),
        ] {
            let mut after = before.clone();
            assert_eq!(after.apply(rule.as_bytes()), Err(error), "{rule}");
            assert_eq!(after, before, "{rule}");
        }
        let mut all = rights("~* &*");
        assert_eq!(all.apply(b"~x"), Err(RuleError::KeysAfterAll));
        assert_eq!(all.apply(b"&x"), Err(RuleError::ChannelsAfterAll));
    }

    #[test]
    fn every_category_of_the_table_is_known() {
        for word in SPECS.iter().flat_map(|spec| spec.categories.split(' ')) {
            assert!(word.is_empty() || CATEGORIES.contains(&word), "{word}");
        }
    }
}
