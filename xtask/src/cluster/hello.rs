// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The last step of `cluster up`: a pod on one node calls a service whose only pod is on another
//! node, and must get an answer.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::json;

use super::{
    control::{apply, kubectl},
    images,
    layout::NODES,
    proxy::{Proxy, current},
    tools::Tools,
};

const SPACE: &str = "portolan-hello";
const PATIENCE: Duration = Duration::from_secs(30);

/// Creates a pod and a service, calls the service until the pod answers, and removes both.
pub(super) fn ask(tools: &Tools) -> Result<()> {
    apply(tools, &objects())?;
    let answered = answer(tools);
    // Remove everything, whether the pod answered or not.
    kubectl(tools, &format!("delete namespace {SPACE} --wait=false"))?;
    answered
}

fn answer(tools: &Tools) -> Result<()> {
    let inside = |words: &str| kubectl(tools, &format!("-n {SPACE} {words}"));
    let ready = inside("wait --for=condition=Ready pod --all --timeout=60s");
    if let Err(error) = ready {
        let events = inside("get events").unwrap_or_default();
        return Err(error.context(format!("pods do not start; their events:\n{events}")));
    }
    let to = if current().proxy == Proxy::None {
        inside("get pod server -o jsonpath={.status.podIP}")?
    } else {
        inside("get service server -o jsonpath={.spec.clusterIP}")?
    };
    let url = format!("http://{}:8080/hostname", to.trim());
    let deadline = Instant::now() + PATIENCE;
    loop {
        let asked = inside(&format!("exec client -- curl -sSm 2 {url}"));
        match asked {
            Ok(answer) if answer.trim() == "server" => return Ok(()),
            Ok(answer) => bail!("{url} answers {answer:?}, which is not the pod's name"),
            Err(error) if Instant::now() > deadline => {
                return Err(error).with_context(|| format!("{url} does not answer a pod"));
            }
            Err(_) => std::thread::sleep(Duration::from_millis(200)),
        }
    }
}

fn objects() -> String {
    let [first, second, ..] = &NODES;
    let pod = |name: &str, node: &str, arguments: &[&str]| {
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "namespace": SPACE, "labels": {"app": name}},
            "spec": {
                "nodeName": node, "terminationGracePeriodSeconds": 0,
                "containers": [{"name": name, "image": images::AGNHOST, "args": arguments}],
            },
        })
    };
    let objects = [
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SPACE}}),
        pod("server", first.place.name, &["netexec", "--http-port=8080"]),
        pod("client", second.place.name, &["pause"]),
        json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": "server", "namespace": SPACE},
            "spec": {"selector": {"app": "server"}, "ports": [{"port": 8080}]},
        }),
    ];
    objects.map(|object| object.to_string()).join("\n---\n")
}
