// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The agent as a client of a real API server beside kube-proxy: `wait` for its rules, and how soon
//! both notice that their connections are dead.

use std::{
    collections::BTreeSet,
    process::{Command, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

use lab::node::{kube_proxy::KubeProxy, options::METRICS};

use crate::{
    agent::{eventually, wait, within},
    objects::service,
    server::prepare,
    world::{BINARY, World},
};

/// Starts kube-proxy on the node of a world.
fn start(world: &World, kubeconfig: &str) -> KubeProxy {
    let program = std::env::var("KUBE_PROXY").expect("the program; `cargo xtask test` names it");
    let (node, program, kubeconfig) = (world.node(), program.as_ref(), kubeconfig.as_ref());
    let started = KubeProxy::start(node, program, "nftables", None, kubeconfig);
    started.expect("kube-proxy")
}

/// Returns true if its rules have this cluster IP.
fn has_rules(world: &World, cluster_ip: &str) -> bool {
    world.tool("nft", "list ruleset").contains(cluster_ip)
}

fn ports_of_connections(world: &World, process: u32) -> BTreeSet<String> {
    let pid = format!("pid={process},");
    let open = world.tool("ss", "-tnpH state established");
    let open = open.lines().filter(|line| line.contains(&pid));
    let own_port = |line: &str| {
        let own = line.split_whitespace().nth(2).expect("its own end");
        own.rsplit_once(':').expect("a port").1.to_owned()
    };
    open.map(own_port).collect()
}

/// Makes the established connections of these processes silent, without FIN or RST: as when the
/// server loses power.
fn cut(world: &World, processes: &[u32]) {
    let mut all = Vec::new();
    for process in processes {
        let ports = ports_of_connections(world, *process);
        assert!(
            !ports.is_empty(),
            "no connection of {process} to the server"
        );
        all.extend(ports);
    }
    let ports = all.join(",");
    world.nft(&format!(
        "table inet dead {{\n chain out {{ type filter hook output priority 0;\n\
         tcp sport {{ {ports} }} drop\n tcp dport {{ {ports} }} drop\n }}\n}}\n"
    ));
}

#[test]
fn wait_ends_with_kube_proxys_rules_and_dead_connections_are_replaced_as_soon_as_its_own() {
    // 45 s, and what a busy machine adds.
    const LIMIT: Duration = Duration::from_secs(60);
    let world = World::build();
    let server = prepare(&world);
    // The rules of an earlier kube-proxy prove nothing to `wait`.
    let earlier = start(&world, &server.kubeconfig());
    wait(LIMIT, "its rules", String::new, || {
        has_rules(&world, "172.30.1.1")
    });
    drop(earlier);
    let mut command = Command::new(BINARY);
    let metrics = METRICS.to_string();
    let flags = ["wait", "--kube-proxy", "--kube-proxy-metrics", &metrics];
    let mut waiting = world.begin(command.args(flags).stdout(Stdio::null()));
    sleep(Duration::from_secs(3));
    let state = waiting.try_wait().expect("its state");
    assert_eq!(state, None, "kube-proxy does not run");
    let kube_proxy = start(&world, &server.kubeconfig());
    assert!(waiting.wait().expect("its end").success());
    assert!(has_rules(&world, "172.30.1.1"));

    let agent = world.follow(&server.kubeconfig());
    let serves = |ip: &str| {
        let listed = world.ask(&["services"]).stdout;
        String::from_utf8_lossy(&listed).contains(ip)
    };
    eventually("the agent has the service", &agent, || serves("172.30.1.1"));
    eventually("kube-proxy has it", &agent, || {
        has_rules(&world, "172.30.1.1")
    });
    cut(&world, &[agent.pid(), kube_proxy.pid()]);
    server.apply(service("more", "172.30.1.2"));
    let begun = Instant::now();
    let (mut own, mut theirs) = (None, None);
    within(2 * LIMIT, "the change", &agent, || {
        if own.is_none() && serves("172.30.1.2") {
            own = Some(begun.elapsed());
        }
        if theirs.is_none() && has_rules(&world, "172.30.1.2") {
            theirs = Some(begun.elapsed());
        }
        own.is_some() && theirs.is_some()
    });
    let (own, theirs) = own.zip(theirs).expect("both have it");
    println!("the agent after {own:?}, kube-proxy after {theirs:?}");
    assert!(own > Duration::from_secs(5), "the connection was not dead");
    assert!(own < LIMIT, "{own:?}: {}", agent.log());
}
