//! The definition of a space: a named list of spans, each for reading or for writing.
//!
//! ```text
//! space 1 0123…cdef 7              format, id, generation
//! span 89ab…4567 write towns       id, access, name
//! check 1a2b3c4d                   CRC-32C of the lines before
//! ```
//!
//! A change replaces the file, and counts the generation. A process that is attached
//! keeps the spans that it has, and can ask whether the definition has changed.

use crate::error::{Result, SpaceError};
use crate::files;
use crate::names::SpanId;
use crate::registry::{Registry, What};
use pluvio_units::crc32c;
use rustix::io::Errno;
use std::fmt::Write;
use std::path::Path;

/// The format of the files.
const FORMAT: u32 = 1;
/// Most spans of a space: each may take a lock, and a process may have few thousand files.
pub const MEMBERS_MAX: usize = 256;
/// Longest file: a line takes at most 180 bytes.
const BYTES_MAX: usize = 64 << 10;

/// How a space has a span.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Access {
    /// For reading: entering takes a shared lock.
    Read,
    /// For reading and writing: entering takes an exclusive lock.
    Write,
}

impl Access {
    /// In words, for messages and tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
        }
    }
}

/// A span of a space.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Member {
    /// The span's name.
    pub name: String,
    /// Which span it is.
    pub id: SpanId,
    /// How the space has it.
    pub access: Access,
}

/// A named space as it is defined.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SpaceDefinition {
    pub(crate) registry_root: std::path::PathBuf,
    name: String,
    id: SpanId,
    generation: u64,
    members: Vec<Member>,
}

impl SpaceDefinition {
    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Which one it is, whatever its name.
    #[must_use]
    pub fn id(&self) -> SpanId {
        self.id
    }

    /// 1 when it was made, and one more with each change.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Its spans, in the order in which they were added.
    #[must_use]
    pub fn members(&self) -> &[Member] {
        &self.members
    }

    fn encode(&self) -> String {
        let mut text = format!("space {FORMAT} {} {}\n", self.id, self.generation);
        for member in &self.members {
            let access = member.access.name();
            let _ = writeln!(text, "span {} {access} {}", member.id, member.name);
        }
        let crc = crc32c(&[text.as_bytes()]);
        let _ = writeln!(text, "check {crc:08x}");
        text
    }

    fn decode(registry: &Registry, path: &Path, name: &str, text: &str) -> Result<Self> {
        let damaged = |why: &str| SpaceError::damaged(path, why);
        let (lines, check) = text
            .strip_suffix('\n')
            .and_then(|text| text.rsplit_once("\ncheck "))
            .ok_or_else(|| damaged("it is no space, or was cut"))?;
        let mut words = lines.lines().next().unwrap_or_default().split(' ');
        if words.next() != Some("space") {
            return Err(damaged("it is no space"));
        }
        let format = words.next().and_then(|word| word.parse().ok());
        match format {
            Some(FORMAT) => {}
            Some(found) => {
                return Err(SpaceError::WrongVersion {
                    path: path.to_owned(),
                    found,
                    known: FORMAT,
                });
            }
            None => return Err(damaged("it has no format")),
        }
        let crc = format!("{:08x}", crc32c(&[lines.as_bytes(), b"\n"]));
        if crc != check {
            return Err(damaged("its checksum is another one"));
        }
        let id = words.next().and_then(|word| word.parse().ok());
        let generation = words.next().and_then(|word| word.parse().ok());
        let (Some(id), Some(generation)) = (id, generation) else {
            return Err(damaged("its first line has no id or no generation"));
        };
        let members = lines
            .lines()
            .skip(1)
            .map(|line| member(line).ok_or_else(|| damaged("a line is no span")))
            .collect::<Result<_>>()?;
        Ok(Self {
            registry_root: registry.root().to_owned(),
            name: name.to_owned(),
            id,
            generation,
            members,
        })
    }
}

fn member(line: &str) -> Option<Member> {
    let mut words = line.split(' ');
    if words.next()? != "span" {
        return None;
    }
    let id = words.next()?.parse().ok()?;
    let access = match words.next()? {
        "read" => Access::Read,
        "write" => Access::Write,
        _ => return None,
    };
    let name = words.next()?.to_owned();
    crate::names::check(&name).ok()?;
    Some(Member { name, id, access })
}

impl Registry {
    /// Makes a space of these spans (the paper's `vas_create`, and `seg_attach` to its result).
    ///
    /// # Errors
    /// The name is taken or none; a span is not there or named twice; two of them overlap.
    pub fn create_space(&self, name: &str, spans: &[(&str, Access)]) -> Result<SpaceDefinition> {
        self.path(What::Space, name)?;
        let _held = self.lock()?;
        self.check_free(What::Space, name)?;
        let mut definition = SpaceDefinition {
            registry_root: self.root().to_owned(),
            name: name.to_owned(),
            id: SpanId::random()?,
            generation: 1,
            members: Vec::new(),
        };
        for &(span, access) in spans {
            self.add_member(&mut definition, span, access)?;
        }
        self.write_new(&definition, 0o644)?;
        self.publish(What::Space, name)?;
        Ok(definition)
    }

