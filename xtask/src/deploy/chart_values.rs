// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests the helm chart's values: each is in the schema, is explained, and has an effect.

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::{
    folder,
    helm::{ADDRESS, Helm},
    kustomize::Kubectl,
};
use crate::fs;

/// Each path in the schema of values, and a value for it that is not the default.
const OTHERS: [(&str, &str); 16] = [
    ("image.repository", "registry.example/portolan"),
    ("image.tag", "9.9.9"),
    ("apiServer", "https://198.51.100.7:6443"),
    // Refused together with `apiServer`; `check` leaves `apiServer` empty for it.
    ("kubeProxyConfigMap", "kube-proxy"),
    ("settings.clusterCIDR", "10.9.0.0/16"),
    ("settings.portolan", "{\"forwarding\":\"auto\"}"),
    ("mode", "drain"),
    ("nodeByNode", "true"),
    ("cgroupRoot", "/sys/fs/cgroup/unified"),
    ("resources.requests", "{\"cpu\":\"1\"}"),
    ("resources.limits", "{\"memory\":\"1Gi\"}"),
    ("maxUnavailable", "3"),
    ("podMonitor", "true"),
    ("alerts", "true"),
    // Has no effect without `alerts`; `check` sets both.
    ("runbooks", "https://git.example/portolan/"),
    ("dashboard", "true"),
];

/// Sets of values that helm must refuse, each with a text that its message must contain.
const REFUSED: [(&[&str], &str); 15] = [
    (&[], "apiServer"),
    (
        &[ADDRESS, "kubeProxyConfigMap=kube-proxy"],
        "exclude each other",
    ),
    (&["apiServer=192.0.2.1"], "/apiServer"),
    (&[ADDRESS, "image.tag=a/b"], "/image/tag"),
    (&[ADDRESS, "image.repository="], "/image/repository"),
    (
        &[ADDRESS, "kubeProxyConfigMap=Kube_Proxy"],
        "/kubeProxyConfigMap",
    ),
    (&[ADDRESS, "mode=walk"], "/mode"),
    (&[ADDRESS, "nodeByNode=maybe"], "/nodeByNode"),
    (&[ADDRESS, "cgroupRoot=cgroup"], "/cgroupRoot"),
    (&[ADDRESS, "maxUnavailable=0"], "/maxUnavailable"),
    (&[ADDRESS, "settings.portolan=yes"], "/settings/portolan"),
    (&[ADDRESS, "alerts=maybe"], "/alerts"),
    (&[ADDRESS, "runbooks=git.example"], "/runbooks"),
    (&[ADDRESS, "dashboard=grafana"], "/dashboard"),
    (&[ADDRESS, "tolerations=none"], "tolerations"),
];

fn read(name: &str) -> Result<String> {
    fs::read_to_string(folder("chart").join(name))
}

pub(super) fn check(helm: &Helm, kubectl: &Kubectl) -> Result<()> {
    let schema: Value = serde_json::from_str(&read("values.schema.json")?).context("the schema")?;
    let mut paths = Vec::new();
    leaves("", &schema, &mut paths);
    let mut known = OTHERS.map(|(path, _)| path.to_owned()).to_vec();
    paths.sort();
    known.sort();
    ensure!(
        paths == known,
        "the schema has {paths:?}, tried are {known:?}"
    );

    let text = read("values.yaml")?;
    let lines: Vec<_> = text.lines().collect();
    for path in &paths {
        let key = path.split('.').next().unwrap_or_default();
        let start = format!("{key}:");
        let line = lines.iter().position(|line| line.starts_with(&start));
        let line = line.with_context(|| format!("values.yaml does not have {key}"))?;
        let inside = lines
            .get(line + 1)
            .is_some_and(|line| line.starts_with("  #"));
        let is_explained = inside || lines[line - 1].starts_with('#');
        ensure!(is_explained, "values.yaml does not explain {key}");
    }

    let chart = |values: &[&str]| kubectl.parse(&helm.template(values)?);
    let plain = chart(&[ADDRESS])?;
    let with_alerts = chart(&[ADDRESS, "alerts=true"])?;
    for (path, other) in OTHERS {
        let no_address = path == "kubeProxyConfigMap";
        let address = if no_address { "apiServer=" } else { ADDRESS };
        let values = if other.starts_with('{') {
            // helm's `--set` needs a single entry of a map, not the map as JSON.
            let map: serde_json::Map<String, Value> = serde_json::from_str(other)?;
            let (key, value) = map.iter().next().context("an entry")?;
            format!("{path}.{key}={}", value.as_str().unwrap_or_default())
        } else {
            format!("{path}={other}")
        };
        if path == "runbooks" {
            let after = chart(&[address, "alerts=true", &values])?;
            ensure!(after != with_alerts, "{path} changes nothing");
            continue;
        }
        let after = chart(&[address, &values])?;
        ensure!(after != plain, "{path} changes nothing");
    }
    Ok(())
}

/// Adds to `found` the path of every value in the schema. A map with any keys counts as one value.
fn leaves(path: &str, schema: &Value, found: &mut Vec<String>) {
    match schema["properties"].as_object() {
        Some(properties) => {
            for (name, inner) in properties.iter().filter(|(name, _)| *name != "global") {
                let path = format!("{path}.{name}");
                leaves(path.trim_start_matches('.'), inner, found);
            }
        }
        None => found.push(path.to_owned()),
    }
}

pub(super) fn refused(helm: &Helm) -> Result<()> {
    for (values, named) in REFUSED {
        let Err(error) = helm.template(values) else {
            anyhow::bail!("{values:?} is taken");
        };
        let text = format!("{error:#}");
        // The error begins with the command itself, which also contains the value.
        let answer = text.split_once("Error:").map_or("", |(_, answer)| answer);
        let is_named = answer.contains(named);
        ensure!(
            is_named,
            "{values:?}: the message does not name {named}: {text}"
        );
    }
    Ok(())
}

/// Tests that the chart and the images in the overlays have the version of the Rust packages.
pub(super) fn versions() -> Result<()> {
    let version = env!("CARGO_PKG_VERSION");
    let chart = read("Chart.yaml")?;
    for key in ["version", "appVersion"] {
        let line = format!("{key}: {version}");
        let is_there = chart.lines().any(|found| found == line);
        ensure!(is_there, "Chart.yaml does not say {line}");
    }
    let overlays = fs::children(&folder("overlays"))?;
    for path in overlays.into_iter().chain([folder("kube-proxy/clean")]) {
        let file = path.join("kustomization.yaml");
        let text = fs::read_to_string(&file)?;
        let mut tags = text
            .lines()
            .filter(|line| line.contains("newName: portolan,"));
        let right = tags.all(|line| line.ends_with(&format!("newTag: {version}}}")));
        ensure!(right, "{} has another tag than {version}", file.display());
    }
    Ok(())
}
