//! The Helm chart: lint, schemas of the API, and whether the program takes what it is given.

use super::{Done, Place, said};
use crate::process::{run_limited, succeeds, succeeds_quietly};
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

const HELM: &str = "helm.sh/helm/v3/cmd/helm@v3.22.0";
/// Brings the schemas of the API in its wheel.
const VALIDATE: &str = "kubernetes-validate==1.37.0";
/// The versions that manifests are checked against: the oldest that the chart takes, and a new one.
const KUBERNETES: [&str; 2] = ["1.30.0", "1.37.0"];

/// Values that must be refused, each with a word that the refusal has.
const REFUSED: [(&str, &str); 6] = [
    ("server.memory=1024", "memory"),
    ("server.minReplicas=3", "writeReplicas"),
    ("coordinator.replicas=2", "coordinator.metadata"),
    ("coordinator.metadataUser=x", "metadataSecret"),
    ("tls.authClients=maybe", "authClients"),
    ("servers.replicas=3", "servers"),
];

/// Writes all manifests as JSON, and those that the API itself knows into a file.
const TO_JSON: &str = "
import json, sys, yaml
docs = [doc for doc in yaml.safe_load_all(sys.stdin) if doc]
known = [doc for doc in docs if doc['kind'] != 'ServiceMonitor']
yaml.safe_dump_all(known, open(sys.argv[1], 'w'))
print(json.dumps(docs))
";

/// Checks the chart.
pub fn check(place: &Place) -> Result<Done> {
    let Some(helm) = helm(place) else {
        return Ok(Done::Skipped(
            "there is neither helm nor Go to build it".into(),
        ));
    };
    let Some(python) = python(place) else {
        return Ok(Done::Skipped(format!(
            "{VALIDATE} could not be installed with pip"
        )));
    };
    let binary = place.binary()?;
    let chart = place.root.join("deploy/helm/pluvio");
    let folder = place.fresh("chart")?;
    let versions = std::fs::read_to_string(chart.join("Chart.yaml"))?;
    for of in ["version", "appVersion"] {
        let line = format!("\n{of}: {}\n", place.version()?);
        if !versions.contains(&line) {
            bail!("Chart.yaml does not say{line}");
        }
    }
    let mut cases: Vec<PathBuf> = std::fs::read_dir(place.root.join("deploy/helm/cases"))?
        .map(|entry| Ok(entry?.path()))
        .collect::<Result<_>>()?;
    cases.sort();
    for case in &cases {
        let name = case.file_stem().unwrap_or_default().to_string_lossy();
        let values = [Path::new("--values"), case.as_path()];
        said(
            Command::new(&helm)
                .args(["lint", "--strict"])
                .arg(&chart)
                .args(values),
        )?;
        for version in KUBERNETES {
            let mut template = Command::new(&helm);
            template.args(["template", "try"]).arg(&chart).args(values);
            let manifests = said(template.args(["--kube-version", version]))?;
            let known = folder.join(format!("{name}-{version}.yaml"));
            let docs = to_json(&python, &manifests, &known)?;
            let validate = python.with_file_name("kubernetes-validate");
            let mut validate = Command::new(validate);
            said(validate.args(["--strict", "-k", version]).arg(&known))?;
            let sets = docs.iter().filter(|doc| doc["kind"] == "StatefulSet");
            for set in sets {
                takes(&binary, set)
                    .with_context(|| format!("{name}: {}", set["metadata"]["name"]))?;
            }
        }
    }
    for (value, word) in REFUSED {
        let mut template = Command::new(&helm);
        template.args(["template", "try"]).arg(&chart);
        template.args(["--kube-version", KUBERNETES[1], "--set", value]);
        let outcome = run_limited(&mut template, super::LIMIT)?;
        if outcome.success || !outcome.text.contains(word) {
            bail!(
                "--set {value} is not refused as it should be: {}",
                outcome.text
            );
        }
    }
    let package = ["package", "--destination"];
    said(
        Command::new(&helm)
            .args(package)
            .arg(place.made())
            .arg(&chart),
    )?;
    println!(
        "chart: {} sets of values, {} refused",
        cases.len(),
        REFUSED.len()
    );
    Ok(Done::Good)
}

fn to_json(python: &Path, manifests: &str, known: &Path) -> Result<Vec<Value>> {
    let file = known.with_extension("in");
    std::fs::write(&file, manifests)?;
    let mut script = Command::new("sh");
    script.args(["-c", "exec \"$1\" -c \"$2\" \"$3\" <\"$4\"", "sh"]);
    let text = said(script.arg(python).arg(TO_JSON).arg(known).arg(&file))?;
    Ok(serde_json::from_str(&text)?)
}

/// Whether the program takes the options and the environment of a StatefulSet's container, and the
/// pod has time to be drained.
fn takes(binary: &Path, set: &Value) -> Result<()> {
    let pod = &set["spec"]["template"]["spec"];
    let container = &pod["containers"][0];
    let fill = |text: &str| {
        text.replace("$(POD_IP)", "10.1.2.3")
            .replace("$(NODE_NAME)", "node-1")
    };
    let mut command = Command::new(binary);
    command.env_clear();
    for variable in container["env"].as_array().into_iter().flatten() {
        if let (Some(name), Some(value)) = (variable["name"].as_str(), variable["value"].as_str()) {
            command.env(name, value);
        }
    }
    for argument in container["args"].as_array().into_iter().flatten() {
        command.arg(fill(argument.as_str().context("an argument is no text")?));
    }
    let options = said(command.arg("--print-config"))?;
    if options.contains("password = ") {
        bail!("a password stands among the options");
    }
    let drain = options
        .lines()
        .find_map(|line| line.strip_prefix("drain-timeout = \""));
    if let Some(drain) = drain {
        let seconds: u64 = drain.split('s').next().unwrap_or_default().parse()?;
        let grace = pod["terminationGracePeriodSeconds"].as_u64().unwrap_or(0);
        if grace < seconds + 30 {
            bail!("the pod has {grace} s to end, and a drain may take {seconds} s");
        }
    }
    Ok(())
}

/// The helm of this machine, or one that Go builds.
fn helm(place: &Place) -> Option<PathBuf> {
    let runs = |helm: &Path| succeeds_quietly(Command::new(helm).args(["version", "--short"]));
    let own = place.tools().join("bin/helm");
    let found = [PathBuf::from("helm"), own.clone()];
    if let Some(helm) = found.into_iter().find(|helm| runs(helm)) {
        return Some(helm);
    }
    println!("packages: go install {HELM}");
    let mut install = Command::new("go");
    install
        .env("GOBIN", place.tools().join("bin"))
        .args(["install", HELM]);
    (succeeds(&mut install) && runs(&own)).then_some(own)
}

/// A Python with the schemas.
fn python(place: &Place) -> Option<PathBuf> {
    let venv = place.tools().join("venv");
    let python = venv.join("bin/python");
    let has =
        || succeeds_quietly(Command::new(&python).args(["-c", "import kubernetes_validate, yaml"]));
    if has() {
        return Some(python);
    }
    println!("packages: pip install {VALIDATE}");
    let made = succeeds(Command::new("python3").args(["-m", "venv"]).arg(&venv));
    let pip = [
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        VALIDATE,
    ];
    (made && succeeds(Command::new(&python).args(pip)) && has()).then_some(python)
}
