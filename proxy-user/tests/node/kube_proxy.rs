// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Parts of the test of `cluster`: `wait` for the rules of a real kube-proxy, before the agent
//! begins, and how soon the agent notices that its connections to the API server are dead.

use std::{
    process::{Command, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

use lab::node::{kube_proxy::KubeProxy, options::METRICS};

use crate::{
    agent::{Agent, wait},
    objects::Service,
    server::Server,
    world::{BINARY, World},
};

/// 45 s, and what a busy machine adds.
const LIMIT: Duration = Duration::from_secs(60);

/// Starts kube-proxy on the node of a world.
fn start(world: &World, kubeconfig: &str) -> KubeProxy {
    let program = std::env::var("KUBE_PROXY").expect("the program; `cargo xtask test` names it");
    let (node, program, kubeconfig) = (world.node(), program.as_ref(), kubeconfig.as_ref());
    let started = KubeProxy::start(node, program, "nftables", None, kubeconfig);
    started.expect("kube-proxy")
}

pub(crate) fn wait_ends_with_kube_proxys_rules(world: &World, server: &Server<'_>) {
    let has_rules = || world.tool("nft", "list ruleset").contains("172.30.1.1");
    // The rules of an earlier kube-proxy prove nothing to `wait`.
    let earlier = start(world, &server.kubeconfig());
    wait(LIMIT, "its rules", String::new, has_rules);
    drop(earlier);
    let mut command = Command::new(BINARY);
    let metrics = METRICS.to_string();
    let flags = ["wait", "--kube-proxy", "--kube-proxy-metrics", &metrics];
    let mut waiting = world.begin(command.args(flags).stdout(Stdio::null()));
    sleep(Duration::from_secs(3));
    let state = waiting.try_wait().expect("its state");
    assert_eq!(state, None, "kube-proxy does not run");
    let kube_proxy = start(world, &server.kubeconfig());
    assert!(waiting.wait().expect("its end").success());
    assert!(has_rules());
    drop(kube_proxy);
    world.nft("flush ruleset\n");
}

pub(crate) fn dead_connections_are_replaced(world: &World, server: &Server<'_>, agent: &Agent) {
    let pid = format!("pid={},", agent.pid());
    let open = world.tool("ss", "-tnpH state established");
    let open = open.lines().filter(|line| line.contains(&pid));
    let own_port = |line: &str| {
        let own = line.split_whitespace().nth(2).expect("its own end");
        own.rsplit_once(':').expect("a port").1.to_owned()
    };
    let ports = open.map(own_port).collect::<Vec<_>>().join(",");
    // Without FIN or RST: as when the server loses power.
    world.nft(&format!(
        "table inet dead {{\n chain out {{ type filter hook output priority 0;\n\
         tcp sport {{ {ports} }} drop\n tcp dport {{ {ports} }} drop\n }}\n}}\n"
    ));
    server.apply(Service::new("late", "172.30.1.4"));
    let begun = Instant::now();
    agent.within(LIMIT, "the change", || world.lists("172.30.1.4"));
    let took = begun.elapsed();
    assert!(took > Duration::from_secs(5), "the connection was not dead");
    world.nft("delete table inet dead\n");
}
