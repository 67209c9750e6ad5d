//! A user as a value, and the rules that make one.
//!
//! A user is written as the rules that make it from nothing; so it is kept, and so it is shown by
//! ACL LIST.

use super::password::{Recipe, Sha, Stored, hex};
use super::rights::{Denied, Rights};
use crate::database::DatabaseId;
use crate::parser::Command;
use crate::reply::Failure;
use core::fmt;

/// Most passwords of a user.
const PASSWORDS_MAX: usize = 16;
/// Most selectors of a user.
const SELECTORS_MAX: usize = 64;
/// Longest text of a user.
const TEXT_MAX: usize = 64 << 10;
/// Most rules of one change, and their bytes; and most of them that are about passwords: each of
/// those may have to be computed.
const RULES_MAX: usize = 1024;
const RULES_BYTES_MAX: usize = TEXT_MAX;
const PASSWORD_RULES_MAX: usize = 2 * PASSWORDS_MAX;
/// Longest name.
const NAME_MAX: usize = 256;
/// The beginning of a record, before the number of the user's life.
const LIFE: &[u8] = b"life=";

/// The user that connections have at first.
pub(crate) const DEFAULT: &[u8] = b"default";

/// Why a rule makes no sense.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RuleError {
    Syntax,
    Unknown,
    ArgumentOfSubcommand,
    KeysAfterAll,
    ChannelsAfterAll,
    NoSuchPassword,
    BadHash,
    NoSuchDatabase,
    TooMany,
}

impl fmt::Display for RuleError {
    /// The texts of Redis and Valkey, but for the last one.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Syntax => "Syntax error",
            Self::Unknown => "Unknown command or category name in ACL",
            Self::ArgumentOfSubcommand => "Allowing first-arg of a subcommand is not supported",
            Self::KeysAfterAll => {
                "Adding a pattern after the * pattern (or the 'allkeys' flag) is not valid and \
                 does not have any effect. Try 'resetkeys' to start with an empty list of patterns"
            }
            Self::ChannelsAfterAll => {
                "Adding a pattern after the * pattern (or the 'allchannels' flag) is not valid \
                 and does not have any effect. Try 'resetchannels' to start with an empty list of \
                 channels"
            }
            Self::NoSuchPassword => {
                "The password you are trying to remove from the user does not exist"
            }
            Self::BadHash => {
                "The password hash must be exactly 64 characters and contain only lowercase \
                 hexadecimal characters"
            }
            Self::NoSuchDatabase => "The provided database ID is out of range",
            Self::TooMany => "A user has at most 16 passwords, 64 selectors and 64 KiB of rules; a change has at most 1024 rules, 32 of them about passwords",
        })
    }
}

/// A user.
#[derive(Clone, Debug)]
pub(crate) struct User {
    pub(crate) name: Box<[u8]>,
    /// Tells it from others that had the name before or will have it. 0: it is kept nowhere.
    pub(crate) life: u64,
    pub(crate) is_on: bool,
    /// Every password is right.
    pub(crate) needs_none: bool,
    pub(crate) passwords: Vec<Stored>,
    /// A flag that is kept and shown, as it was set last. It changes nothing: RESTORE checks what
    /// it gets.
    sanitizes: Option<bool>,
    pub(crate) rights: Rights,
    pub(crate) selectors: Vec<Rights>,
}

impl User {
    /// One that may do nothing.
    pub(crate) fn new(name: &[u8], life: u64) -> Self {
        Self {
            name: name.into(),
            life,
            is_on: false,
            needs_none: false,
            passwords: Vec::new(),
            sanitizes: None,
            rights: Rights::default(),
            selectors: Vec::new(),
        }
    }

    /// `default`, as long as nobody has set it. May do everything.
    pub(crate) fn default_user(password: Option<Stored>) -> Self {
        Self {
            is_on: true,
            needs_none: password.is_none(),
            passwords: password.into_iter().collect(),
            rights: Rights::all(),
            ..Self::new(DEFAULT, 0)
        }
    }

    /// The same in another life.
    pub(crate) fn in_life(self, life: u64) -> Self {
        Self { life, ..self }
    }

    /// Whether a connection has it at once.
    pub(crate) fn is_open(&self) -> bool {
        self.is_on && self.needs_none
    }

    /// Whether nothing is refused.
    pub(crate) fn may_all(&self) -> bool {
        self.rights.is_all()
    }

