//! The software bill of materials: everything that is linked into the program, in CycloneDX.

use super::Place;
use crate::cargo::Package;
use anyhow::Result;
use serde_json::{Value, json};
use std::path::PathBuf;

/// Writes it; gives the file.
pub fn write(place: &Place) -> Result<PathBuf> {
    let linked = place.metadata.linked("pluvio");
    let packages = place.metadata.packages.iter();
    let parts = packages.filter(|package| linked.contains(package.name.as_str()));
    let text = serde_json::to_string_pretty(&bom(place.version()?, parts))?;
    let file = place.made().join("pluvio.cdx.json");
    std::fs::create_dir_all(place.made())?;
    std::fs::write(&file, text + "\n")?;
    Ok(file)
}

fn bom<'a>(version: &str, parts: impl Iterator<Item = &'a Package>) -> Value {
    let mut components: Vec<Value> = parts.map(component).collect();
    components.sort_by_key(|part| part["bom-ref"].to_string());
    json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": { "component": {
            "type": "application",
            "bom-ref": format!("pluvio@{version}"),
            "name": "pluvio",
            "version": version,
            "licenses": [{ "expression": "Apache-2.0" }],
        } },
        "components": components,
    })
}

fn component(package: &Package) -> Value {
    let reference = format!("{}@{}", package.name, package.version);
    let mut value = json!({
        "type": "library",
        "bom-ref": reference,
        "name": package.name,
        "version": package.version,
    });
    // Those of the workspace are in no registry.
    if package.folder.is_none() {
        value["purl"] = json!(format!("pkg:cargo/{reference}"));
    }
    if let Some(licence) = &package.license {
        // An older way to write a choice.
        value["licenses"] = json!([{ "expression": licence.replace('/', " OR ") }]);
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn parts_are_named_with_version_origin_and_licence() {
        let package = |name: &str, folder: Option<&str>, license: &str| Package {
            name: name.into(),
            description: String::new(),
            version: "1.2.3".into(),
            license: Some(license.into()),
            folder: folder.map(str::to_owned),
            tree: None,
            uses: BTreeSet::new(),
        };
        let parts = [
            package("pluvio-log", Some("log"), "Apache-2.0"),
            package("bytes", None, "MIT/Apache-2.0"),
        ];
        let bom = bom("0.1.0", parts.iter());
        let parts = &bom["components"];
        assert_eq!(parts[0]["purl"], "pkg:cargo/bytes@1.2.3");
        assert_eq!(parts[0]["licenses"][0]["expression"], "MIT OR Apache-2.0");
        assert_eq!(parts[1]["bom-ref"], "pluvio-log@1.2.3");
        assert!(parts[1].get("purl").is_none());
        assert_eq!(bom["metadata"]["component"]["version"], "0.1.0");
    }
}
