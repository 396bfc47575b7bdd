// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests that helm's chart and the kustomize overlays render the same objects, except for the
//! labels that helm needs.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Result, ensure};
use serde_json::Value;

use super::{
    folder,
    helm::{ADDRESS, Helm},
    kustomize::{Kubectl, from_tmp},
};
use crate::{cargo, fs};

/// An annotation that `Kubectl::parse` leaves on each object, and that `entry` removes.
pub(super) const MARK: &str = "portolan.dev/read";

/// Labels by which helm finds its objects in the cluster.
const HELMS: [&str; 3] = [
    "app.kubernetes.io/instance",
    "app.kubernetes.io/managed-by",
    "helm.sh/chart",
];

/// Kubernetes objects. Key: kind and name.
pub(super) type Objects = BTreeMap<(String, String), Value>;

/// The annotation by which helm replaces the pods when their settings have changed. kustomize gives
/// the ConfigMap another name instead.
const CHECKSUM: &str = "checksum/config";

/// Returns the object's key for `Objects`, and the object without what `parse` or helm has added.
pub(super) fn entry(mut object: Value) -> ((String, String), Value) {
    for pointer in ["/metadata", "/spec/template/metadata"] {
        if let Some(metadata) = object.pointer_mut(pointer) {
            remove(metadata, "annotations", &[MARK, CHECKSUM]);
            remove(metadata, "labels", &HELMS);
        }
    }
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let key = (text(&object["kind"]), text(&object["metadata"]["name"]));
    (key, object)
}

/// Removes keys of a map (e.g. labels) in an object's metadata, and the map if it is then empty.
fn remove(metadata: &mut Value, map: &str, names: &[&str]) {
    if let Some(entries) = metadata[map].as_object_mut() {
        entries.retain(|name, _| !names.contains(&name.as_str()));
        if entries.is_empty()
            && let Some(metadata) = metadata.as_object_mut()
        {
            metadata.remove(map);
        }
    }
}

/// Each overlay in `deploy/`, with the chart's values that must render the same objects.
const OVERLAYS: [(&str, &[&str]); 7] = [
    ("", &["kubeProxyConfigMap=kube-proxy"]),
    ("overlays/kubeadm", &["kubeProxyConfigMap=kube-proxy"]),
    ("overlays/bare", &[ADDRESS]),
    (
        "overlays/k3s",
        &[
            "apiServer=https://127.0.0.1:6444",
            "settings.clusterCIDR=10.42.0.0/16",
        ],
    ),
    ("overlays/drain", &["mode=drain"]),
    ("overlays/drain-labelled", &["mode=drain-labelled"]),
    (
        "overlays/shadow",
        &["kubeProxyConfigMap=kube-proxy", "mode=shadow"],
    ),
];

/// Each component in `deploy/` with those that it needs, the overlay that it is added to, and the
/// chart's values that must have the same effect.
const COMPONENTS: [(&str, &[&str], &str, &[&str]); 6] = [
    (
        "alerts",
        &[],
        "bare",
        &[ADDRESS, "prometheusRule.enabled=true"],
    ),
    (
        "dashboard",
        &[],
        "bare",
        &[ADDRESS, "dashboard.enabled=true"],
    ),
    // It has the rights only; the setting stands in kube-proxy's file.
    (
        "gateway-api",
        &[],
        "kubeadm",
        &["kubeProxyConfigMap=kube-proxy", "gatewayAPI=true"],
    ),
    (
        "gateway-services",
        &["gateway-api"],
        "kubeadm",
        &[
            "kubeProxyConfigMap=kube-proxy",
            "gatewayAPI=true",
            "gatewayServices=true",
        ],
    ),
    ("node-by-node", &[], "bare", &[ADDRESS, "nodeByNode=true"]),
    (
        "monitoring",
        &[],
        "bare",
        &[ADDRESS, "podMonitor.enabled=true"],
    ),
];