    /// Whether it may run a command in a database. Of several reasons against it, the one that got
    /// furthest.
    pub(crate) fn check(
        &self,
        spec: u16,
        database: DatabaseId,
        command: &Command,
    ) -> Result<(), Denied> {
        let mut result = self.rights.check(spec, database, command);
        for selector in &self.selectors {
            let Err(denied) = result else {
                break;
            };
            let other = selector.check(spec, database, command);
            result = other.map_err(|other| other.max(denied));
        }
        result
    }

    /// The kept password that this one is. Takes long: not on an event loop.
    pub(crate) fn find(&self, sha: Sha) -> Option<&Stored> {
        let mut recipes: Vec<Recipe> = self.passwords.iter().map(|kept| kept.recipe).collect();
        recipes.sort_unstable();
        recipes.dedup();
        let mut found = None;
        for recipe in recipes {
            let given = recipe.hash(sha);
            found = found.or(self.passwords.iter().find(|kept| kept.is(&given)));
        }
        found
    }

    /// Applies a rule. `recipe` is for the user's first password. Rules about passwords take long.
    ///
    /// # Errors
    /// It makes no sense; nothing was changed.
    pub(crate) fn apply(&mut self, rule: &[u8], recipe: Recipe) -> Result<(), RuleError> {
        let is = |word: &str| rule.eq_ignore_ascii_case(word.as_bytes());
        if is("on") {
            self.is_on = true;
        } else if is("off") {
            self.is_on = false;
        } else if is("nopass") {
            self.needs_none = true;
            self.passwords.clear();
        } else if is("resetpass") {
            self.needs_none = false;
            self.passwords.clear();
        } else if is("sanitize-payload") {
            self.sanitizes = Some(true);
        } else if is("skip-sanitize-payload") {
            self.sanitizes = Some(false);
        } else if is("clearselectors") {
            self.selectors.clear();
        } else if is("reset") {
            *self = Self {
                sanitizes: Some(true),
                ..Self::new(&self.name, self.life)
            };
        } else {
            return match rule {
                [b'>', password @ ..] => self.add(Sha::of(password), recipe),
                [b'#', hash @ ..] => self.add_hash(hash, recipe),
                [b'<', password @ ..] => self.remove(Sha::of(password)),
                [b'!', hash @ ..] => self.remove_hash(hash),
                [b'(', ..] => self.add_selector(rule),
                _ => self.rights.apply(rule),
            };
        }
        Ok(())
    }

    fn add(&mut self, sha: Sha, recipe: Recipe) -> Result<(), RuleError> {
        if self.find(sha).is_none() {
            let recipe = self.passwords.first().map_or(recipe, |kept| kept.recipe);
            self.push(recipe.hash(sha))?;
        }
        self.needs_none = false;
        Ok(())
    }

    fn push(&mut self, password: Stored) -> Result<(), RuleError> {
        if self.passwords.len() >= PASSWORDS_MAX {
            return Err(RuleError::TooMany);
        }
        self.passwords.push(password);
        Ok(())
    }

    fn add_hash(&mut self, hash: &[u8], recipe: Recipe) -> Result<(), RuleError> {
        if let Some(stored) = Stored::parse(hash) {
            if !self.passwords.iter().any(|kept| kept.is(&stored)) {
                self.push(stored)?;
            }
            self.needs_none = false;
            return Ok(());
        }
        let sha = Sha::from_hex(hash).ok_or(RuleError::BadHash)?;
        self.add(sha, recipe)
    }

    fn remove(&mut self, sha: Sha) -> Result<(), RuleError> {
        let found = *self.find(sha).ok_or(RuleError::NoSuchPassword)?;
        self.passwords.retain(|kept| !kept.is(&found));
        Ok(())
    }

    fn remove_hash(&mut self, hash: &[u8]) -> Result<(), RuleError> {
        if let Some(stored) = Stored::parse(hash) {
            let before = self.passwords.len();
            self.passwords.retain(|kept| !kept.is(&stored));
            return match self.passwords.len() < before {
                true => Ok(()),
                false => Err(RuleError::NoSuchPassword),
            };
        }
        self.remove(Sha::from_hex(hash).ok_or(RuleError::BadHash)?)
    }

