//! Rules for manifests: lints, versions in one place, folder names, licences of what we build on.

use super::Report;
use super::tree::{File, Tree, crate_of};
use crate::cargo::Metadata;
use spdx::{Expression, ParseMode};
use std::collections::BTreeSet;

/// Crates with `unsafe` code; they spell their lints out.
const UNSAFE: [&str; 8] = [
    "memory",
    "log",
    "fabric",
    "spacejmp",
    "store_c",
    "store_python",
    "jump",
    "allocs",
];
/// The lints such a crate has to name, so that each block is confined and explained.
const UNSAFE_LINTS: [&str; 3] = [
    "unsafe_code",
    "unsafe_op_in_unsafe_fn",
    "undocumented_unsafe_blocks",
];

/// Looks at the manifests and at the licences of all packages that are built.
pub fn check(tree: &Tree, metadata: &Metadata, report: &mut Report) {
    let manifests = tree.files.values().filter(|file| {
        let folders = file.path.split('/').skip(2);
        crate_of(&file.path).is_some() && folders.eq(["Cargo.toml"])
    });
    for file in manifests {
        lints(file, report);
        versions(file, report);
    }
    for (folder, package) in metadata.ours() {
        let expected = match folder {
            "cli" => "pluvio".to_owned(),
            "xtask" | "pluvio-lab" => folder.to_owned(),
            _ => format!("pluvio-{}", folder.replace('_', "-")),
        };
        if package.name != expected {
            let tree = package.tree.as_deref().unwrap_or_default();
            let path = format!("{tree}/{folder}/Cargo.toml");
            report.finding(
                &path,
                0,
                "names",
                format!("the package {} should be called {expected}", package.name),
            );
        }
    }
    licenses(tree, metadata, report);
}

fn lints(file: &File, report: &mut Report) {
    let workspace = file.text.contains("[lints]\nworkspace = true");
    let name = crate_of(&file.path).unwrap_or_default();
    if workspace {
        return;
    }
    if !UNSAFE.contains(&name) {
        report.finding(
            &file.path,
            0,
            "lints",
            "has no `[lints]` with `workspace = true`",
        );
        return;
    }
    for lint in UNSAFE_LINTS {
        if !file.text.contains(&format!("{lint} = \"deny\"")) {
            report.finding(
                &file.path,
                0,
                "lints",
                format!("does not say `{lint} = \"deny\"`"),
            );
        }
    }
}

/// Dependencies take their version from the workspace, so that each is there once.
fn versions(file: &File, report: &mut Report) {
    let mut section = "";
    for (index, line) in file.text.lines().enumerate() {
        let line = line.trim();
        if line.starts_with('[') {
            section = line;
        } else if section.ends_with("dependencies]") && line.contains('=') && !line.starts_with('#')
        {
            let inherits = line.contains(".workspace = true") || line.contains("workspace = true");
            if !inherits {
                report.finding(
                    &file.path,
                    index + 1,
                    "versions",
                    "take the version from [workspace.dependencies]",
                );
            }
        }
    }
}

fn licenses(tree: &Tree, metadata: &Metadata, report: &mut Report) {
    let Some(deny) = tree.files.get("deny.toml") else {
        return;
    };
    let allowed = allowed(&deny.text);
    let exceptions = exceptions(&deny.text);
    for package in &metadata.packages {
        let name = format!("{} {}", package.name, package.version);
        match &package.license {
            None => report.finding(
                "deny.toml",
                0,
                "licences",
                format!("{name} states no licence"),
            ),
            Some(expression)
                if !permits(expression, &allowed)
                    && !exceptions.contains(&(package.name.as_str(), expression)) =>
            {
                report.finding(
                    "deny.toml",
                    0,
                    "licences",
                    format!("{name} is under {expression}, which the list does not allow"),
                );
            }
            Some(_) => {}
        }
    }
}

/// The list `allow = [ … ]` in the section `[licenses]` of deny.toml.
fn allowed(deny: &str) -> BTreeSet<String> {
    let section = deny.split("[licenses]").nth(1).unwrap_or_default();
    let list = section.split("allow = [").nth(1).unwrap_or_default();
    let list = list.split(']').next().unwrap_or_default();
    // Names stand between quotes: every second piece.
    list.split('"')
        .skip(1)
        .step_by(2)
        .map(str::to_owned)
        .collect()
}

/// The crates that alone may have another licence, with it. Each stands on a line
/// `{ crate = "x", allow = ["y"] }` behind `exceptions = [` in the section `[licenses]`.
fn exceptions(deny: &str) -> BTreeSet<(&str, &str)> {
    let section = deny.split("[licenses]").nth(1).unwrap_or_default();
    let list = section.split("exceptions = [\n").nth(1).unwrap_or_default();
    let list = list.split("\n]").next().unwrap_or_default();
    list.lines()
        .filter_map(|line| {
            let mut quoted = line.split('"').skip(1).step_by(2);
            Some((quoted.next()?, quoted.next()?))
        })
        .collect()
}

/// Whether a licence expression can be met with allowed licences alone. The old form
/// `MIT/Apache-2.0` means `OR`.
fn permits(expression: &str, allowed: &BTreeSet<String>) -> bool {
    Expression::parse_mode(expression, ParseMode::LAX)
        .is_ok_and(|parsed| parsed.evaluate(|licence| allowed.contains(&licence.to_string())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn licence_expressions_are_understood() {
        let deny = "[graph]\nallow = [\"No\"]\n[licenses]\nallow = [\n \"MIT\", # why\n \"Apache-2.0\",\n \"Apache-2.0 WITH LLVM-exception\",\n]\n";
        let allowed = allowed(deny);
        assert_eq!(allowed.len(), 3);
        for (expression, expected) in [
            ("MIT", true),
            ("GPL-3.0", false),
            ("MIT OR GPL-3.0", true),
            ("MIT/Apache-2.0", true),
            ("MIT AND GPL-3.0", false),
            ("(MIT OR GPL-3.0) AND Apache-2.0", true),
            ("GPL-3.0 OR MIT AND BSD", false),
            ("Apache-2.0 WITH LLVM-exception OR GPL-3.0", true),
            ("", false),
            ("(MIT", false),
        ] {
            assert_eq!(permits(expression, &allowed), expected, "{expression}");
        }
    }

    #[test]
    fn exceptions_are_of_one_crate_and_one_licence() {
        let deny = "[licenses]\nallow = [\"MIT\"]\nexceptions = [\n    { crate = \"a\", allow = [\"MPL-2.0\"] },\n]\n[bans]\n";
        assert_eq!(exceptions(deny), BTreeSet::from([("a", "MPL-2.0")]));
        assert!(exceptions("[licenses]\n").is_empty());
    }

    #[test]
    fn versions_stand_in_the_workspace() {
        let file = File {
            path: "crates/x/Cargo.toml".to_owned(),
            text: "[package]\nversion = \"1\"\n[dependencies]\na.workspace = true\nb = { workspace = true, features = [] }\nc = \"1\"\n[dev-dependencies]\nd = { version = \"1\" }\n".to_owned(),
            rust: None,
        };
        let mut report = Report::default();
        versions(&file, &mut report);
        let lines: Vec<usize> = report.findings.iter().map(|finding| finding.line).collect();
        assert_eq!(lines, [6, 8]);
    }
}