pub(super) fn check(helm: &Helm, kubectl: &Kubectl) -> Result<()> {
    let chart = |values: &[&str]| kubectl.parse(&helm.template(values)?);
    for (overlay, values) in OVERLAYS {
        helm.lint(values)?;
        let rendered = kubectl.kustomize(&folder(overlay))?;
        same(overlay, &rendered, &chart(values)?)?;
    }
    let mut there = fs::children(&folder("overlays"))?;
    there.extend(fs::children(&folder("components"))?);
    let overlays = OVERLAYS.iter().map(|(overlay, _)| folder(overlay));
    let components = COMPONENTS
        .iter()
        .map(|(name, ..)| folder("components").join(name));
    let compared: Vec<_> = overlays.chain(components).collect();
    there.retain(|path| !compared.contains(path));
    ensure!(there.is_empty(), "compared with nothing: {there:?}");
    for (component, needed, overlay, values) in COMPONENTS {
        let added = needed.iter().chain([&component]);
        let added: Vec<_> = added
            .map(|name| format!("'{}'", from_tmp(&folder("components").join(name))))
            .collect();
        let text = format!(
            "resources: ['{}']\ncomponents: [{}]\n",
            from_tmp(&folder("overlays").join(overlay)),
            added.join(", "),
        );
        let overlay = kubectl.kustomization(&text)?;
        same(component, &overlay, &chart(values)?)?;
    }
    let cluster = cargo::root().join("xtask/cluster/overlay");
    let values = [
        "kubeProxyConfigMap=kube-proxy",
        "cgroupRoot=/run/portolan-cluster/cgroup",
        "gatewayAPI=true",
        "gatewayServices=true",
    ];
    let rendered = kubectl.kustomize(&cluster)?;
    same("xtask/cluster", &rendered, &chart(&values)?)
}

/// Returns the objects with the name `portolan` for the agent's ConfigMap, without the digest that
/// kustomize appends.
fn without_digest(objects: &Objects) -> Result<Objects> {
    const DIGEST: usize = 10;
    let hashed = objects.keys().find_map(|(kind, name)| {
        let digest = name.strip_prefix("portolan-")?;
        (kind == "ConfigMap" && digest.len() == DIGEST).then_some(name)
    });
    let Some(hashed) = hashed else {
        return Ok(objects.clone());
    };
    let all: Vec<_> = objects.values().collect();
    let text = serde_json::to_string(&all)?.replace(hashed, "portolan");
    let all: Vec<Value> = serde_json::from_str(&text)?;
    Ok(all.into_iter().map(entry).collect())
}

fn same(name: &str, overlay: &Objects, chart: &Objects) -> Result<()> {
    ensure!(!overlay.is_empty(), "{name} gives no object");
    let overlay = &without_digest(overlay)?;
    let keys = |objects: &Objects| objects.keys().cloned().collect::<Vec<_>>();
    let (one, other) = (keys(overlay), keys(chart));
    ensure!(
        one == other,
        "{name}: the overlay has {one:?}\nthe chart has {other:?}"
    );
    for (key, object) in overlay {
        let mut found = Vec::new();
        differences("", object, &chart[key], &mut found);
        ensure!(found.is_empty(), "{name}, {key:?}:\n{}", found.join("\n"));
    }
    Ok(())
}

/// Adds to `found` a line with path and both values for each difference of two JSON values.
fn differences(path: &str, one: &Value, other: &Value, found: &mut Vec<String>) {
    match (one, other) {
        (Value::Object(one), Value::Object(other)) => {
            for name in one.keys().chain(other.keys()).collect::<BTreeSet<_>>() {
                let [one, other] = [one, other].map(|map| map.get(name).unwrap_or(&Value::Null));
                differences(&format!("{path}/{name}"), one, other, found);
            }
        }
        (Value::Array(one), Value::Array(other)) if one.len() == other.len() => {
            for (index, (one, other)) in one.iter().zip(other).enumerate() {
                differences(&format!("{path}/{index}"), one, other, found);
            }
        }
        _ if one != other => found.push(format!("{path}: overlay {one}, chart {other}")),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_helms_labels_are_left_out() {
        let object = json!({"kind": "A", "metadata": {
            "name": "b", "annotations": {MARK: "yes"}, "labels": {"helm.sh/chart": "c", "own": "d"},
        }});
        let (key, object) = entry(object);
        assert_eq!(key, ("A".to_owned(), "b".to_owned()));
        let metadata = json!({"name": "b", "labels": {"own": "d"}});
        assert_eq!(object["metadata"], metadata);
    }

    #[test]
    fn a_difference_is_named_by_its_path() {
        let objects = |value: Value| Objects::from([entry(json!({"kind": "A", "spec": value}))]);
        let base = objects(json!({"list": [1, {"x": 2}]}));
        assert!(same("equal", &base, &base).is_ok());
        for (other, named) in [
            (json!({"list": [1, {"x": 3}]}), "/spec/list/1/x"),
            (json!({"list": [1]}), "/spec/list:"),
            (json!({"list": [1, {"x": 2}], "more": true}), "/spec/more"),
        ] {
            let error = same("unequal", &base, &objects(other)).expect_err("they differ");
            assert!(error.to_string().contains(named), "{error}");
        }
        assert!(same("missing", &base, &Objects::new()).is_err());
    }
}
