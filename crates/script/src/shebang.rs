//! The first line of a script or a library: `#!lua name=mylib flags=no-writes,allow-stale`.

/// Promises and permissions of a script.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Flags {
    /// It changes nothing.
    pub no_writes: bool,
    /// It may run where memory is full. Accepted; changes are refused then as ever.
    pub allow_oom: bool,
    /// It may run on data that is behind. Accepted; there is no such data.
    pub allow_stale: bool,
    /// It does not run in a cluster.
    pub no_cluster: bool,
    /// Its keys may lie in several slots.
    pub allow_cross_slot_keys: bool,
}

/// The flags by their names.
const FLAGS: [&str; 5] = [
    "no-writes",
    "allow-oom",
    "allow-stale",
    "no-cluster",
    "allow-cross-slot-keys",
];

impl Flags {
    /// Sets the flag of this name. False: there is none.
    pub(crate) fn set(&mut self, name: &str) -> bool {
        match FLAGS.iter().position(|flag| *flag == name) {
            Some(0) => self.no_writes = true,
            Some(1) => self.allow_oom = true,
            Some(2) => self.allow_stale = true,
            Some(3) => self.no_cluster = true,
            Some(_) => self.allow_cross_slot_keys = true,
            None => return false,
        }
        true
    }

    /// The names of the flags that are set.
    #[must_use]
    pub fn names(self) -> Vec<&'static str> {
        let set = [
            self.no_writes,
            self.allow_oom,
            self.allow_stale,
            self.no_cluster,
            self.allow_cross_slot_keys,
        ];
        let named = FLAGS.into_iter().zip(set);
        named
            .filter(|(_, set)| *set)
            .map(|(name, _)| name)
            .collect()
    }
}

/// A first line that makes no sense, in the words of Redis.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ShebangError(pub Vec<u8>);

/// What the first line says.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Shebang {
    /// The name of the library.
    pub name: Option<String>,
    /// The flags.
    pub flags: Flags,
    /// Bytes of the line, without its end.
    pub len: usize,
}

impl Shebang {
    /// Reads the first line; `None` when it is none.
    ///
    /// # Errors
    /// It names another language, an unknown option, or an unknown flag.
    pub fn of_script(source: &[u8]) -> Result<Option<Self>, ShebangError> {
        let Some(line) = Line::of(source) else {
            return match source.starts_with(b"#!") {
                true => Err(ShebangError(b"Invalid script shebang".to_vec())),
                false => Ok(None),
            };
        };
        if !line.is_lua() {
            let text = format!("Unexpected engine in script shebang: #!{}", line.engine);
            return Err(ShebangError(text.into_bytes()));
        }
        let (mut shebang, options) = (line.shebang, line.options);
        for option in options {
            match option.strip_prefix("flags=") {
                Some(flags) => {
                    for flag in flags.split(',').filter(|flag| !flag.is_empty()) {
                        if !shebang.flags.set(flag) {
                            let text = format!("Unexpected flag in script shebang: {flag}");
                            return Err(ShebangError(text.into_bytes()));
                        }
                    }
                }
                None => {
                    let text = format!("Unknown lua shebang option: {option}");
                    return Err(ShebangError(text.into_bytes()));
                }
            }
        }
        Ok(Some(shebang))
    }

    /// Reads the first line of a library, which must have a name.
    ///
    /// # Errors
    /// There is none, or it makes no sense.
    pub fn of_library(source: &[u8]) -> Result<Self, ShebangError> {
        let Some(line) = Line::of(source) else {
            let text = match source.starts_with(b"#!") {
                true => "Invalid library metadata",
                false => "Missing library metadata",
            };
            return Err(ShebangError(text.into()));
        };
        let is_lua = line.is_lua();
        let (mut shebang, options, engine) = (line.shebang, line.options, line.engine);
        for option in options {
            match option.strip_prefix("name=") {
                Some(_) if shebang.name.is_some() => {
                    let text = "Invalid metadata value, name argument was given multiple times";
                    return Err(ShebangError(text.into()));
                }
                Some(name) => shebang.name = Some(name.to_owned()),
                None => {
                    let text = format!("Invalid metadata value given: {option}");
                    return Err(ShebangError(text.into_bytes()));
                }
            }
        }
        let name = shebang.name.as_deref();
        let name = name.ok_or_else(|| ShebangError(b"Library name was not given".to_vec()))?;
        if !is_lua {
            let text = format!("Engine '{engine}' not found");
            return Err(ShebangError(text.into_bytes()));
        }
        match is_name(name) {
            true => Ok(shebang),
            false => Err(ShebangError(
                b"Library names can only contain letters, numbers, or underscores(_) and must be at least one character long".to_vec(),
            )),
        }
    }
}

/// A first line, in words.
struct Line {
    /// Only its length is known yet.
    shebang: Shebang,
    /// The language.
    engine: String,
    options: Vec<String>,
}

impl Line {
    /// `None`: there is none, or it does not end.
    fn of(source: &[u8]) -> Option<Self> {
        let len = source.iter().position(|byte| *byte == b'\n')?;
        let line = String::from_utf8_lossy(source[..len].strip_prefix(b"#!")?).into_owned();
        let is_named = line.starts_with(|first: char| !first.is_whitespace());
        let mut words = line.split_whitespace().map(str::to_owned);
        let engine = if is_named { words.next() } else { None };
        Some(Self {
            shebang: Shebang {
                len,
                ..Shebang::default()
            },
            engine: engine.unwrap_or_default(),
            options: words.collect(),
        })
    }

    fn is_lua(&self) -> bool {
        self.engine.eq_ignore_ascii_case("lua")
    }
}

/// Whether libraries and functions may be called so.
pub(crate) fn is_name(name: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    !name.is_empty() && name.bytes().all(is_allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_lines_are_read_and_refused_as_in_redis() {
        assert_eq!(Shebang::of_script(b"return 1"), Ok(None));
        let read = Shebang::of_script(b"#!lua flags=no-writes,allow-oom\nx");
        let read = read.expect("it is right").expect("there is one");
        assert_eq!(read.flags.names(), ["no-writes", "allow-oom"]);
        assert_eq!(read.len, 31);
        for (source, text) in [
            ("#!foo\n", "Unexpected engine in script shebang: #!foo"),
            ("#!lua name=x\n", "Unknown lua shebang option: name=x"),
            ("#!lua flags=x\n", "Unexpected flag in script shebang: x"),
            ("#!lua", "Invalid script shebang"),
        ] {
            let error = Shebang::of_script(source.as_bytes()).expect_err("it is wrong");
            assert_eq!(error.0, text.as_bytes());
        }
        assert!(Shebang::of_library(b"#!lua name=a_1\n").is_ok());
        for wrong in ["#!lua name=a-b\n", "#!lua name=a name=b\n", "#!lua a\n"] {
            assert!(Shebang::of_library(wrong.as_bytes()).is_err(), "{wrong}");
        }
        for (source, text) in [
            ("x", "Missing library metadata"),
            ("#!lua name=a", "Invalid library metadata"),
            ("#!lua\n", "Library name was not given"),
            ("#!js name=a\n", "Engine 'js' not found"),
        ] {
            let error = Shebang::of_library(source.as_bytes()).expect_err("it is wrong");
            assert_eq!(error.0, text.as_bytes());
        }
    }
}
