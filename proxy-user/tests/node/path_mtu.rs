// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Path MTU discovery through a service: a router that finds a packet too large reports it to an
//! address that it knows, and the sender must learn it, whatever was translated in between.

use std::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use control::testing::rows;
use lab::{
    node::netns::NetNs,
    traffic::{clients::Client, probe::Outcome, servers::Servers},
};
use proxy_common::{Counter, Protocol};
use rstest::rstest;

use crate::{
    routed::{NODE_PORT, PORT, Routed},
    world::{OF_V4, OF_V6, any},
};

const MIB: usize = 1 << 20;
/// The MTU of the narrow link, in bytes. IPv6 requires 1280 at least.
const NARROW: u32 = 1400;
/// How long to wait for a connection. A transfer stalls if its ICMP error is lost.
const PATIENCE: Duration = Duration::from_secs(4);

/// Rules like those of firewalls and CNIs: they drop packets of connections unknown to the stack.
const STRICT: &str = "add table inet strict
add chain inet strict input { type filter hook input priority filter; }
add rule inet strict input ct state invalid drop
add chain inet strict forward { type filter hook forward priority filter; }
add rule inet strict forward ct state invalid drop
";

/// Paths of a client's packets to a backend: whence, how, and where the backend is: another host, a
/// pod with the client's own address, or a process of the node. Then what becomes of the error
/// about each of the [`LINKS`], if it is asked: `reported` as it comes, or `translated`. A process
/// of the node asks for small packets from the start if the node's own link is narrow. The node's
/// own error to a backend pod quotes the packet as the pod knows it.
const PATHS: &str = "
node    | socket     | host | reported   -          -          -
pod     | socket     | host | reported   reported   -          -
pod     | packets    | host | translated translated -          -
outside | masquerade | host | translated translated translated translated
outside | packets    | pod  | -          -          translated reported
outside | packets    | node | -          -          translated -
";
/// Links behind the backend's and then the client's side of the node: by [`Routed::set_mtu`], at a
/// router behind the node, and at the node itself, which finds a packet too large and reports it.
const LINKS: [(usize, usize); 4] = [(1, 1), (1, 0), (0, 1), (0, 0)];

/// One path, with the hosts at its ends, the client's frontend, and the backend's address.
struct Path<'a> {
    servers: &'a Servers,
    routed: &'a Routed,
    /// `socket`, `packets` or `masquerade`.
    how: &'a str,
    ends: [&'a NetNs; 2],
    service: SocketAddr,
    backend: SocketAddr,
}

#[rstest]
fn both_ends_learn_the_path_mtu_of_a_narrow_link(#[values(false, true)] v6: bool) {
    let routed = Routed::build(v6);
    let node = &routed.node;
    node.nft(STRICT);
    let [_, client_pod, backend_pod] = if v6 { OF_V6 } else { OF_V4 };
    node.join_pods([client_pod, backend_pod]);
    let backend_pod: IpAddr = backend_pod.parse().expect("an address");
    let [clients, backends] = routed.hosts();
    node.write("web.yaml", routed.web(0, routed.backend_ip));
    // The pod and the node's process behind services with the policy Local.
    for (number, backend) in [(1, backend_pod), (2, routed.node_ip)] {
        let web = routed.web(number, backend).on("node-a").local();
        node.write(&web.file(), web);
    }
    for end in [clients, backends, node.node(), &node.client, &node.server] {
        // Otherwise TCP finds the path MTU by probing, a few seconds later.
        end.set(&[("ipv4/tcp_mtu_probing", "0")]).expect("set");
    }
    let _agent = node.start();
    let servers = Servers::start().expect("servers");
    for [from, how, to, errors] in rows(PATHS) {
        println!("== {from}, {how}, {to}");
        let (client, service) = match &*from {
            "node" => (node.node(), None),
            "pod" => (&node.client, None),
            _ => (clients, Some(routed.node_ip)),
        };
        let (server, number, backend) = match &*to {
            "pod" => (&node.server, 1, backend_pod),
            "node" => (node.node(), 2, routed.node_ip),
            _ => (backends, 0, routed.backend_ip),
        };
        let cluster_ip = SocketAddr::new(routed.cluster_ip, 80);
        let path = Path {
            servers: &servers,
            routed: &routed,
            how: &how,
            ends: [client, server],
            service: service.map_or(cluster_ip, |ip| (ip, NODE_PORT + number).into()),
            backend: (backend, PORT).into(),
        };
        for (narrow, error) in LINKS.into_iter().zip(errors.split_whitespace()) {
            if error != "-" {
                path.check(narrow, error == "translated");
            }
        }
    }
}

impl Path<'_> {
    /// Checks that both ends of a TCP connection learn of the narrow link. What becomes of errors
    /// about datagrams is in tests/fuzz/cases/errors.txt.
    fn check(&self, narrow: (usize, usize), is_translated: bool) {
        self.narrow(narrow);
        let count = |counter| self.routed.node.count(counter);
        let both = || [Counter::IcmpTranslated, Counter::Masqueraded].map(count);
        let before = both();
        println!("narrow: side and link {narrow:?}");
        assert_eq!(self.transfer(), [NARROW; 2]);
        let after = both();
        let grown = [0, 1].map(|at: usize| after[at] > before[at]);
        let expected = [is_translated, self.how == "masquerade"];
        assert_eq!(grown, expected, "errors, masqueraded");
    }

    /// Makes one link narrow and the others wide; both ends forget their path MTU.
    fn narrow(&self, narrow: (usize, usize)) {
        for link in LINKS {
            let mtu = if link == narrow { NARROW } else { 1500 };
            self.routed.set_mtu(link.0, link.1, mtu);
        }
        for end in self.ends {
            for family in ["-4", "-6"] {
                let flushed = end.feed("ip", &[family, "route", "flush", "cache"], "");
                flushed.expect("routes without exceptions");
            }
        }
    }

    /// Sends 1 MiB to the service and gets 1 MiB back, over one connection; returns the path MTU
    /// that each end has learned from it, in bytes.
    fn transfer(&self) -> [u32; 2] {
        let ([client, server], is_at_socket) = (self.ends, self.how == "socket");
        let listening = self.servers.listen(server, Protocol::TCP, self.backend);
        let _listening = listening.expect("a server");
        let client_of = Client {
            patience: PATIENCE,
            ..Client::new(client, any(self.service.is_ipv6()))
        };
        let call = || client_of.call(Protocol::TCP, self.service, MIB);
        let called = match is_at_socket {
            true => self.routed.node.cgroup.inside(call),
            false => Ok(call()),
        };
        let outcome = called.expect("the cgroup").expect("a call").outcome;
        let Outcome::Answered(answer) = outcome else {
            panic!("{outcome:?}")
        };
        assert!(answer.intact, "{answer:?}");
        let (near, far) = (self.backend, self.service);
        let peer = if is_at_socket { near } else { far };
        [(client, peer.ip()), (server, answer.seen.ip())].map(|(end, peer)| {
            let route = end.feed("ip", &["-o", "route", "get", &peer.to_string()], "");
            let route = route.expect("a route");
            let mut words = route.split_whitespace().skip_while(|word| *word != "mtu");
            let mtu = words.nth(1).and_then(|mtu| mtu.parse().ok());
            mtu.unwrap_or_else(|| panic!("nothing was learned: {route}"))
        })
    }
}
