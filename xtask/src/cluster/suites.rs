// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `cargo xtask e2e` and `cargo xtask gateway`: run Kubernetes' own e2e tests, or the Gateway API's
//! own conformance suite, in the cluster that `cluster up` has built, and print the end of their
//! output, which names what has failed.

use std::{
    path::Path,
    process::Command,
    sync::atomic::{AtomicBool, Ordering},
    thread::{scope, sleep},
    time::Duration,
};

use anyhow::{Context, Result, ensure};

use super::{
    Tools,
    control::{self, kubectl},
    images,
    layout::{self, CONTROL, NODES, kubeconfig},
    name, node,
    proxy::{self, Proxy},
    standing,
};
use crate::{cargo, command, fs, setup::go};

/// Matches the e2e tests of what a service proxy is responsible for.
const FOCUS: &str = r"\[sig-network\] (Services|Conntrack|Networking Granular Checks|EndpointSlice|EndpointSliceMirroring|Traffic Distribution|LoadBalancers|SCTP)";
/// Matches tests that stop parts of the cluster, and tests of features that not every cluster has.
const SKIP: &str = r"\[Disruptive\]|\[Feature:";
/// How many tests run at once.
const PROCS: u32 = 8;

/// Matches the e2e tests of network policies, which the pod network enforces, and those of them
/// that not every pod network passes. One starts nine pods, and probes from all to all.
const POLICIES: (&str, &str, u32) = (
    r"\[sig-network\] Netpol",
    r"\[Disruptive\]|SCTPConnectivity",
    3,
);

/// Matches the e2e tests of two address families, and those of them that need SCTP.
const DUAL_STACK: (&str, &str, u32) = (
    r"\[Feature:IPv6DualStack\]",
    r"\[Disruptive\]|SCTPConnectivity",
    PROCS,
);

/// e2e tests that cannot run in this cluster: part of the name, and the reason.
const LEFT_OUT: [(&str, &str); 2] = [
    (
        "should be rejected for evicted pods",
        "the kubelets of this cluster do not count the use of local storage, so they evict no pod",
    ),
    (
        "DNS configMap nameserver",
        "this cluster's DNS server is not a pod with a ConfigMap",
    ),
];

#[derive(clap::Args)]
pub(crate) struct E2e {
    /// Run the tests whose names match this regular expression
    #[arg(default_value = FOCUS)]
    focus: String,
    /// Run the tests of network policies instead. The cluster needs a pod network that enforces
    /// them: `cargo xtask cluster up --cni kube-router`
    #[arg(long, conflicts_with = "focus")]
    policies: bool,
    /// Run the tests of two address families instead, in the cluster of `cargo xtask cluster up
    /// --dual-stack`
    #[arg(long, conflicts_with_all = ["focus", "policies"])]
    dual_stack: bool,
}

pub(crate) fn e2e(arguments: &E2e) -> Result<()> {
    standing()?;
    let folder = cargo::root().join("target/e2e");
    fs::create_dir_all(&folder)?;
    let programs = go::programs("kubernetes", "ginkgo e2e.test")?;
    let mut what = format!("{}-{}", name(&node::current_cni()), name(&proxy::current()));
    let (mut focus, mut skip, mut procs) = (arguments.focus.as_str(), SKIP, PROCS);
    if arguments.policies {
        (focus, skip, procs) = POLICIES;
        what += "-policies";
    }
    if arguments.dual_stack {
        (focus, skip, procs) = DUAL_STACK;
        what += "-dual-stack";
    }
    let left_out = LEFT_OUT.map(|(name, _)| name).join("|");
    let client = programs.join("kubectl");
    let mut command = control::beside(&programs.join("ginkgo"));
    command
        .arg(format!("--procs={procs}"))
        .arg(format!("--focus={focus}"))
        .arg(format!("--skip={skip}|{left_out}"))
        .args("--timeout=90m --no-color --silence-skips --fail-on-empty".split(' '))
        .arg(format!("--output-dir={}", folder.display()))
        .arg(format!("--json-report={what}.json"))
        .arg(programs.join("e2e.test"))
        .args(["--", "--provider=skeleton"])
        .arg(format!("--num-nodes={}", NODES.len()))
        .arg(format!("--kubeconfig={}", kubeconfig().display()))
        .arg(format!("--kubectl-path={}", client.display()));
    let verdict = run(&mut command, &what, &folder.join(format!("{what}.log")));
    for (name, reason) in LEFT_OUT {
        println!("left out: {name}: {reason}");
    }
    verdict
}

/// Runs a suite with its output in a log, and prints the end of that.
fn run(command: &mut Command, what: &str, log: &Path) -> Result<()> {
    let at = log.display();
    eprintln!("{what}: usually 10 min; output in {at}");
    let status = command::log_to(command, log)?.status();
    let status = status.with_context(|| format!("start {what}"))?;
    println!("{}", fs::tail(log, 50));
    ensure!(status.success(), "{what}: {status}; see {at}");
    Ok(())
}

/// The kinds of the Gateway API that are read, and the class of the tests.
const KINDS: &str = "xtask/cluster/gateway-api.yaml";
const CLASS: &str = "{apiVersion: gateway.networking.k8s.io/v1, kind: GatewayClass, metadata: {name: portolan}, spec: {controllerName: portolan.dev/l4}}";

