//! The files of the repository, read once and shared by all tidy checks.
//!
//! Invariants
//! - TREE-1: paths are relative to the repository's root, with `/`, in sorted order.
//! - TREE-2: the tree has neither build output nor anything that `.gitignore` names at the root. So
//!   the check says the same in a clone and in an unpacked archive.

use super::lex;
use anyhow::{Context, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Folders that are never part of the project's text.
const SKIPPED: [&str; 4] = ["target", ".git", "node_modules", "__pycache__"];

/// One text file.
pub struct File {
    /// Where it is, relative to the root.
    pub path: String,
    /// What is in it.
    pub text: String,
    /// Code and comments; only for Rust files.
    pub rust: Option<Rust>,
}

/// A Rust file taken apart.
pub struct Rust {
    /// Code and comments.
    pub layers: lex::Layers,
    /// For each line, whether it is code of tests.
    pub is_test: Vec<bool>,
}

impl Rust {
    /// Whether position `at` of a layer lies in a test.
    pub fn tests_at(&self, at: usize) -> bool {
        let line = lex::line_of(&self.layers.code, at);
        self.is_test.get(line - 1).copied().unwrap_or(false)
    }
}

/// All text files of the repository.
pub struct Tree {
    /// The repository's root on this machine.
    pub root: PathBuf,
    /// The files by path.
    pub files: BTreeMap<String, File>,
}

impl Tree {
    /// Reads the tree below `root`.
    ///
    /// # Errors
    /// A folder or file cannot be read.
    pub fn read(root: &Path) -> Result<Self> {
        let mut paths = Vec::new();
        let ignored = ignored_at_root(root);
        collect(root, "", &ignored, &mut paths)?;
        let mut sources = BTreeMap::new();
        for path in paths {
            let bytes =
                std::fs::read(root.join(&path)).with_context(|| format!("cannot read {path}"))?;
            // Pictures are not checked.
            if let Ok(text) = String::from_utf8(bytes) {
                sources.insert(path, text);
            }
        }
        Ok(Self::from_sources(root, sources))
    }

    /// A tree of the given texts.
    pub fn from_sources(root: &Path, sources: BTreeMap<String, String>) -> Self {
        let mut layers: BTreeMap<String, lex::Layers> = sources
            .iter()
            .filter(|(path, _)| is_rust(path))
            .map(|(path, text)| (path.clone(), lex::split(text)))
            .collect();
        let test_modules: BTreeSet<String> = layers
            .iter()
            .flat_map(|(path, layers)| test_modules(path, &layers.code))
            .collect();
        let files = sources
            .into_iter()
            .map(|(path, text)| {
                let rust = layers.remove(&path).map(|layers| Rust {
                    is_test: test_lines(&path, &layers.code, &test_modules),
                    layers,
                });
                (path.clone(), File { path, text, rust })
            })
            .collect();
        Self {
            root: root.to_path_buf(),
            files,
        }
    }

    /// The Rust files.
    pub fn rust(&self) -> impl Iterator<Item = (&File, &Rust)> {
        self.files
            .values()
            .filter_map(|file| file.rust.as_ref().map(|rust| (file, rust)))
    }

    /// The documents.
    pub fn markdown(&self) -> impl Iterator<Item = &File> {
        self.files
            .values()
            .filter(|file| Path::new(&file.path).extension().is_some_and(|e| e == "md"))
    }

    /// Whether `path` is a file or a folder of the tree.
    pub fn has(&self, path: &str) -> bool {
        let path = path.trim_end_matches('/');
        self.files.contains_key(path) || self.root.join(path).exists()
    }
}

/// The folders with crates: the product and the laboratory.
pub const TREES: [&str; 2] = ["crates", "lab"];

/// The crate folder (`log` for `crates/log/src/head.rs`) a path belongs to.
pub fn crate_of(path: &str) -> Option<&str> {
    let (tree, rest) = path.split_once('/')?;
    let (name, _) = rest.split_once('/')?;
    TREES.contains(&tree).then_some(name)
}

fn is_rust(path: &str) -> bool {
    Path::new(path).extension().is_some_and(|e| e == "rs")
}

/// Lines `/name` of `.gitignore`.
fn ignored_at_root(root: &Path) -> BTreeSet<String> {
    let text = std::fs::read_to_string(root.join(".gitignore")).unwrap_or_default();
    text.lines()
        .filter_map(|line| line.trim().strip_prefix('/'))
        .map(|name| name.trim_end_matches('/').to_owned())
        .collect()
}

fn collect(
    root: &Path,
    folder: &str,
    ignored: &BTreeSet<String>,
    into: &mut Vec<String>,
) -> Result<()> {
    let directory = root.join(folder);
    let entries = std::fs::read_dir(&directory)
        .with_context(|| format!("cannot list {}", directory.display()))?;
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = if folder.is_empty() {
            name.clone()
        } else {
            format!("{folder}/{name}")
        };
        if SKIPPED.contains(&name.as_str()) || ignored.contains(&path) {
            continue;
        }
        let kind = entry.file_type()?;
        if kind.is_dir() {
            collect(root, &path, ignored, into)?;
        } else if kind.is_file() {
            into.push(path);
        }
    }
    into.sort();
    Ok(())
}

