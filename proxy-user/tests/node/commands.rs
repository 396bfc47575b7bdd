// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The commands that an operator runs on a node: the lists with their filters and formats, and the
//! overview commands, with and without an agent.

use std::{
    process::{Command, Output},
    time::{Duration, Instant},
};

use serde_json::Value;

use crate::{
    agent::{Agent, eventually},
    attachments::CART,
    objects::{Service, questions},
    world::{BINARY, World, at},
};

impl World {
    /// Runs a command on this node.
    pub(crate) fn ask(&self, arguments: &[&str]) -> Output {
        let mut command = self.asking(arguments);
        self.output(&mut command)
    }
    pub(crate) fn asking(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(BINARY);
        command.args(arguments).arg("--pin-dir").arg(self.pins());
        command
    }
    /// The output of a command; panics if it fails.
    pub(crate) fn told(&self, arguments: &[&str]) -> String {
        let output = self.ask(arguments);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {said}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
    /// The output of a command as JSON; panics if it fails.
    pub(crate) fn json(&self, arguments: &[&str]) -> Value {
        let text = self.told(&[arguments, &["-o", "json"]].concat());
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{arguments:?}: {error}: {text}"))
    }
    /// The report of `status`, with or without problems; the exit status must match.
    pub(crate) fn status(&self) -> Value {
        let output = self.ask(&["status", "-o", "json"]);
        let status: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let is_well = status["problems"].as_array().is_some_and(Vec::is_empty);
        assert_eq!(output.status.code(), Some((!is_well).into()), "{status}");
        status
    }
    /// The exit status and the message of a command that fails.
    pub(crate) fn refused(&self, arguments: &[&str]) -> (Option<i32>, String) {
        let output = self.ask(arguments);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!said.is_empty(), "{arguments:?}");
        assert_eq!(output.stdout, b"", "{arguments:?}");
        (output.status.code(), said)
    }
}

/// The report of `status` once it shows no problems.
fn settled(world: &World, agent: &Agent) -> Value {
    let mut status = Value::Null;
    eventually("all is well", agent, || {
        status = world.status();
        status["problems"].as_array().is_some_and(Vec::is_empty)
    });
    status
}

#[test]
fn list_commands_filter_and_format_by_their_arguments() {
    let world = World::serving();
    world.write(
        "twin.yaml",
        Service::new("twin", "172.30.1.2").node_port(31000),
    );
    world.write("questions.yaml", questions());
    let sticky = Service::new("sticky", "172.30.1.3").sticky();
    world.write("sticky.yaml", sticky);
    let _agent = world.start(7);
    let _open = world.connect(CART).expect("served");
    let _held = world.connect("172.30.1.3:80").expect("served");
    let _own = world.connect_from_node(CART).expect("served at the socket");

    let count = |arguments: &[&str]| {
        let printed = world.told(&[arguments, &["--count"]].concat());
        printed.trim().parse::<u32>().expect("a number")
    };
    // Counts the cluster IP, its other ports and the node port.
    assert_eq!(count(&["services", "cart"]), 3);
    assert_eq!(count(&["services", "shop/cart:80"]), 1);
    assert_eq!(count(&["svc", "-n", "shop", "--address", "172.30.1.2"]), 2);
    let names = world.told(&["services", "-A", "-o", "name"]);
    assert_eq!(
        names,
        "service/shop/cart\nservice/shop/questions\nservice/shop/sticky\nservice/shop/twin\n"
    );
    let table = world.told(&["services", "questions", "--protocol", "udp", "--no-headers"]);
    assert!(
        table.starts_with("shop/questions") && table.lines().count() == 1,
        "{table}"
    );
    let path = "jsonpath={.items[?(@.kind=='node-port')].port}";
    let ports = world.told(&["services", "-o", path]);
    assert_eq!(ports, "30001\n30003\n31000\n");

    let backends = world.json(&["backends", "--sort-by", "id", "--limit", "2"]);
    assert_eq!(backends.as_array().map(Vec::len), Some(2));
    assert_eq!(backends[0]["address"], "10.40.1.20:8080");
    let backends = world.json(&["backends", "questions"]);
    assert_eq!(
        (&backends[0]["protocol"], &backends[0]["servicePort"]),
        (&"UDP".into(), &53.into())
    );

    let flows = world.json(&["flows", "shop/cart", "--state", "established,answered"]);
    assert_eq!(flows.as_array().map(Vec::len), Some(1), "{flows}");
    assert_eq!(flows[0]["frontend"], CART);
    let client = at(flows[0]["client"].as_str().expect("a client"));
    assert_eq!(count(&["flows", "--port", &client.port().to_string()]), 1);
    assert_eq!(count(&["flows", "--client", "10.40.1.10"]), 2);
    assert_eq!(count(&["flows", "--state", "closed"]), 0);

    let sockets = world.json(&["sockets", "cart"]);
    assert_eq!(sockets.as_array().map(Vec::len), Some(1), "{sockets}");
    // The socket belongs to this process, which is not in the node's network namespace itself.
    assert_eq!(sockets[0]["process"]["pid"], std::process::id());
    let wide = world.told(&["sockets", "-o", "wide"]);
    assert!(
        wide.contains(&format!("  {}  ", std::process::id())),
        "{wide}"
    );

    let affinity = world.json(&["affinity", "sticky", "--address", "10.40.1.0/24"]);
    assert_eq!(affinity[0]["status"], "holds", "{affinity}");
}