    fn add_selector(&mut self, rule: &[u8]) -> Result<(), RuleError> {
        let inner = rule.strip_prefix(b"(").and_then(|r| r.strip_suffix(b")"));
        let mut selector = Rights::default();
        for rule in words(inner.ok_or(RuleError::Syntax)?) {
            selector.apply(rule)?;
        }
        if self.selectors.len() >= SELECTORS_MAX {
            return Err(RuleError::TooMany);
        }
        self.selectors.push(selector);
        Ok(())
    }

    // --- as it is written -------------------------------------------------------------------

    /// The words of GETUSER for it.
    pub(crate) fn flags(&self) -> Vec<&'static str> {
        let mut flags = vec![if self.is_on { "on" } else { "off" }];
        if self.needs_none {
            flags.push("nopass");
        }
        match self.sanitizes {
            Some(true) => flags.push("sanitize-payload"),
            Some(false) => flags.push("skip-sanitize-payload"),
            None => {}
        }
        flags
    }

    /// The rules that make it.
    pub(crate) fn text(&self) -> Vec<u8> {
        let mut words: Vec<Vec<u8>> = self.flags().into_iter().map(Vec::from).collect();
        let passwords = self.passwords.iter();
        words.extend(passwords.map(|kept| format!("#{}", kept.text()).into_bytes()));
        words.push(self.rights.text());
        let selectors = self.selectors.iter();
        words.extend(selectors.map(|selector| [b"(", &selector.text()[..], b")"].concat()));
        words.join(&b' ')
    }

    /// Whether a change is small enough to be looked at.
    pub(crate) fn takes(rules: &[Vec<u8>]) -> bool {
        let bytes: usize = rules.iter().map(Vec::len).sum();
        let of_passwords = rules.iter().filter(|rule| is_of_password(rule)).count();
        rules.len() <= RULES_MAX && bytes <= RULES_BYTES_MAX && of_passwords <= PASSWORD_RULES_MAX
    }

    /// Whether it fits where users are kept.
    pub(crate) fn fits(&self) -> bool {
        self.text().len() <= TEXT_MAX
    }

    /// As it is kept: its life and its text.
    pub(crate) fn record(&self) -> Vec<u8> {
        let life = hex(&self.life.to_be_bytes());
        [LIFE, life.as_bytes(), b" ", &self.text()].concat()
    }

    /// From [`User::record`]. Commands that this version does not have are left out: they cannot be
    /// run. `None`: it is none.
    pub(crate) fn of_record(name: &[u8], record: &[u8]) -> Option<Self> {
        let rest = record.strip_prefix(LIFE)?;
        let (life, rest) = rest.split_at_checked(16)?;
        let life = u64::from_str_radix(core::str::from_utf8(life).ok()?, 16).ok()?;
        let mut user = Self::new(name, life);
        let words: Vec<&[u8]> = words(rest).collect();
        for rule in merged(&words).ok()? {
            if let [b'#', hash @ ..] = &rule[..] {
                user.passwords.push(Stored::parse(hash)?);
                continue;
            }
            // Only the hashes need a recipe.
            let recipe = Recipe {
                cost: super::password::Cost::LEAST,
                salt: [0; 16],
            };
            match user.apply(&rule, recipe) {
                Ok(()) | Err(RuleError::Unknown) => {}
                Err(_) => return None,
            }
        }
        Some(user)
    }
}

fn words(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    let words = text.split(|byte| *byte == b' ');
    words.filter(|word| !word.is_empty())
}

/// Whether a rule is about passwords, and so takes long.
pub(crate) fn is_of_password(rule: &[u8]) -> bool {
    matches!(rule.first(), Some(b'>' | b'<' | b'#' | b'!'))
}

/// Joins the words of selectors.
///
/// # Errors
/// One does not close.
pub(crate) fn merged(words: &[&[u8]]) -> Result<Vec<Vec<u8>>, Failure> {
    let mut rules: Vec<Vec<u8>> = Vec::new();
    let mut open: Option<Vec<u8>> = None;
    for word in words {
        let mut rule = match open.take() {
            Some(before) => [&before[..], b" ", word].concat(),
            None => word.to_vec(),
        };
        match rule.starts_with(b"(") && !rule.ends_with(b")") {
            true => open = Some(core::mem::take(&mut rule)),
            false => rules.push(rule),
        }
    }
    match open {
        None => Ok(rules),
        Some(rule) => {
            let text = b"ERR Unmatched parenthesis in acl selector starting at '";
            let first = rule.split(|byte| *byte == b' ').next().unwrap_or_default();
            Err(Failure::new([&text[..], first, b"'."].concat()))
        }
    }
}

