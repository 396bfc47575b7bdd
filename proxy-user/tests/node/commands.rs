// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The commands that an operator runs on a node: the lists with their filters and formats, and the
//! overview commands, with and without an agent.

use std::process::{Command, Output};

use control::testing::rows;
use proxy_common::Counter;
use serde_json::Value;

use crate::{
    agent::Agent,
    objects::Service,
    world::{BINARY, CART, NODE_PORT, World},
};

/// What a command has printed as JSON, whatever its exit status.
#[track_caller]
pub(crate) fn printed(output: &Output) -> Value {
    let said = String::from_utf8_lossy(&output.stderr);
    let printed = serde_json::from_slice(&output.stdout);
    printed.unwrap_or_else(|error| panic!("{error}: {output:?} {said}"))
}

/// Compares values of what was printed: each word is a path and a value, as JSON or as text.
#[track_caller]
pub(crate) fn fields_are(printed: &Value, fields: &str) {
    for field in fields.split_whitespace() {
        let (path, expected) = field.split_once('=').expect("a path and a value");
        let value = printed.pointer(&format!("/{path}")).unwrap_or(&Value::Null);
        let expected = serde_json::from_str(expected).unwrap_or_else(|_| Value::from(expected));
        assert_eq!(*value, expected, "{path}: {printed:#}");
    }
}

/// The exit status and the report of a command that prints findings.
pub(crate) struct Report(pub(crate) i32, pub(crate) Value);

impl Report {
    pub(crate) fn of(output: &Output) -> Self {
        Self(output.status.code().expect("a status"), printed(output))
    }
    /// Expects this exit status.
    #[track_caller]
    pub(crate) fn ends(self, status: i32) -> Self {
        assert_eq!(self.0, status, "{:#}", self.1);
        self
    }
    /// The number of findings of this level that contain these words.
    pub(crate) fn count(&self, level: &str, words: &str) -> usize {
        let findings = self.1["findings"].as_array().expect("findings");
        let is_it = |finding: &&Value| {
            let text = |key: &str| finding[key].as_str().unwrap_or_default();
            let said = format!("{}: {}", text("about"), text("found"));
            finding["level"] == level && said.contains(words)
        };
        findings.iter().filter(is_it).count()
    }
}

impl World {
    /// Runs a command on this node, with words separated by blanks.
    pub(crate) fn ask(&self, line: &str) -> Output {
        self.output(&mut self.asking(line))
    }
    pub(crate) fn asking(&self, line: &str) -> Command {
        let mut command = Command::new(BINARY);
        command.args(line.split_whitespace());
        command.arg("--pin-dir").arg(self.pins());
        command
    }
    /// The output of a command; panics if it fails.
    pub(crate) fn told(&self, line: &str) -> String {
        let output = self.ask(line);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{line}: {said}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
    /// Whether the list of services contains this text.
    pub(crate) fn lists(&self, text: &str) -> bool {
        self.told("services").contains(text)
    }
    /// The output of a command as JSON; panics if it fails.
    pub(crate) fn json(&self, line: &str) -> Value {
        let text = self.told(&format!("{line} -o json"));
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{line}: {error}: {text}"))
    }
    /// The report of `status`, with or without problems; the exit status must match.
    pub(crate) fn status(&self) -> Value {
        let output = self.ask("status -o json");
        let status = printed(&output);
        let is_well = status["problems"].as_array().is_some_and(Vec::is_empty);
        assert_eq!(output.status.code(), Some((!is_well).into()), "{status}");
        status
    }
    /// The exit status and the message of a command that fails.
    pub(crate) fn refused(&self, line: &str) -> (Option<i32>, String) {
        let output = self.ask(line);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!said.is_empty(), "{line}");
        assert_eq!(output.stdout, b"", "{line}");
        (output.status.code(), said)
    }
}

/// The agent has the settings of [`crate::reads`], and one of kube-proxy's without effect.
pub(crate) fn status_and_warnings_show_what_the_agent_says(world: &World, agent: &Agent) {
    let mut status = Value::Null;
    agent.eventually("all is well", || {
        status = world.status();
        status["problems"].as_array().is_some_and(Vec::is_empty)
    });
    let expected = format!(
        "agent/health=200 agent/pid={} agent/version={} node=node-a interfaces/wanted=3 \
         interfaces/attached=3 hooks/wanted=9 hooks/attached=9 services=4",
        agent.pid(),
        env!("CARGO_PKG_VERSION")
    );
    fields_are(&status, &expected);
    assert!(status["mapMemory"].as_u64() > Some(1 << 20), "{status}");
    let last = status["sync"]["lastSeconds"].as_u64();
    assert!(last < Some(300), "{status}");
    // Without `--pin-dir`, `status` learns from the agent where its pins are.
    let mut command = Command::new(BINARY);
    command.args(["status", "-o", "json"]);
    let by_itself = printed(&world.output(&mut command));
    assert_eq!(by_itself["interfaces"], status["interfaces"]);
    let screen = world.told("status");
    assert!(screen.lines().count() < 24, "{screen}");
    for said in ["healthy", "3 of 3 interfaces"] {
        assert!(screen.contains(said), "{screen}");
    }
    let warnings = world.json("warnings");
    let all = warnings.as_array().into_iter().flatten();
    let of_config: Vec<_> = all.filter(|one| one["topic"] == "config").collect();
    let reason = of_config[0]["reason"].as_str().unwrap_or_default();
    assert!(reason.contains("ipvs have no effect"), "{warnings}");
    assert_eq!(of_config[0]["page"], "docs/runbooks.md#settings");
}

