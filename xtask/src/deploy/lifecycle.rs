// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests which objects an API server has after helm installs, upgrades, rolls back and uninstalls.

use anyhow::{Result, ensure};

use super::{
    helm::{ADDRESS, Helm},
    server::Server,
};

/// The kinds of objects that the chart has, and of helm's own records (secrets).
const KINDS: &str = "serviceaccount daemonset configmap clusterrole clusterrolebinding secret";

pub(super) fn check(helm: &Helm, server: &Server) -> Result<()> {
    let kubeconfig = server.kubeconfig();
    let bare = everything(server)?;
    let place = |action, release, values: &[&str]| {
        let all = [&[ADDRESS], values].concat();
        let words = format!("{action} {release} ./chart");
        helm.run(&words, &all, Some(&kubeconfig)).map(drop)
    };
    let on_server = |words| helm.run(words, &[], Some(&kubeconfig)).map(drop);

    place("install", "portolan", &[])?;
    let first = served(server)?;
    ensure!(first.image.ends_with(":0.1.0"), "installed: {first:?}");
    ensure!(first.has_one_config_map(), "installed: {first:?}");

    let changes = ["image.tag=0.2.0", "settings.clusterCIDR=10.9.0.0/16"];
    place("upgrade", "portolan", &changes)?;
    let second = served(server)?;
    ensure!(second.image.ends_with(":0.2.0"), "upgraded: {second:?}");
    // Other settings replace the pods. The ConfigMap keeps its name: pods of before still use it.
    ensure!(second.checksum != first.checksum, "upgraded: {second:?}");
    ensure!(
        second.config_map == first.config_map,
        "upgraded: {second:?}"
    );
    ensure!(second.has_one_config_map(), "upgraded: {second:?}");

    // helm refuses a wrong value and changes nothing.
    let refused = place("upgrade", "portolan", &["mode=walk"]).is_err();
    ensure!(refused, "a wrong value is taken");
    let serves = |expected: &Served, when| {
        let found = served(server)?;
        ensure!(found == *expected, "{when}: {found:?}");
        Ok(())
    };
    serves(&second, "a refused upgrade has changed something")?;

    on_server("rollback portolan 1")?;
    serves(&first, "rolled back")?;

    // A second helm release with another mode, next to the first, must not change it.
    helm.run(
        "install drain ./chart",
        &["mode=drain-labelled"],
        Some(&kubeconfig),
    )?;
    let sets = server.list("daemonset", &[])?;
    let names: Vec<_> = sets.iter().map(|set| &set["metadata"]["name"]).collect();
    ensure!(names == ["portolan", "portolan-drain"], "beside: {names:?}");
    serves(&first, "the second release changes the first")?;
    on_server("uninstall drain")?;
    serves(&first, "the second release takes from the first")?;

    // Back to kube-proxy with only the first helm release: its pods now drain.
    helm.run(
        "upgrade portolan ./chart",
        &["mode=drain"],
        Some(&kubeconfig),
    )?;
    let draining = server.list("daemonset", &[])?;
    let arguments = &draining[0]["spec"]["template"]["spec"]["containers"][0]["args"];
    ensure!(arguments[0] == "cleanup", "draining: {arguments}");

    on_server("uninstall portolan")?;
    let left = everything(server)?;
    ensure!(left == bare, "left behind: {left:?}, before: {bare:?}");
    Ok(())
}

#[derive(PartialEq, Eq, Debug)]
struct Served {
    image: String,
    /// The name of the ConfigMap that the pods read.
    config_map: String,
    /// The pods' annotation with the checksum of their settings.
    checksum: String,
    /// The names of all ConfigMaps of portolan.
    config_maps: Vec<String>,
}

impl Served {
    fn has_one_config_map(&self) -> bool {
        self.config_maps == [self.config_map.as_str()]
    }
}

fn served(server: &Server) -> Result<Served> {
    let sets = server.list("daemonset", &["--field-selector=metadata.name=portolan"])?;
    ensure!(sets.len() == 1, "{} DaemonSets of portolan's", sets.len());
    let template = &sets[0]["spec"]["template"];
    let pod = &template["spec"];
    let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
    let selector = "--selector=app.kubernetes.io/name=portolan";
    let maps = server.list("configmap", &[selector])?;
    Ok(Served {
        image: text(&pod["containers"][0]["image"]),
        checksum: text(&template["metadata"]["annotations"]["checksum/config"]),
        config_map: text(&pod["volumes"][2]["configMap"]["name"]),
        config_maps: maps
            .iter()
            .map(|map| text(&map["metadata"]["name"]))
            .collect(),
    })
}

/// Returns the names of all objects of `KINDS` that belong to portolan or helm.
fn everything(server: &Server) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for kind in KINDS.split(' ') {
        let text = server.kubectl(&["get", kind, "-o", "name"])?;
        let foreign = |name: &&str| !name.contains("system:");
        names.extend(text.lines().filter(foreign).map(str::to_owned));
    }
    // The API server creates other objects by itself at any time.
    names.retain(|name| name.contains("portolan") || name.contains("helm"));
    Ok(names)
}
