// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests which objects a server has when helm installs, upgrades, rolls back and removes releases.

use anyhow::{Result, ensure};

use super::{helm::Helm, server::Server};

const ADDRESS: &str = "apiServer=https://192.0.2.1:6443";

/// The kinds of the chart's objects, and of helm's own records.
const KINDS: [&str; 6] = [
    "serviceaccount",
    "daemonset",
    "configmap",
    "clusterrole",
    "clusterrolebinding",
    "secret",
];

pub(super) fn check(helm: &Helm, server: &Server) -> Result<()> {
    let kubeconfig = server.kubeconfig();
    let bare = everything(server)?;
    let place = |action, release, values: &[&str]| {
        let all = [&[ADDRESS], values].concat();
        helm.place(action, release, &all, &kubeconfig)
    };

    place("install", "portolan", &[])?;
    let first = served(server)?;
    ensure!(first.image.ends_with(":0.1.0"), "installed: {first:?}");
    ensure!(
        first.config_maps == [first.config_map.clone()],
        "installed: {first:?}"
    );

    let changes = ["image.tag=0.2.0", "settings.clusterCIDR=10.9.0.0/16"];
    place("upgrade", "portolan", &changes)?;
    let second = served(server)?;
    ensure!(second.image.ends_with(":0.2.0"), "upgraded: {second:?}");
    // A ConfigMap with other settings has another name, so that pods are replaced; the old one is
    // removed.
    ensure!(
        second.config_map != first.config_map,
        "upgraded: {second:?}"
    );
    ensure!(
        second.config_maps == [second.config_map.clone()],
        "upgraded: {second:?}"
    );

    // A wrong value changes nothing.
    ensure!(
        place("upgrade", "portolan", &["mode=walk"]).is_err(),
        "a wrong value is taken"
    );
    ensure!(
        served(server)? == second,
        "a refused upgrade has changed something"
    );

    helm.with_server(&["rollback", "portolan", "1"], &kubeconfig)?;
    ensure!(
        served(server)? == first,
        "rolled back: {:?}",
        served(server)?
    );

    // A second release is installed next to the first one, and must not change it.
    helm.place("install", "drain", &["mode=drain-labelled"], &kubeconfig)?;
    let names: Vec<_> = server
        .list("daemonset", &[])?
        .iter()
        .map(|object| object["metadata"]["name"].clone())
        .collect();
    ensure!(names == ["portolan", "portolan-drain"], "beside: {names:?}");
    ensure!(
        served(server)? == first,
        "the second release changes the first"
    );
    helm.with_server(&["uninstall", "drain"], &kubeconfig)?;
    ensure!(
        served(server)? == first,
        "the second release takes from the first"
    );

    // Migration back with the one release: its pods drain now.
    helm.place("upgrade", "portolan", &["mode=drain"], &kubeconfig)?;
    let draining = server.list("daemonset", &[])?;
    let arguments = &draining[0]["spec"]["template"]["spec"]["containers"][0]["args"];
    ensure!(arguments[0] == "cleanup", "draining: {arguments}");

    helm.with_server(&["uninstall", "portolan"], &kubeconfig)?;
    let left = everything(server)?;
    ensure!(left == bare, "left behind: {left:?}, before: {bare:?}");
    Ok(())
}

#[derive(PartialEq, Eq, Debug)]
struct Served {
    image: String,
    /// The ConfigMap that the pods read.
    config_map: String,
    /// All ConfigMaps of portolan.
    config_maps: Vec<String>,
}

fn served(server: &Server) -> Result<Served> {
    let sets = server.list("daemonset", &["--field-selector=metadata.name=portolan"])?;
    ensure!(sets.len() == 1, "{} DaemonSets of portolan's", sets.len());
    let pod = &sets[0]["spec"]["template"]["spec"];
    let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
    let selector = "--selector=app.kubernetes.io/name=portolan";
    let maps = server.list("configmap", &[selector])?;
    Ok(Served {
        image: text(&pod["containers"][0]["image"]),
        config_map: text(&pod["volumes"][2]["configMap"]["name"]),
        config_maps: maps
            .iter()
            .map(|map| text(&map["metadata"]["name"]))
            .collect(),
    })
}

/// Returns the names of all objects of these kinds that do not belong to the server itself.
fn everything(server: &Server) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for kind in KINDS {
        let text = server.kubectl(&["get", kind, "-o", "name"])?;
        let foreign = |name: &&str| !name.contains("system:");
        names.extend(text.lines().filter(foreign).map(str::to_owned));
    }
    // Leaves out objects that the server creates by itself at any time.
    names.retain(|name| name.contains("portolan") || name.contains("helm"));
    Ok(names)
}
