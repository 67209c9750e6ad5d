//! What cargo knows about the workspace: `cargo metadata`, read into the few fields that are used.
//!
//! It runs cargo with `--locked`, so that a check never changes `Cargo.lock`.

use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

/// One package of the dependency graph.
pub struct Package {
    /// Its name.
    pub name: String,
    /// Its purpose in a sentence.
    pub description: String,
    /// Its version.
    pub version: String,
    /// Its licence expression, if it states one.
    pub license: Option<String>,
    /// For a crate of ours: its folder below `crates/` or `lab/`.
    pub folder: Option<String>,
    /// For a crate of ours: the name of the folder that its folder is in.
    pub tree: Option<String>,
    /// For a crate of ours: folders of the crates of ours it uses outside tests and build scripts.
    pub uses: BTreeSet<String>,
}

/// The dependency graph, as far as it is built on this machine.
#[derive(Default)]
pub struct Metadata {
    /// All packages.
    pub packages: Vec<Package>,
    /// Where cargo puts what it builds.
    pub target: PathBuf,
    /// Names of packages, each with those that it uses outside tests and build scripts.
    links: BTreeMap<String, BTreeSet<String>>,
}

/// The cargo that runs this program, or the one in the path.
pub fn program() -> OsString {
    std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}

/// Variables by which `cargo run` tells a program of the program's own package.
const OWN_PACKAGE: [&str; 4] = [
    "CARGO_BIN_",
    "CARGO_CRATE_",
    "CARGO_MANIFEST_",
    "CARGO_PKG_",
];

/// Cargo, as somebody calls it by hand. Build scripts look at these variables. With others they run
/// anew, and so does the compiler.
pub fn command() -> Command {
    let mut command = Command::new(program());
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if OWN_PACKAGE.iter().any(|own| text.starts_with(own)) {
            command.env_remove(&name);
        }
    }
    command
}

/// The repository's root: the parent of the folder that holds the crates.
///
/// # Errors
/// The program runs neither by cargo nor below the root.
pub fn root() -> Result<PathBuf> {
    let start = match std::env::var_os("CARGO_MANIFEST_DIR") {
        Some(manifest) => PathBuf::from(manifest),
        None => std::env::current_dir()?,
    };
    start
        .ancestors()
        .find(|folder| folder.join("Cargo.lock").exists() && folder.join("crates").exists())
        .map(Path::to_path_buf)
        .context("run this inside the repository, by `cargo xtask`")
}

impl Metadata {
    /// Asks cargo.
    ///
    /// # Errors
    /// Cargo fails, for example because `Cargo.lock` does not fit the manifests.
    pub fn load(root: &Path) -> Result<Self> {
        let output = command()
            .current_dir(root)
            .args([
                "metadata",
                "--format-version",
                "1",
                "--locked",
                // As the packages are built: the licences of those parts count, too.
                "--features",
                "pluvio/s3",
                "--filter-platform",
            ])
            .arg(host()?)
            .output()
            .context("cannot run cargo")?;
        if !output.status.success() {
            bail!(
                "cargo metadata failed:\n{}",
                String::from_utf8_lossy(&output.stderr)
            );
        }
        let json: Value =
            serde_json::from_slice(&output.stdout).context("cargo metadata is not JSON")?;
        Self::parse(&json)
    }

    fn parse(json: &Value) -> Result<Self> {
        let target = text(&json["target_directory"]).context("no target directory")?;
        // The graph of this platform; `packages` alone lists those of other platforms, too.
        let reachable: BTreeSet<&str> = array(&json["resolve"]["nodes"])
            .filter_map(|node| node["id"].as_str())
            .collect();
        let ours: BTreeMap<String, String> = array(&json["packages"])
            .filter_map(|package| Some((text(&package["name"])?, folders(package)?.1)))
            .collect();
        let packages = array(&json["packages"])
            .filter(|package| {
                package["id"]
                    .as_str()
                    .is_some_and(|id| reachable.contains(id))
            })
            .map(|package| {
                let uses = array(&package["dependencies"])
                    .filter(|dependency| dependency["kind"].is_null())
                    .filter_map(|dependency| ours.get(dependency["name"].as_str()?).cloned())
                    .collect();
                let (tree, folder) = folders(package).unzip();
                Ok(Package {
                    name: text(&package["name"]).context("a package without a name")?,
                    description: text(&package["description"]).unwrap_or_default(),
                    version: text(&package["version"]).unwrap_or_default(),
                    license: text(&package["license"]),
                    folder,
                    tree,
                    uses,
                })
            })
            .collect::<Result<_>>()?;
        Ok(Self {
            packages,
            target: PathBuf::from(target),
            links: links(json),
        })
    }