/// Where the attribute `#[cfg(test)]` ends in `code`, all places. `all(test, …)` is for tests as
/// well, and `any(test, feature = …)` for test doubles.
fn test_attributes(code: &str) -> impl Iterator<Item = (usize, usize)> {
    ["#[cfg(test)]", "#[cfg(all(test", "#[cfg(any(test"]
        .into_iter()
        .flat_map(move |text| {
            code.match_indices(text)
                .map(move |(at, _)| (at, lex::after_closing(code.as_bytes(), at + 1)))
        })
}

/// Path prefixes of the files that `#[cfg(test)] mod name;` in the file at `path` pulls in.
fn test_modules(path: &str, code: &str) -> Vec<String> {
    let (folder, file) = path.rsplit_once('/').unwrap_or(("", path));
    let base = match file {
        "lib.rs" | "main.rs" | "mod.rs" => folder.to_owned(),
        other => format!("{folder}/{}", other.trim_end_matches(".rs")),
    };
    test_attributes(code)
        .filter_map(|(_, end)| {
            let rest = code[end..].trim_start();
            let rest = rest
                .trim_start_matches("pub(crate) ")
                .trim_start_matches("pub ");
            let name = rest.strip_prefix("mod ")?.split_once(';')?.0.trim();
            let plain = name.bytes().all(lex::is_word);
            plain.then(|| format!("{base}/{name}"))
        })
        .collect()
}

/// Which lines of the file at `path` are code of tests.
fn test_lines(path: &str, code: &str, test_modules: &BTreeSet<String>) -> Vec<bool> {
    let count = code.lines().count();
    let stem = path.trim_end_matches(".rs");
    let whole = path.contains("/tests/")
        || path.contains("/benches/")
        || stem.ends_with("/tests")
        || test_modules
            .iter()
            .any(|module| stem == module || path.starts_with(&format!("{module}/")));
    let mut lines = vec![whole; count];
    for (start, end) in test_attributes(code) {
        let bytes = code.as_bytes();
        let mut at = end;
        while at < bytes.len() && bytes[at] != b';' && bytes[at] != b'{' {
            at = if matches!(bytes[at], b'(' | b'[') {
                lex::after_closing(bytes, at)
            } else {
                at + 1
            };
        }
        if bytes.get(at) == Some(&b'{') {
            at = lex::after_closing(bytes, at);
        }
        let last = lex::line_of(code, at.min(code.len()));
        let first = lex::line_of(code, start);
        lines[first - 1..last.min(count)].fill(true);
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(sources: &[(&str, &str)]) -> Tree {
        let sources = sources
            .iter()
            .map(|(path, text)| ((*path).to_owned(), (*text).to_owned()))
            .collect();
        Tree::from_sources(Path::new("/nowhere"), sources)
    }

    fn tests_of(tree: &Tree, path: &str) -> Vec<bool> {
        tree.files[path]
            .rust
            .as_ref()
            .expect("a Rust file")
            .is_test
            .clone()
    }

    #[test]
    fn a_test_module_is_test_code_and_the_rest_is_not() {
        let text = "fn a() {}\n#[cfg(test)]\n#[allow(x)]\nmod tests {\n fn b() {}\n}\nfn c() {}\n";
        let tree = tree(&[("crates/x/src/lib.rs", text)]);
        assert_eq!(
            tests_of(&tree, "crates/x/src/lib.rs"),
            [false, true, true, true, true, true, false]
        );
    }

    #[test]
    fn modules_in_their_own_file_are_found() {
        let tree = tree(&[
            (
                "crates/x/src/lib.rs",
                "#[cfg(test)]\nmod model;\nmod other;\n#[cfg(any(test, feature = \"t\"))]\npub mod fake;\n",
            ),
            ("crates/x/src/model.rs", "fn a() {}\n"),
            ("crates/x/src/model/deep.rs", "fn a() {}\n"),
            ("crates/x/src/fake.rs", "fn a() {}\n"),
            (
                "crates/x/src/other.rs",
                "#[cfg(all(test, not(loom)))] mod inner;\n",
            ),
            ("crates/x/src/other/inner.rs", "fn a() {}\n"),
            ("crates/x/src/other/more.rs", "fn a() {}\n"),
            ("crates/x/tests/process.rs", "fn a() {}\n"),
        ]);
        for (path, expected) in [
            ("crates/x/src/model.rs", true),
            ("crates/x/src/model/deep.rs", true),
            ("crates/x/src/fake.rs", true),
            ("crates/x/src/other/inner.rs", true),
            ("crates/x/src/other/more.rs", false),
            ("crates/x/tests/process.rs", true),
        ] {
            assert_eq!(tests_of(&tree, path), [expected], "{path}");
        }
    }

    #[test]
    fn crate_folders() {
        assert_eq!(crate_of("crates/env_os/src/lib.rs"), Some("env_os"));
        assert_eq!(crate_of("lab/sim/Cargo.toml"), Some("sim"));
        assert_eq!(crate_of("docs/log-format.md"), None);
    }
}