/// Checks the name of a user that is to be made.
///
/// # Errors
/// It cannot be one.
pub(crate) fn check_name(name: &[u8]) -> Result<(), Failure> {
    let is_bad = |byte: &u8| byte.is_ascii_whitespace() || *byte == 0;
    if name.iter().any(is_bad) {
        return Err(Failure::fixed(
            "ERR Usernames can't contain spaces or null characters",
        ));
    }
    match name.len() <= NAME_MAX {
        true => Ok(()),
        false => Err(Failure::fixed("ERR Usernames have at most 256 bytes")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::users::password::Cost;

    const RECIPE: Recipe = Recipe {
        cost: Cost::LEAST,
        salt: [3; 16],
    };

    fn user(rules: &[&str]) -> User {
        let mut user = User::new(b"u", 5);
        for rule in rules {
            user.apply(rule.as_bytes(), RECIPE).unwrap();
        }
        user
    }

    #[test]
    fn a_user_is_written_as_the_rules_that_make_it() {
        let made = user(&[
            "on",
            ">one",
            ">two",
            ">one",
            "~a",
            "+get",
            "(+set ~b &c)",
            "skip-sanitize-payload",
        ]);
        assert_eq!(made.passwords.len(), 2);
        let record = made.record();
        let again = User::of_record(b"u", &record).unwrap();
        assert_eq!(again.record(), record);
        assert_eq!((again.life, again.is_on), (5, true));
        let text = String::from_utf8(again.text()).unwrap();
        assert!(text.starts_with("on skip-sanitize-payload #argon2id:8:1:"));
        let rest = "~a resetchannels -@all +get (~b resetchannels &c -@all +set)";
        assert!(text.ends_with(rest), "{text}");
        assert!(again.find(Sha::of(b"two")).is_some());
        assert!(again.find(Sha::of(b"three")).is_none());
        // One of a later version that has another command.
        let newer = String::from_utf8(record).unwrap() + " +nosuch";
        assert!(User::of_record(b"u", newer.as_bytes()).is_some());
        assert!(User::of_record(b"u", b"on ~*").is_none());
    }

    #[test]
    fn passwords_come_and_go() {
        let mut made = user(&["nopass"]);
        assert!(made.needs_none && !made.is_open(), "it is off");
        made.apply(b">pw", RECIPE).unwrap();
        assert!(!made.needs_none);
        let hash = format!("#{}", made.passwords[0].text());
        made.apply(hash.as_bytes(), RECIPE).unwrap();
        let of_redis = "#30c952fab122c3f9759f02a6d95c3758b246b4fee239957b2d4fee46e26170c4";
        made.apply(of_redis.as_bytes(), RECIPE).unwrap();
        assert_eq!(made.passwords.len(), 1, "all three are one");
        assert_eq!(made.apply(b"<no", RECIPE), Err(RuleError::NoSuchPassword));
        assert_eq!(made.apply(b"#123", RECIPE), Err(RuleError::BadHash));
        made.apply(of_redis.replace('#', "!").as_bytes(), RECIPE)
            .unwrap();
        assert!(made.passwords.is_empty() && !made.needs_none);
        for n in 0..PASSWORDS_MAX {
            made.apply(format!(">{n}").as_bytes(), RECIPE).unwrap();
        }
        assert_eq!(made.apply(b">more", RECIPE), Err(RuleError::TooMany));
        made.apply(b"reset", RECIPE).unwrap();
        assert_eq!(made.text(), b"off sanitize-payload resetchannels -@all");
    }

    #[test]
    fn selectors_of_several_words_are_joined() {
        let joined = merged(&[b"on", b"(+get", b"~x)", b"(~y)", b"off"]).unwrap();
        assert_eq!(
            joined,
            [&b"on"[..], b"(+get ~x)", b"(~y)", b"off"].map(Vec::from)
        );
        let failure = merged(&[b"(+get", b"~x"]).unwrap_err();
        let text = b"ERR Unmatched parenthesis in acl selector starting at '(+get'.";
        assert_eq!(failure.text(), text);
    }
}
