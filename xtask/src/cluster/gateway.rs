// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `cargo xtask gateway`: runs the Gateway API's own conformance suite against portolan, in the
//! cluster that `cluster up` has built, and prints its results.

use std::{
    collections::BTreeMap,
    process::Command,
    sync::atomic::{AtomicBool, Ordering},
    thread::{scope, sleep},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::{
    control::{self, kubectl},
    daemon, images,
    layout::{CONTROL, NODES, kubeconfig},
    node,
    proxy::{self, Proxy},
    standing,
    tools::Tools,
};
use crate::{cargo, command, fs};

/// The kinds that are read, and the class of the tests.
const KINDS: &str = "xtask/cluster/gateway-api.yaml";
const CLASS: &str = "{apiVersion: gateway.networking.k8s.io/v1, kind: GatewayClass, metadata: {name: portolan}, spec: {controllerName: portolan.dev/l4}}";
const PROFILES: &str = "GATEWAY-TCP,GATEWAY-UDP";

/// The range from which Gateways get their addresses; the control plane reaches it by a node.
const RANGE: &str = "198.51.100.0/24";
const START: &str = "198.51.100.";

/// Tests that need an HTTP proxy, though only the feature Gateway is asked for: their Gateways have
/// HTTP or HTTPS listeners, which must be accepted.
const LEFT_OUT: [&str; 8] = [
    "GatewayInvalidRouteKind",
    "GatewayInvalidTLSConfiguration",
    "GatewayListenerUnsupportedProtocol",
    "GatewayModifyListeners",
    "GatewaySecretInvalidReferenceGrant",
    "GatewaySecretMissingReferenceGrant",
    "GatewaySecretReferenceGrantAllInNamespace",
    "GatewaySecretReferenceGrantSpecific",
];

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Run only the test of this name
    #[arg(long, default_value = "")]
    test: String,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let tools = standing()?;
    ensure!(
        proxy::current().proxy == Proxy::Portolan,
        "the cluster's proxy is not portolan; run `cargo xtask cluster up`"
    );
    let programs = Tools::gateway()?;
    let archive = images::of_gateways(&programs.join("echo-basic"))?;
    for node in &NODES {
        node::import(&tools, node, &archive)?;
    }
    kubectl(&tools, &format!("apply --server-side -f {KINDS}"))?;
    kubectl(
        &tools,
        "wait --for=condition=Established --timeout=30s crd --all",
    )?;
    // An agent that has found no such kinds asks again after minutes.
    proxy::restart(&tools)?;
    proxy::wait_for_portolan(&tools)?;
    control::apply(&tools, CLASS)?;
    // The suite reads in the class's status which features there are.
    let accepted = "wait --for=condition=Accepted --timeout=60s gatewayclass/portolan";
    kubectl(&tools, accepted)?;
    let netns = CONTROL.netns();
    let route = [
        "-n",
        &netns,
        "route",
        "replace",
        RANGE,
        "via",
        NODES[0].place.address,
    ];
    daemon::run(Command::new("ip").args(route))?;
    let folder = cargo::root().join("target/gateway");
    fs::create_dir_all(&folder)?;
    let (log, report) = (folder.join("conformance.log"), folder.join("report.yaml"));
    eprintln!(
        "gateway: {PROFILES} (usually 10 min); output in {}",
        log.display()
    );
    let mut command = control::beside(&programs.join("conformance.test"));
    command
        .args(["-test.v", "-test.timeout=60m", "--gateway-class=portolan"])
        .arg(format!("--conformance-profiles={PROFILES}"))
        .arg(format!("--skip-tests={}", LEFT_OUT.join(",")))
        .arg(format!("--run-test={}", arguments.test))
        .arg(format!("--report-output={}", report.display()))
        .args([
            "--organization=portolan",
            "--project=portolan",
            "--url=https://portolan.dev",
        ])
        .arg(format!("--version={}", env!("CARGO_PKG_VERSION")))
        .args(["--contact=@portolan", "--mode=default"])
        .env("KUBECONFIG", kubeconfig());
    let ended = AtomicBool::new(false);
    let status = scope(|scope| {
        scope.spawn(|| give_addresses(&tools, &ended));
        let status = command::log_to(&mut command, &log)
            .and_then(|command| command.status().context("start the conformance suite"));
        ended.store(true, Ordering::Relaxed);
        status
    })?;
    let results = results(&fs::read_to_string(&log)?);
    let failed = results.iter().filter(|(_, passed)| !**passed);
    for (name, _) in failed.clone() {
        println!("FAILED {name}");
    }
    println!(
        "{} passed, {} failed",
        results.len() - failed.clone().count(),
        failed.count()
    );
    for name in LEFT_OUT {
        println!("left out: {name}");
    }
    ensure!(
        status.success() && !results.is_empty(),
        "a test has failed, or none has run; see {}",
        log.display()
    );
    println!("report: {}", report.display());
    Ok(())
}

/// Returns the tests of the suite by name, and whether they passed.
fn results(log: &str) -> BTreeMap<String, bool> {
    let lines = log.lines().filter_map(|line| {
        let (verdict, rest) = line.trim_start().strip_prefix("--- ")?.split_once(": ")?;
        let name = rest.split(' ').next()?.strip_prefix("TestConformance/")?;
        let is_whole = !name.contains('/');
        (is_whole && verdict != "SKIP").then(|| (name.to_owned(), verdict == "PASS"))
    });
    lines.collect()
}

/// Stands for a load balancer: gives an address to each Service that wants one, until the tests
/// have ended.
fn give_addresses(tools: &Tools, ended: &AtomicBool) {
    let mut next = 1;
    while !ended.load(Ordering::Relaxed) {
        // While objects come and go, a request may fail; the next round sees the others.
        _ = give_round(tools, &mut next);
        sleep(Duration::from_millis(500));
    }
}

fn give_round(tools: &Tools, next: &mut u32) -> Result<()> {
    let services = kubectl(tools, "get services --all-namespaces -o json")?;
    let services: Value = serde_json::from_str(&services).context("read the services")?;
    let waits = |service: &&Value| {
        service["spec"]["type"] == "LoadBalancer"
            && service["status"]["loadBalancer"]["ingress"]
                .as_array()
                .is_none_or(Vec::is_empty)
    };
    for service in services["items"]
        .as_array()
        .into_iter()
        .flatten()
        .filter(waits)
    {
        let text = |field: &str| service["metadata"][field].as_str().unwrap_or_default();
        let patch =
            format!(r#"{{"status":{{"loadBalancer":{{"ingress":[{{"ip":"{START}{next}"}}]}}}}}}"#);
        *next = *next % 250 + 1;
        let (namespace, name) = (text("namespace"), text("name"));
        kubectl(
            tools,
            &format!(
                "patch service {name} -n {namespace} --subresource=status --type=merge --patch {patch}"
            ),
        )?;
    }
    Ok(())
}