pub(crate) fn commands_say_that_no_agent_answers(world: &World) {
    let status = world.status();
    assert_eq!(status["agent"]["health"], Value::Null, "{status}");
    assert_eq!(status["interfaces"]["attached"], 3, "the programs stay");
    let problem = status["problems"][0].as_str().expect("a problem");
    let missed = "the agent is not reachable at http://127.0.0.1:10256/healthz: Connection refused";
    assert!(problem.starts_with(missed), "{status}");
    let counted = world.told("counters forwarded_new --no-headers");
    assert!(counted.starts_with("forwarded_new"), "{counted}");
    let (code, said) = world.refused("warnings");
    assert_eq!(code, Some(1));
    let missed = "the agent is not reachable at http://127.0.0.1:10249";
    assert!(said.contains(missed), "{said}");
    let file = world.path("config.yaml");
    let config = world.told(&format!("config --config {file} --changed --no-headers"));
    assert!(config.contains("portolan.maps.frontends  64"), "{config}");
}

/// A client holds one connection to `cart` by packets and one at its socket.
pub(crate) fn lists_are_filtered_and_formatted(world: &World) {
    // A service counts with its cluster IP, its other ports and its node port.
    let counts = include_str!("counts.txt").replace("ALL", &Counter::ALL.len().to_string());
    for [line, expected] in rows(&counts) {
        let printed = world.told(&format!("{line} --count"));
        assert_eq!(printed.trim(), expected, "{line}");
    }
    // The socket belongs to this process, which is not in the client's namespace itself.
    let fields = include_str!("fields.txt").replace("PID", &std::process::id().to_string());
    for [line, fields] in rows(&fields) {
        fields_are(&world.json(&line), &fields);
    }
    let names = world.told("services -A -o name");
    assert_eq!(
        names,
        "service/shop/cart\nservice/shop/empty\nservice/shop/local\nservice/shop/questions\n"
    );
    let wide = world.told("sockets -o wide");
    let pid = format!("  {}  ", std::process::id());
    assert!(wide.contains(&pid), "{wide}");
}

pub(crate) fn test_connects_to_every_address(world: &World) {
    for (line, code) in [
        ("test shop/cart --each", 0),
        // Nobody listens.
        ("test --connect 10.40.1.20:9", 1),
        // One or the other.
        ("test shop/cart --each --connect 10.40.1.20:9", 2),
    ] {
        let mut command = world.asking(line);
        let ran = world.in_node_process(|| command.output());
        let ran = ran.expect("it runs");
        let said = String::from_utf8_lossy(&ran.stdout).into_owned();
        assert_eq!(ran.status.code(), Some(code), "{line}: {said}");
        if code == 0 {
            for address in [CART, NODE_PORT, "10.40.1.20:8080"] {
                let line = said.lines().find(|line| line.contains(address));
                let connected = line.is_some_and(|line| line.contains("connected in"));
                assert!(connected, "{address}: {said}");
            }
        }
    }
}

/// An agent beside another proxy serves only the Services of its proxy name.
pub(crate) fn a_canary_is_found_by_other_addresses_and_serves_its_services_alone(world: &World) {
    let till = Service::new("till", "172.30.1.4");
    let labelled = till.clone();
    let labelled = labelled.labelled("service.kubernetes.io/service-proxy-name", "canary");
    world.publish(labelled);
    let flags = "--metrics-bind-address 127.0.0.1:20249 --healthz-bind-address 127.0.0.1:20256 \
                 --probe-bind-address 127.0.0.1:20247 --service-proxy-name canary";
    let flags: Vec<_> = flags.split_whitespace().collect();
    let agent = world.spawn(&flags);
    let is_healthy = || world.ask("status -o name").stdout == b"healthy\n";
    agent.eventually("it is found and healthy", is_healthy);
    let config = world.json("config metricsBindAddress");
    assert_eq!(config[0]["value"], "127.0.0.1:20249");
    let probes = "127.0.0.1:20247".parse().expect("an address");
    for path in ["/livez", "/healthz"] {
        let (status, _) = agent.get(probes, path).expect("it listens");
        assert_eq!(status, 200, "{path}");
    }
    let said = world.json("version");
    assert_eq!(said["agent"], env!("CARGO_PKG_VERSION"), "{said}");
    agent.eventually("it serves its own", || world.answers("172.30.1.4:80"));
    // It takes over maps in which all are served.
    agent.eventually("the other proxy's are left alone", || !world.answers(CART));
    let unknown = || world.count(Counter::RejectedUnknownFlow);
    let before = unknown();
    assert!(!world.answers(CART));
    assert_eq!(unknown(), before);
    world.publish(till);
    agent.eventually("it is another's", || !world.answers("172.30.1.4:80"));
    let log = agent.log();
    let mut warnings = log.lines().filter(|line| line.contains("WARN"));
    assert!(warnings.all(|line| line.contains("shop/web-1")), "{log}");
    // No agent listens on this port.
    let (code, said) = world.refused("warnings --metrics-bind-address 127.0.0.1:20250");
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("127.0.0.1:20250"), "{said}");
}
