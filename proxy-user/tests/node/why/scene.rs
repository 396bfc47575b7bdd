// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The node of the faults: two pods, a client outside, and a service for each fault. Its programs
//! serve without an agent, so that nothing is repaired.

use std::{
    net::{SocketAddr, TcpStream},
    process::Command,
    time::Duration,
};

use lab::node::netns::NetNs;

use crate::{
    explain::{OUTSIDE, outside, serve_also},
    objects::service,
    world::{BINARY, World},
};

/// How long to wait for an answer.
const PATIENCE: Duration = Duration::from_millis(1500);

pub(super) struct Scene {
    pub(super) world: World,
    pub(super) outside: NetNs,
    /// The interfaces to the client, the server and the client outside, each with its name on the
    /// page.
    interfaces: [(String, &'static str); 3],
}

impl Scene {
    pub(super) fn build() -> Self {
        let world = World::build();
        let outside = outside(&world);
        serve_also(&world, "10.40.1.21");
        for (name, text) in objects() {
            world.write(name, &text);
        }
        assert!(world.start_by_stack(7).stop().success());
        let interfaces = [
            (world.client_interface(), "veth10"),
            (world.server_interface(), "veth20"),
            (world.interface_to(OUTSIDE), "eth0"),
        ];
        Self {
            world,
            outside,
            interfaces,
        }
    }

    /// Replaces an object through an agent that then ends.
    pub(super) fn replace(&self, name: &str, text: &str) {
        self.world.write(name, text);
        assert!(self.world.start_by_stack(7).stop().success());
    }

    /// The output of a command of the page, with the page's names of interfaces.
    pub(super) fn run(&self, words: &[&str]) -> String {
        let mut command = Command::new(BINARY);
        command.args(words.iter().map(|word| self.interface(word)));
        command.arg("--pin-dir").arg(self.world.pins());
        if words.contains(&"explain") {
            command.arg("--manifests").arg(self.world.manifests());
        }
        let output = self.world.node().enter(|| command.output());
        let output = output.expect("enter the node").expect("its output");
        let text = String::from_utf8(output.stdout).expect("text");
        assert!(
            !text.is_empty(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        let of_page = |word: &str| {
            let named = self.interfaces.iter().find(|(own, _)| own == word);
            named.map_or_else(|| word.to_owned(), |(_, page)| (*page).to_owned())
        };
        let mut named = String::new();
        for part in text.split_inclusive(|letter: char| !letter.is_alphanumeric()) {
            let word = part.trim_end_matches(|letter: char| !letter.is_alphanumeric());
            named += &of_page(word);
            named += &part[word.len()..];
        }
        named
    }

    /// The node's own name of an interface of the page.
    pub(super) fn interface<'a>(&'a self, page: &'a str) -> &'a str {
        let found = self.interfaces.iter().find(|(_, name)| *name == page);
        found.map_or(page, |(own, _)| own)
    }

    pub(super) fn nft(&self, rules: &str) {
        let fed = self.world.node().feed("nft", &["-f", "-"], rules);
        fed.expect("rules");
    }

    pub(super) fn tool(&self, program: &str, words: &str) {
        let words: Vec<_> = words.split(' ').collect();
        let printed = self.world.node().feed(program, &words, "");
        printed.unwrap_or_else(|error| panic!("{error:#}"));
    }

    pub(super) fn ip(&self, line: &str) {
        self.world.node().ip(&format!("{line}\n")).expect("changed");
    }

    /// Whether the client pod is accepted there.
    pub(super) fn pod_reaches(&self, to: &str) -> bool {
        reaches(self.world.client(), to)
    }

    /// Whether the client outside is accepted there.
    pub(super) fn outside_reaches(&self, to: &str) -> bool {
        reaches(&self.outside, to)
    }

    /// Makes the node's route to the client outside use this interface.
    pub(super) fn route_outside_by(&self, page: &str) {
        self.ip(&format!(
            "route change {OUTSIDE}/32 dev {}",
            self.interface(page)
        ));
    }
}

fn reaches(host: &NetNs, to: &str) -> bool {
    let to: SocketAddr = to.parse().expect("an address and port");
    let connected = host.enter(|| TcpStream::connect_timeout(&to, PATIENCE));
    connected.expect("enter the host").is_ok()
}

/// The manifests by the names of their files.
fn objects() -> Vec<(&'static str, String)> {
    vec![
        ("cart.yaml", service("cart", "172.30.1.1")),
        ("pay.yaml", pay(false)),
        ("sticky.yaml", sticky("[10.40.1.21]")),
        ("deaf.yaml", deaf(8081)),
        ("login.yaml", login("node-b")),
        ("ranged.yaml", ranged("192.0.2.0/24")),
    ]
}

/// A service with session affinity and endpoints with these addresses.
pub(super) fn sticky(endpoints: &str) -> String {
    let sticky = service("sticky", "172.30.1.3");
    let kind = "type: NodePort, sessionAffinity: ClientIP,";
    let (sticky, _) = sticky.split_once("endpoints:").expect("its endpoints");
    let endpoints = endpoints
        .replace('[', "{addresses: [")
        .replace(']', "], nodeName: node-a}");
    format!(
        "{}endpoints: [{endpoints}]\n",
        sticky.replace("type: NodePort,", kind)
    )
}

/// A service whose only pod is ready or not.
pub(super) fn pay(ready: bool) -> String {
    service("pay", "172.30.1.2").replace(
        "10.40.1.20], ",
        &format!("10.40.1.20], conditions: {{ready: {ready}, serving: {ready}}}, targetRef: {{kind: Pod, name: pay-7f}}, "),
    )
}

/// A service with this targetPort.
pub(super) fn deaf(port: u16) -> String {
    service("deaf", "172.30.1.4").replace("port: 8080", &format!("port: {port}"))
}

/// A service with externalTrafficPolicy Local, whose only pod is on `node`.
pub(super) fn login(node: &str) -> String {
    let login = service("login", "172.30.1.5");
    let login = login.replace(
        "type: NodePort,",
        "type: NodePort, externalTrafficPolicy: Local,",
    );
    login.replace("nodeName: node-a", &format!("nodeName: {node}"))
}

/// A service whose load balancer address is open only to these addresses.
pub(super) fn ranged(range: &str) -> String {
    let kind = format!("type: LoadBalancer, loadBalancerSourceRanges: [{range}],");
    let ranged = service("ranged", "172.30.1.6").replace("type: NodePort,", &kind);
    ranged.replacen(
        "---",
        "status: {loadBalancer: {ingress: [{ip: 203.0.113.6}]}}\n---",
        1,
    )
}
