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

/// Each path in the schema of values, and a value for it that is not the default. A value in braces
/// or brackets is JSON.
const OTHERS: [(&str, &str); 40] = [
    ("image.repository", "registry.example/portolan"),
    ("image.tag", "9.9.9"),
    (
        "image.digest",
        "sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    ),
    ("image.pullPolicy", "Always"),
    ("imagePullSecrets", "[{\"name\":\"registry\"}]"),
    ("apiServer", "https://198.51.100.7:6443"),
    // Refused together with `apiServer`; `check` leaves `apiServer` empty for it.
    ("kubeProxyConfigMap", "kube-proxy"),
    ("settings.clusterCIDR", "10.9.0.0/16"),
    ("settings.portolan", "{\"forwarding\":\"auto\"}"),
    ("mode", "drain"),
    ("nodeByNode", "true"),
    ("gatewayAPI", "true"),
    ("gatewayServices", "true"),
    ("drain.waitForKubeProxy", "false"),
    ("drain.timeout", "5m"),
    ("probeAddress", "127.0.0.1:20247"),
    ("cgroupRoot", "/sys/fs/cgroup/unified"),
    ("resources.requests", "{\"cpu\":\"1\"}"),
    ("resources.limits", "{\"memory\":\"1Gi\"}"),
    ("maxUnavailable", "3"),
    ("nodeSelector", "{\"pool\":\"main\"}"),
    (
        "affinity",
        "{\"podAntiAffinity\":{\"preferredDuringSchedulingIgnoredDuringExecution\":[]}}",
    ),
    ("tolerations", "[{\"key\":\"pool\"}]"),
    ("priorityClassName", "critical"),
    ("podAnnotations", "{\"a\":\"b\"}"),
    ("podLabels", "{\"a\":\"b\"}"),
    ("extraArgs", "[\"--v=4\"]"),
    ("extraEnv", "[{\"name\":\"A\",\"value\":\"b\"}]"),
    ("serviceAccount.create", "false"),
    ("serviceAccount.name", "proxy"),
    ("serviceAccount.annotations", "{\"a\":\"b\"}"),
    ("podMonitor.enabled", "true"),
    ("podMonitor.labels", "{\"release\":\"prometheus\"}"),
    ("podMonitor.annotations", "{\"a\":\"b\"}"),
    ("prometheusRule.enabled", "true"),
    ("prometheusRule.labels", "{\"release\":\"prometheus\"}"),
    ("prometheusRule.annotations", "{\"a\":\"b\"}"),
    ("prometheusRule.runbooks", "https://git.example/portolan/"),
    ("dashboard.enabled", "true"),
    ("dashboard.annotations", "{\"grafana_folder\":\"Network\"}"),
];

/// The path in the schema whose default has an entry: `check` adds another one.
const WITH_DEFAULT: (&str, &str) = ("dashboard.labels", "{\"team\":\"network\"}");

/// Sets of values that helm must refuse, each with a text that its message must contain.
const REFUSED: [(&[&str], &str); 24] = [
    (&[], "apiServer"),
    (
        &["apiServer=https://192.0.2.1:6443"],
        "settings.clusterCIDR",
    ),
    (
        &[ADDRESS, "kubeProxyConfigMap=kube-proxy"],
        "exclude each other",
    ),
    (&["apiServer=192.0.2.1"], "/apiServer"),
    (&[ADDRESS, "image.tag=a/b"], "/image/tag"),
    (&[ADDRESS, "image.digest=9.9.9"], "/image/digest"),
    (&[ADDRESS, "image.pullPolicy=Often"], "/image/pullPolicy"),
    (&[ADDRESS, "image.repository="], "/image/repository"),
    (
        &[ADDRESS, "kubeProxyConfigMap=Kube_Proxy"],
        "/kubeProxyConfigMap",
    ),
    (&[ADDRESS, "mode=walk"], "/mode"),
    (&[ADDRESS, "nodeByNode=maybe"], "/nodeByNode"),
    (&[ADDRESS, "gatewayAPI=maybe"], "/gatewayAPI"),
    (&[ADDRESS, "gatewayServices=maybe"], "/gatewayServices"),
    (
        &[ADDRESS, "gatewayServices=true"],
        "gatewayServices needs gatewayAPI",
    ),
    (&[ADDRESS, "cgroupRoot=cgroup"], "/cgroupRoot"),
    (&[ADDRESS, "probeAddress=127.0.0.1:0"], "/probeAddress"),
    (&[ADDRESS, "drain.timeout=soon"], "/drain/timeout"),
    (&[ADDRESS, "maxUnavailable=0"], "/maxUnavailable"),
    (&[ADDRESS, "settings.portolan=yes"], "/settings/portolan"),
    (&[ADDRESS, "prometheusRule=true"], "/prometheusRule"),
    (
        &[ADDRESS, "prometheusRule.runbooks=git.example"],
        "/prometheusRule/runbooks",
    ),
    (&[ADDRESS, "dashboard.enabled=grafana"], "/dashboard"),
    (&[ADDRESS, "tolerations=none"], "tolerations"),
    (&[ADDRESS, "toleration=none"], "toleration"),
];

fn read(name: &str) -> Result<String> {
    fs::read_to_string(folder("chart").join(name))
}

pub(super) fn check(helm: &Helm, kubectl: &Kubectl) -> Result<()> {
    let schema: Value = serde_json::from_str(&read("values.schema.json")?).context("the schema")?;
    let mut paths = Vec::new();
    leaves("", &schema, &mut paths);
    let all = || OTHERS.into_iter().chain([WITH_DEFAULT]);
    let mut known: Vec<_> = all().map(|(path, _)| path.to_owned()).collect();
    paths.sort();
    known.sort();
    ensure!(
        paths == known,
        "the schema has {paths:?}, tried are {known:?}"
    );

    let text = read("values.yaml")?;
    let explained = explained(&text);
    for path in &paths {
        let is_there = explained.iter().any(|row| row.path == *path);
        ensure!(is_there, "values.yaml does not have and explain {path}");
    }
    readme(&explained)?;

    let chart = |values: &[&str]| kubectl.parse(&helm.template(values)?);
    for (path, other) in all() {
        let address = match path {
            "kubeProxyConfigMap" => "apiServer=",
            _ => ADDRESS,
        };
        // A value of an object that is off by default has an effect only with it.
        let on = path.split_once('.').map(|(object, _)| object);
        let on = on.filter(|object| *object == DRAIN || MONITORING.contains(object));
        let on = on.map(|object| match object {
            DRAIN => "mode=drain".to_owned(),
            _ => format!("{object}.enabled=true"),
        });
        let on = on.filter(|_| !path.ends_with(".enabled"));
        let on = on.or((path == "gatewayServices").then(|| "gatewayAPI=true".to_owned()));
        let base: Vec<_> = [address].into_iter().chain(on.as_deref()).collect();
        let before = chart(&match path {
            "kubeProxyConfigMap" => vec![ADDRESS],
            _ => base.clone(),
        })?;
        let other = format!("{path}={other}");
        let after = kubectl.parse(&helm.template_with(&base, &other)?)?;
        ensure!(after != before, "{path} changes nothing");
    }
    Ok(())
}

/// Tests that ports follow the addresses in the settings, and probes a value of their own.
pub(super) fn ports(helm: &Helm) -> Result<()> {
    let rendered = |addresses: &[&str]| helm.template(&[&[ADDRESS], addresses].concat());
    let usual = rendered(&[])?;
    for port in [10256, 10249] {
        let line = format!("containerPort: {port}, hostPort: {port}");
        ensure!(usual.contains(&line), "without addresses: {usual}");
    }
    let probes = "httpGet: {host: \"127.0.0.1\", port: probes";
    ensure!(
        usual.matches(probes).count() == 3,
        "without addresses: {usual}"
    );
    let without = rendered(&[
        "settings.healthzBindAddress=0.0.0.0",
        "settings.metricsBindAddress=::1",
    ])?;
    for port in [10256, 10249] {
        let line = format!("containerPort: {port}, hostPort: {port}");
        ensure!(without.contains(&line), "without ports: {without}");
    }
    let other = rendered(&[
        "settings.healthzBindAddress=127.0.0.1:20256",
        "settings.metricsBindAddress=[::]:20249",
        "probeAddress=[::1]:20247",
    ])?;
    for port in [20256, 20249, 20247] {
        let line = format!("containerPort: {port}, hostPort: {port}");
        ensure!(other.contains(&line), "with other addresses: {other}");
    }
    ensure!(
        other
            .matches("httpGet: {host: \"::1\", port: probes")
            .count()
            == 3,
        "with other addresses: {other}"
    );
    Ok(())
}

/// Tests that the node affinity of the values is kept, and that ours is added to each of its terms.
pub(super) fn affinity(helm: &Helm, kubectl: &Kubectl) -> Result<()> {
    const RULE: &str = "requiredDuringSchedulingIgnoredDuringExecution";
    let fargate = r#"{"key":"compute","operator":"NotIn","values":["fargate"]}"#;
    let field = r#"[{"key":"metadata.name","operator":"In","values":["a"]}]"#;
    let terms = format!(r#"[{{"matchExpressions":[{fargate}]}},{{"matchFields":{field}}}]"#);
    let given =
        format!(r#"affinity={{"nodeAffinity":{{"{RULE}":{{"nodeSelectorTerms":{terms}}}}}}}"#);
    for (mode, operator, value) in [
        ("nodeByNode=false", "NotIn", "kube-proxy"),
        ("nodeByNode=true", "In", "portolan"),
        ("mode=shadow", "NotIn", "portolan"),
    ] {
        let objects = kubectl.parse(&helm.template_with(&[ADDRESS, mode], &given)?)?;
        let daemon = objects.iter().find(|((kind, _), _)| kind == "DaemonSet");
        let (_, daemon) = daemon.context("no DaemonSet")?;
        let node = &daemon["spec"]["template"]["spec"]["affinity"]["nodeAffinity"];
        let ours = format!(
            r#"{{"key":"portolan.dev/proxy","operator":"{operator}","values":["{value}"]}}"#
        );
        let wanted: Value = serde_json::from_str(&format!(
            r#"[{{"matchExpressions":[{fargate},{ours}]}},{{"matchExpressions":[{ours}],"matchFields":{field}}}]"#
        ))?;
        ensure!(node[RULE]["nodeSelectorTerms"] == wanted, "{mode}: {node}");
    }
    Ok(())
}

const DRAIN: &str = "drain";
const MONITORING: [&str; 3] = ["podMonitor", "prometheusRule", "dashboard"];

/// A value in values.yaml, with its default and the comment above it.
struct Row {
    path: String,
    default: String,
    comment: String,
}

/// Returns the values that have a comment. The value of an object is what follows its line.
fn explained(text: &str) -> Vec<Row> {
    let (mut rows, mut comment, mut object): (Vec<Row>, _, _) =
        (Vec::new(), String::new(), String::new());
    for line in text.lines() {
        let depth = line.len() - line.trim_start().len();
        let line = line.trim();
        if let Some(more) = line.strip_prefix('#') {
            comment = format!("{comment} {}", more.trim());
            continue;
        }
        let value = line.split_once(':').filter(|_| !line.starts_with('-'));
        if let Some((key, default)) = value.filter(|_| depth == 0 || !comment.is_empty()) {
            if depth == 0 {
                object = key.to_owned();
            }
            let path = match depth {
                0 => key.to_owned(),
                _ => format!("{object}.{key}"),
            };
            rows.push(Row {
                path,
                default: default.trim().to_owned(),
                comment: std::mem::take(&mut comment).trim().to_owned(),
            });
        } else if let Some(row) = rows.last_mut().filter(|_| !line.is_empty()) {
            row.default = format!("{} {line}", row.default).trim().to_owned();
        }
        comment.clear();
    }
    rows.retain(|row| !row.comment.is_empty());
    rows
}

/// Tests that the chart's README has all values, or writes it if `PORTOLAN_UPDATE_DOCS` is set.
fn readme(rows: &[Row]) -> Result<()> {
    const START: &str = "| value | default | what it is |\n| --- | --- | --- |\n";
    let mut table = START.to_owned();
    for row in rows {
        let Row {
            path,
            default,
            comment,
        } = row;
        let default = match default.as_str() {
            "" => String::new(),
            default => format!("`{default}`"),
        };
        let comment = comment.replace('|', "\\|");
        table += &format!("| `{path}` | {default} | {comment} |\n");
    }
    let file = folder("chart").join("README.md");
    let text = fs::read_to_string(&file)?;
    let (head, _) = text
        .split_once(START)
        .context("deploy/chart/README.md has no table of values")?;
    let wanted = format!("{head}{table}");
    if std::env::var_os("PORTOLAN_UPDATE_DOCS").is_some() {
        return fs::write(&file, wanted);
    }
    ensure!(
        text == wanted,
        "deploy/chart/README.md is not made from values.yaml: run this with PORTOLAN_UPDATE_DOCS=1"
    );
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