    /// The names of all packages that are linked into what the package `name` builds.
    pub fn linked(&self, name: &str) -> BTreeSet<&str> {
        let uses = |name: &str| self.links.get(name).into_iter().flatten();
        let mut next: Vec<&str> = uses(name).map(String::as_str).collect();
        let mut found = BTreeSet::new();
        while let Some(name) = next.pop() {
            if found.insert(name) {
                next.extend(uses(name).map(String::as_str));
            }
        }
        found
    }

    /// The crates of the workspace, by folder.
    pub fn ours(&self) -> BTreeMap<&str, &Package> {
        self.packages
            .iter()
            .filter_map(|package| Some((package.folder.as_deref()?, package)))
            .collect()
    }
}

/// The platform this compiler builds for.
///
/// # Errors
/// There is no rustc.
pub fn host() -> Result<String> {
    let output = Command::new("rustc")
        .arg("-vV")
        .output()
        .context("cannot run rustc")?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.lines()
        .find_map(|line| line.strip_prefix("host: "))
        .map(str::to_owned)
        .context("rustc does not name its host")
}

fn array(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn text(value: &Value) -> Option<String> {
    value.as_str().map(str::to_owned)
}

/// The packages that each one uses outside tests and build scripts, by name.
fn links(json: &Value) -> BTreeMap<String, BTreeSet<String>> {
    let names: BTreeMap<&str, &str> = array(&json["packages"])
        .filter_map(|package| Some((package["id"].as_str()?, package["name"].as_str()?)))
        .collect();
    let mut links = BTreeMap::<String, BTreeSet<String>>::new();
    for node in array(&json["resolve"]["nodes"]) {
        let name = |id: &Value| Some((*names.get(id.as_str()?)?).to_owned());
        let uses = array(&node["deps"])
            .filter(|dep| array(&dep["dep_kinds"]).any(|kind| kind["kind"].is_null()))
            .filter_map(|dep| name(&dep["pkg"]));
        if let Some(name) = name(&node["id"]) {
            links.entry(name).or_default().extend(uses);
        }
    }
    links
}

/// The folder of a package of the workspace, behind the name of the one it is in: such packages
/// come from no registry.
fn folders(package: &Value) -> Option<(String, String)> {
    if !package["source"].is_null() {
        return None;
    }
    let manifest = PathBuf::from(package["manifest_path"].as_str()?);
    let folder = manifest.parent()?;
    let name = |folder: &Path| Some(folder.file_name()?.to_string_lossy().into_owned());
    Some((name(folder.parent()?)?, name(folder)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_normal_dependencies_on_our_crates_are_arrows() {
        let json = serde_json::json!({
        "target_directory": "t",
        "resolve": {"nodes": [
            {"id": "a", "deps": [
                {"pkg": "b", "dep_kinds": [{"kind": "dev"}, {"kind": null}]},
                {"pkg": "d", "dep_kinds": [{"kind": "build"}]}]},
            {"id": "b", "deps": [{"pkg": "c", "dep_kinds": [{"kind": null}]}]},
            {"id": "c", "deps": []}]},
        "packages": [
            {"id": "a", "name": "pluvio-log", "version": "1.0.0", "license": "Apache-2.0", "source": null,
             "manifest_path": "/x/crates/log/Cargo.toml", "dependencies": [
                {"name": "pluvio-env-os", "kind": null},
                {"name": "pluvio-sim", "kind": "dev"},
                {"name": "bytes", "kind": null}]},
            {"id": "b", "name": "pluvio-env-os", "version": "1.0.0", "license": null, "source": null,
             "manifest_path": "/x/crates/env_os/Cargo.toml", "dependencies": []},
            {"id": "c", "name": "bytes", "version": "1.2.3", "license": "MIT", "source": "registry",
             "manifest_path": "/r/bytes/Cargo.toml", "dependencies": []},
            {"id": "d", "name": "windows", "version": "1.2.3", "license": "MIT", "source": "registry",
             "manifest_path": "/r/windows/Cargo.toml", "dependencies": []},
        ]});
        let metadata = Metadata::parse(&json).expect("good metadata");
        assert_eq!(metadata.packages.len(), 3);
        let ours = metadata.ours();
        assert_eq!(ours.keys().copied().collect::<Vec<_>>(), ["env_os", "log"]);
        assert_eq!(ours["log"].uses.iter().collect::<Vec<_>>(), ["env_os"]);
        assert_eq!(ours["log"].tree.as_deref(), Some("crates"));
        let linked: Vec<_> = metadata.linked("pluvio-log").into_iter().collect();
        assert_eq!(linked, ["bytes", "pluvio-env-os"]);
    }
}