    /// Finds a space (the paper's `vas_find`).
    ///
    /// # Errors
    /// It is not there, or may not be read, or its file is damaged or of another format.
    pub fn find_space(&self, name: &str) -> Result<SpaceDefinition> {
        let path = self.path(What::Space, name)?;
        let file = match files::open(&path, false) {
            Ok(file) => file,
            Err(Errno::NOENT) => return Err(self.not_found(What::Space, name)),
            Err(errno) => return Err(SpaceError::of("read", &path, errno)),
        };
        let length = files::length(&file, &path)?;
        let length = usize::try_from(length)
            .ok()
            .filter(|&length| length <= BYTES_MAX)
            .ok_or_else(|| SpaceError::damaged(&path, "it is too long"))?;
        let mut bytes = vec![0; length];
        files::read(&file, &path, &mut bytes, 0)?;
        let text =
            String::from_utf8(bytes).map_err(|_| SpaceError::damaged(&path, "it is no text"))?;
        SpaceDefinition::decode(self, &path, name, &text)
    }

    /// The names of all spaces, sorted.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn spaces(&self) -> Result<Vec<String>> {
        self.names(What::Space)
    }

    /// Adds a span to a space, as its last one (the paper's `seg_attach` to a named space).
    ///
    /// # Errors
    /// As of [`Self::create_space`] and [`Self::find_space`].
    pub fn add_to_space(&self, name: &str, span: &str, access: Access) -> Result<SpaceDefinition> {
        let _held = self.lock()?;
        let mut definition = self.find_space(name)?;
        self.add_member(&mut definition, span, access)?;
        self.replace(definition)
    }

    /// Takes a span out of a space (the paper's `seg_detach`). It need not exist any longer.
    ///
    /// # Errors
    /// The space does not list it; and as of [`Self::find_space`].
    pub fn remove_from_space(&self, name: &str, span: &str) -> Result<SpaceDefinition> {
        let _held = self.lock()?;
        let mut definition = self.find_space(name)?;
        let before = definition.members.len();
        definition.members.retain(|member| member.name != span);
        if definition.members.len() == before {
            return Err(SpaceError::NotAttached(span.to_owned()));
        }
        self.replace(definition)
    }

    /// Makes a space of the same spans (the paper's `vas_clone`).
    ///
    /// # Errors
    /// As of [`Self::find_space`]; the new name is taken or none.
    pub fn clone_space(&self, name: &str, to: &str) -> Result<SpaceDefinition> {
        self.path(What::Space, to)?;
        let _held = self.lock()?;
        let mut definition = self.find_space(name)?;
        self.check_free(What::Space, to)?;
        definition.name = to.to_owned();
        definition.id = SpanId::random()?;
        definition.generation = 1;
        self.write_new(&definition, 0o644)?;
        self.publish(What::Space, to)?;
        Ok(definition)
    }

    /// Destroys a space. Its spans stay, and so does what is attached.
    ///
    /// # Errors
    /// It is not there, or this user may not remove it.
    pub fn destroy_space(&self, name: &str) -> Result<()> {
        let path = self.path(What::Space, name)?;
        let _held = self.lock()?;
        files::remove(&path).map_err(|errno| match errno {
            Errno::NOENT => self.not_found(What::Space, name),
            errno => SpaceError::of("remove", &path, errno),
        })
    }

    fn add_member(
        &self,
        definition: &mut SpaceDefinition,
        span: &str,
        access: Access,
    ) -> Result<()> {
        if definition.members.iter().any(|member| member.name == span) {
            return Err(What::Span.name_taken(span));
        }
        if definition.members.len() == MEMBERS_MAX {
            return Err(SpaceError::BadRange(format!(
                "a space has at most {MEMBERS_MAX} spans"
            )));
        }
        let new = self.find_span(span)?;
        for member in &definition.members {
            let Ok(other) = self.find_span(&member.name) else {
                continue;
            };
            if new.range().overlaps(other.range()) {
                return Err(SpaceError::RangeTaken {
                    name: span.to_owned(),
                    other: other.name,
                });
            }
        }
        definition.members.push(Member {
            name: span.to_owned(),
            id: new.id,
            access,
        });
        Ok(())
    }

    fn write_new(&self, definition: &SpaceDefinition, mode: u32) -> Result<()> {
        let path = self.new_path(What::Space, &definition.name);
        let file = files::make(&path)?;
        files::write(&file, &path, definition.encode().as_bytes(), 0)?;
        files::set_mode(&file, &path, mode & 0o777)
    }

    /// Puts a changed definition in the place of the old one, with the old one's rights.
    fn replace(&self, mut definition: SpaceDefinition) -> Result<SpaceDefinition> {
        definition.generation += 1;
        let path = self.path(What::Space, &definition.name)?;
        let mode = rustix::fs::stat(&path).map_or(0o644, |status| status.st_mode);
        self.write_new(&definition, mode)?;
        files::replace(&self.new_path(What::Space, &definition.name), &path)?;
        Ok(definition)
    }
}