#[test]
fn overview_commands_work_with_an_agent_and_report_a_stopped_one() {
    let world = World::serving();
    let config =
        "clusterCIDR: 10.40.0.0/16\nportolan: {maps: {frontends: 64}}\nipvs: {scheduler: rr}\n";
    let agent = world.start_configured(7, config);
    assert!(world.connect(CART).is_ok());

    let status = settled(&world, &agent);
    assert_eq!(status["agent"]["health"], 200, "{status}");
    assert_eq!(status["agent"]["pid"], agent.pid());
    assert_eq!(status["agent"]["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(status["node"], "node-a");
    for (what, count) in [("interfaces", 3), ("hooks", 11)] {
        assert_eq!(status[what]["wanted"], count, "{status}");
        assert_eq!(status[what]["attached"], count, "{status}");
    }
    assert_eq!(status["services"], 1);
    assert!(status["mapMemory"].as_u64() > Some(1 << 20), "{status}");
    assert!(
        status["sync"]["lastSeconds"].as_u64() < Some(300),
        "{status}"
    );
    // Without `--pin-dir`, `status` learns from the agent where its pins are.
    let mut command = Command::new(BINARY);
    command.args(["status", "-o", "json"]);
    let output = world.output(&mut command);
    let by_itself: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(by_itself["interfaces"], status["interfaces"]);
    assert_eq!(by_itself["problems"], status["problems"], "{by_itself}");
    let screen = world.told(&["status"]);
    assert!(screen.lines().count() < 24, "{screen}");
    assert!(
        screen.contains("healthy") && screen.contains("3 of 3 interfaces"),
        "{screen}"
    );

    let maps = world.json(&["maps", "frontends_v4"]);
    assert_eq!(
        (&maps[0]["entries"], &maps[0]["capacity"]),
        (&3.into(), &64.into())
    );
    assert!(maps[0]["memory"].as_u64() > Some(0), "{maps}");

    let counters = world.json(&["counters"]);
    let of = |name: &str| {
        let all = counters.as_array().into_iter().flatten();
        let mut named = all.filter(|counter| counter["name"] == name);
        named.next().expect("it is there").clone()
    };
    assert!(
        of("forwarded_new")["count"].as_u64() >= Some(1),
        "{counters}"
    );
    assert!(
        of("dropped_source_range")["help"]
            .as_str()
            .is_some_and(|help| help.contains("loadBalancerSourceRanges"))
    );
    assert_eq!(
        counters.as_array().map(Vec::len),
        Some(proxy_common::Counter::ALL.len())
    );

    let warnings = world.json(&["warnings"]);
    let about = warnings
        .as_array()
        .into_iter()
        .flatten()
        .find(|warning| warning["topic"] == "config");
    let reason = about
        .and_then(|warning| warning["reason"].as_str())
        .unwrap_or_default();
    assert!(reason.contains("ipvs have no effect"), "{warnings}");
    let page = about.and_then(|warning| warning["page"].as_str());
    assert_eq!(page, Some("docs/runbooks.md#settings"), "{warnings}");

    let from = |key: &str| world.json(&["config", key])[0]["from"].clone();
    assert_eq!(from("hostnameOverride"), "flag");
    assert_eq!(from("clusterCIDR"), "file");
    assert_eq!(from("portolan.maps.frontends"), "file");
    assert_eq!(from("metricsBindAddress"), "default");
    assert_eq!(
        world.json(&["config", "portolan.maps.frontends"])[0]["value"],
        "64"
    );

    assert!(agent.stop().success());
    let status = world.status();
    assert_eq!(status["agent"]["health"], Value::Null, "{status}");
    assert_eq!(status["interfaces"]["attached"], 3, "the programs stay");
    assert_eq!(status["services"], 1);
    let problems = status["problems"].as_array().expect("problems");
    let missed = "the agent is not reachable at http://127.0.0.1:10256/healthz: Connection refused";
    assert!(
        problems[0]
            .as_str()
            .is_some_and(|said| said.starts_with(missed)),
        "{status}"
    );
    assert!(
        world
            .told(&["counters", "forwarded_new", "--no-headers"])
            .starts_with("forwarded_new")
    );
    let (code, said) = world.refused(&["warnings"]);
    assert_eq!(code, Some(1));
    assert!(
        said.contains("the agent is not reachable at http://127.0.0.1:10249"),
        "{said}"
    );
    let file = world.path("config.yaml");
    let config = world.told(&["config", "--config", &file, "--changed", "--no-headers"]);
    assert!(
        config.contains("portolan.maps.frontends  64") && config.contains("file"),
        "{config}"
    );
}

#[test]
fn a_removed_endpoint_is_no_longer_listed() {
    let world = World::serving();
    let agent = world.start(7);
    let listed = || world.told(&["backends", "-o", "name"]).lines().count();
    assert_eq!(listed(), 1);
    world.write("cart.yaml", "# nothing\n");
    let since = Instant::now();
    eventually("nothing is listed", &agent, || listed() == 0);
    assert!(since.elapsed() < Duration::from_secs(20), "by nothing else");
}

#[test]
fn commands_find_an_agent_whose_servers_have_other_addresses() {
    let world = World::build();
    let flags = [
        "--metrics-bind-address",
        "127.0.0.1:20249",
        "--healthz-bind-address",
        "127.0.0.1:20256",
        "--probe-bind-address",
        "127.0.0.1:20247",
    ];
    let agent = world.spawn(&flags);
    eventually("it is found and healthy", &agent, || {
        world.ask(&["status", "-o", "name"]).stdout == b"healthy\n"
    });
    assert_eq!(
        world.json(&["config", "metricsBindAddress"])[0]["value"],
        "127.0.0.1:20249"
    );
    let probes = "127.0.0.1:20247".parse().expect("an address");
    for path in ["/livez", "/healthz"] {
        let (status, _) = agent.get(probes, path).expect("it listens");
        assert_eq!(status, 200, "{path}");
    }
    let said = world.json(&["version"]);
    assert_eq!(said["agent"], env!("CARGO_PKG_VERSION"), "{said}");
    // No agent listens on this port.
    let (code, said) = world.refused(&["warnings", "--metrics-bind-address", "127.0.0.1:20250"]);
    assert!(
        code == Some(1) && said.contains("127.0.0.1:20250"),
        "{said}"
    );
}

#[test]
fn test_connects_to_every_address_of_a_service() {
    let world = World::build();
    world.write(
        "cart.yaml",
        Service::new("cart", "172.30.1.1").node_port(31_080),
    );
    let agent = world.start(7);
    let test = |words: &[&str]| {
        let mut command = Command::new(BINARY);
        command.arg("test").args(words).arg("--pin-dir");
        let ran = world.in_node_process(|| command.arg(world.pins()).output());
        let ran = ran.expect("it runs");
        let said = String::from_utf8_lossy(&ran.stdout).into_owned();
        (ran.status.code(), said)
    };
    let (code, said) = test(&["shop/cart"]);
    assert_eq!(code, Some(0), "{said}{}", agent.log());
    for address in ["172.30.1.1:80", "10.40.0.1:31080"] {
        let line = said.lines().find(|line| line.contains(address));
        let connected = line.is_some_and(|line| line.contains("connected in"));
        assert!(connected, "{address}: {said}");
    }
    let (code, said) = test(&["--connect", "10.40.1.20:9"]);
    assert_eq!(code, Some(1), "nobody listens: {said}");
    let (code, _) = test(&["shop/cart", "--connect", "10.40.1.20:9"]);
    assert_eq!(code, Some(2), "one or the other");
}
