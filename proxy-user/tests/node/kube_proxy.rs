// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The agent as a client of a real API server beside kube-proxy: what both ask for, and how soon
//! they notice that their connections are dead.

use std::{
    collections::BTreeSet,
    fs,
    process::{Command, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

use lab::node::{kube_proxy, options::METRICS};
use serde_json::Value;

use crate::{
    agent::{eventually, wait, within},
    objects::service,
    server::{prepare, prepare_for_fleet},
    world::{BINARY, World},
};

/// kube-proxy on the node of a world; dropping it ends it.
struct KubeProxy {
    process: kube_proxy::KubeProxy,
}

impl KubeProxy {
    fn start(world: &World, kubeconfig: &str) -> Self {
        let started = kube_proxy::KubeProxy::start(
            world.node(),
            program().as_ref(),
            "nftables",
            None,
            kubeconfig.as_ref(),
        );
        Self {
            process: started.expect("kube-proxy"),
        }
    }

    /// Returns true if its rules have this cluster IP.
    fn has(world: &World, cluster_ip: &str) -> bool {
        world.tool("nft", "list ruleset").contains(cluster_ip)
    }
}

/// Returns the path of the program kube-proxy.
pub(crate) fn program() -> String {
    std::env::var("KUBE_PROXY").expect("the program; `cargo xtask test` names it")
}

/// Returns which objects the lines of an audit log have asked for: resource, label selector and
/// field selector.
fn asked(lines: &str) -> BTreeSet<[String; 3]> {
    let mut asked = BTreeSet::new();
    for line in lines.lines() {
        let event: Value = serde_json::from_str(line).expect("an event");
        let word = |pointer: &str| event.pointer(pointer).and_then(Value::as_str);
        let uri = word("/requestURI").expect("a request");
        let query = uri.split_once('?').map_or("", |(_, query)| query);
        let selector = |name: &str| {
            let mut pairs = form_urlencoded::parse(query.as_bytes());
            let found = pairs.find(|(key, _)| key == name);
            found.map_or_else(String::new, |(_, value)| value.into_owned())
        };
        let resource = word("/objectRef/resource").expect("a resource").to_owned();
        asked.insert([
            resource,
            selector("labelSelector"),
            selector("fieldSelector"),
        ]);
    }
    asked
}

#[test]
fn the_agent_asks_the_server_for_the_same_objects_as_kube_proxy() {
    let version = Command::new(program()).arg("--version").output();
    let version = version.expect("its version").stdout;
    let version = String::from_utf8_lossy(&version).trim().to_owned();
    let world = World::build();
    let server = prepare_for_fleet(&world);
    let log = || fs::read_to_string(server.audit_log()).unwrap_or_default();
    let kubeconfig = server.agents_kubeconfig();
    let agent = world.follow(&kubeconfig);
    eventually("a list of each kind", &agent, || asked(&log()).len() >= 3);
    eventually("it is ready", &agent, || agent.health().0 == 200);
    assert!(agent.stop().success());
    let before = log();
    let own = asked(&before);
    let _kube_proxy = KubeProxy::start(&world, &kubeconfig);
    let theirs = || asked(log().strip_prefix(&*before).expect("the same log"));
    wait(
        Duration::from_secs(60),
        "kube-proxy's requests",
        || version.clone(),
        || KubeProxy::has(&world, "172.30.1.1"),
    );
    // The agent follows ServiceCIDRs only in mode nftables, and kube-proxy only to tell whether
    // the cluster has both families.
    let mut theirs = theirs();
    theirs.retain(|[resource, ..]| resource != "servicecidrs");
    assert_eq!(own, theirs, "{version}");
}

#[test]
fn wait_ends_once_kube_proxy_has_written_its_rules() {
    let world = World::build();
    let server = prepare(&world);
    // The rules of an earlier kube-proxy prove nothing.
    drop(kube_proxy_with_rules(&world, &server.kubeconfig()));
    let mut command = Command::new(BINARY);
    let metrics = METRICS.to_string();
    let flags = ["wait", "--kube-proxy", "--kube-proxy-metrics", &metrics];
    let mut waiting = world.begin(command.args(flags).stdout(Stdio::null()));
    sleep(Duration::from_secs(3));
    let state = waiting.try_wait().expect("its state");
    assert_eq!(state, None, "kube-proxy does not run");
    let _kube_proxy = KubeProxy::start(&world, &server.kubeconfig());
    assert!(waiting.wait().expect("its end").success());
    assert!(KubeProxy::has(&world, "172.30.1.1"));
}

fn kube_proxy_with_rules(world: &World, kubeconfig: &str) -> KubeProxy {
    let kube_proxy = KubeProxy::start(world, kubeconfig);
    wait(
        Duration::from_secs(60),
        "kube-proxy's rules",
        String::new,
        || KubeProxy::has(world, "172.30.1.1"),
    );
    kube_proxy
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
fn a_connection_to_the_server_that_dies_silently_is_replaced_as_soon_as_kube_proxys() {
    // 45 s, and what a busy machine adds.
    const LIMIT: Duration = Duration::from_secs(60);
    let world = World::build();
    let server = prepare(&world);
    let kube_proxy = KubeProxy::start(&world, &server.kubeconfig());
    let agent = world.follow(&server.kubeconfig());
    let serves = |ip: &str| {
        let listed = world.ask(&["services"]).stdout;
        String::from_utf8_lossy(&listed).contains(ip)
    };
    eventually("the agent has the service", &agent, || serves("172.30.1.1"));
    eventually("kube-proxy has it", &agent, || {
        KubeProxy::has(&world, "172.30.1.1")
    });
    cut(&world, &[agent.pid(), kube_proxy.process.pid()]);
    server.apply(service("more", "172.30.1.2"));
    let begun = Instant::now();
    let (mut own, mut theirs) = (None, None);
    within(2 * LIMIT, "the change", &agent, || {
        if own.is_none() && serves("172.30.1.2") {
            own = Some(begun.elapsed());
        }
        if theirs.is_none() && KubeProxy::has(&world, "172.30.1.2") {
            theirs = Some(begun.elapsed());
        }
        own.is_some() && theirs.is_some()
    });
    let (own, theirs) = own.zip(theirs).expect("both have it");
    println!("the agent after {own:?}, kube-proxy after {theirs:?}");
    assert!(own > Duration::from_secs(5), "the connection was not dead");
    assert!(own < LIMIT, "{own:?}: {}", agent.log());
}