/// The range from which Gateways get their addresses; the control plane reaches it by a node.
const RANGE: &str = "198.51.100.0/24";
const START: &str = "198.51.100.";

/// The suite's arguments. Left out are tests that need an HTTP proxy, though only the feature
/// Gateway is asked for: their Gateways have HTTP or HTTPS listeners, which must be accepted.
const ARGUMENTS: &str = include_str!("../../cluster/gateway.txt");

pub(crate) fn gateway() -> Result<()> {
    let tools = standing()?;
    ensure!(
        proxy::current() == Proxy::Portolan,
        "the cluster's proxy is not portolan; run `cargo xtask cluster up`"
    );
    let programs = go::programs("gateway-api", "echo-basic conformance.test")?;
    let archive = images::of_gateways(&programs.join("echo-basic"))?;
    for node in &NODES {
        node::import(&tools, node, &archive)?;
    }
    kubectl(&tools, &format!("apply --server-side -f {KINDS}"))?;
    let established = "wait --for=condition=Established --timeout=30s crd --all";
    kubectl(&tools, established)?;
    // Who has found no such kinds asks again after minutes.
    proxy::restart_portolan(&tools)?;
    control::apply(&tools, CLASS)?;
    // The suite reads in the class's status which features there are.
    let accepted = "wait --for=condition=Accepted --timeout=60s gatewayclass/portolan";
    kubectl(&tools, accepted)?;
    let (netns, via) = (CONTROL.netns(), NODES[0].place.address);
    layout::ip(&format!("-n {netns} route replace {RANGE} via {via}"))?;
    let folder = cargo::root().join("target/gateway");
    fs::create_dir_all(&folder)?;
    let (log, report) = (folder.join("conformance.log"), folder.join("report.yaml"));
    let arguments = ARGUMENTS.replace("VERSION", env!("CARGO_PKG_VERSION"));
    let mut command = control::beside(&programs.join("conformance.test"));
    command
        .args(arguments.split_whitespace())
        .arg(format!("--report-output={}", report.display()))
        .env("KUBECONFIG", kubeconfig());
    let ended = AtomicBool::new(false);
    scope(|scope| {
        let giver = scope.spawn(|| give_addresses(&tools, &ended));
        let verdict = run(&mut command, "gateway", &log);
        ended.store(true, Ordering::Relaxed);
        println!("report: {}", report.display());
        verdict?;
        let has_killed = giver.join().unwrap_or(false);
        ensure!(has_killed, "the controller that writes was not killed");
        Ok(())
    })
}

/// Before which address the controller that writes is killed: in the middle.
const KILL: u32 = 5;

/// Stands for a load balancer: gives an address to each Service that wants one, until the tests
/// have ended. Returns whether the controller that writes was killed meanwhile.
fn give_addresses(tools: &Tools, ended: &AtomicBool) -> bool {
    let (mut next, mut has_killed) = (1, false);
    while !ended.load(Ordering::Relaxed) {
        // While objects come and go, a request may fail; the next round sees the others.
        _ = give_round(tools, &mut next);
        if next >= KILL && !has_killed {
            has_killed = kill_writer(tools).is_ok();
        }
        sleep(Duration::from_millis(500));
    }
    has_killed
}

/// Kills the controller that holds the lease, which by SIGTERM would give it up; another follows.
fn kill_writer(tools: &Tools) -> Result<()> {
    let holder = "get lease portolan-controller -o=jsonpath={.spec.holderIdentity}";
    let holder = proxy::system(tools, holder)?;
    let at = "-o=jsonpath={.spec.nodeName}/{.status.containerStatuses[0].containerID}";
    let at = proxy::system(tools, &format!("get pod {holder} {at}"))?;
    let (name, id) = at.split_once("/containerd://").context("no container")?;
    let mut nodes = NODES.iter();
    let node = nodes.find(|node| node.place.name == name);
    let kill = ["tasks", "kill", "--signal", "SIGKILL", id];
    node::ctr(tools, node.context("no such node")?, &kill)?;
    let deleted = proxy::system(tools, &format!("delete pod {holder} --force"))?;
    println!("killed: {}", deleted.trim());
    Ok(())
}

fn give_round(tools: &Tools, next: &mut u32) -> Result<()> {
    let columns =
        "A:.metadata.namespace,B:.metadata.name,C:.spec.type,D:.status.loadBalancer.ingress";
    let get = format!("get services --all-namespaces --no-headers -o custom-columns={columns}");
    for service in kubectl(tools, &get)?.lines() {
        let words: Vec<_> = service.split_whitespace().collect();
        let [namespace, name, "LoadBalancer", "<none>"] = words[..] else {
            continue;
        };
        let patch =
            format!(r#"{{"status":{{"loadBalancer":{{"ingress":[{{"ip":"{START}{next}"}}]}}}}}}"#);
        *next = *next % 250 + 1;
        let patch = format!("--subresource=status --type=merge --patch {patch}");
        let patch = format!("patch service {name} -n {namespace} {patch}");
        kubectl(tools, &patch)?;
    }
    Ok(())
}
