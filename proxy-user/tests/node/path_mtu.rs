// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Path MTU discovery through a service: a router that finds a packet too large reports it to an
//! address that it knows, and the sender must learn it, whatever was translated in between.

use std::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};

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

/// Rules like those of firewalls and CNIs: they drop every packet of a connection that the node's
/// stack does not know.
const STRICT: &str = "add table inet strict
add chain inet strict input { type filter hook input priority filter; }
add rule inet strict input ct state invalid drop
add chain inet strict forward { type filter hook forward priority filter; }
add rule inet strict forward ct state invalid drop
";

/// The path of a client's packets to the backend.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Through {
    /// From a process of the node, translated at its socket.
    NodeSocket,
    /// From a pod, translated at its socket.
    PodSocket,
    /// From a pod, translated packet by packet.
    PodPackets,
    /// From outside to a node port, masqueraded.
    Masquerade,
    /// From outside to a node port and on to a pod, with the client's own address.
    Preserved,
    /// From outside to a node port and on to a process of the node.
    ToNode,
}
use Through::{Masquerade, NodeSocket, PodPackets, PodSocket, Preserved, ToNode};

impl Through {
    const ALL: [Self; 6] = [
        NodeSocket, PodSocket, PodPackets, Masquerade, Preserved, ToNode,
    ];

    const fn is_at_the_socket(self) -> bool {
        matches!(self, NodeSocket | PodSocket)
    }
    const fn is_from_outside(self) -> bool {
        matches!(self, Masquerade | Preserved | ToNode)
    }
}

/// The side of the node where the narrow link is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Side {
    Client,
    Backend,
}

/// The host that finds a packet too large and reports it: the node itself, or a router behind it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Where {
    Node,
    Router,
}

/// One path, with the hosts at its ends, the frontend that the client sends to, and the address at
/// which the backend serves.
struct Path<'a> {
    servers: &'a Servers,
    routed: &'a Routed,
    through: Through,
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
    for end in [clients, backends, node.node(), node.client(), node.server()] {
        // Otherwise TCP finds the path MTU by probing, a few seconds later.
        let set = end.set(&[("ipv4/tcp_mtu_probing", "0")]);
        set.expect("no probing");
    }
    let _agent = node.start(7);
    let servers = Servers::start().expect("servers");
    for through in Through::ALL {
        println!("== {through:?}");
        let (client, server, number, backend) = match through {
            NodeSocket => (node.node(), backends, 0, routed.backend_ip),
            PodSocket | PodPackets => (node.client(), backends, 0, routed.backend_ip),
            Masquerade => (clients, backends, 0, routed.backend_ip),
            Preserved => (clients, node.server(), 1, backend_pod),
            ToNode => (clients, node.node(), 2, routed.node_ip),
        };
        let path = Path {
            servers: &servers,
            routed: &routed,
            through,
            ends: [client, server],
            service: match through.is_from_outside() {
                true => (routed.node_ip, NODE_PORT + number).into(),
                false => (routed.cluster_ip, 80).into(),
            },
            backend: (backend, PORT).into(),
        };
        if !matches!(through, Preserved | ToNode) {
            let is_translated = !through.is_at_the_socket();
            path.check(Side::Backend, Where::Router, is_translated);
            // If the node's own link is narrow, a process of the node asks for small packets from
            // the start.
            if through != NodeSocket {
                path.check(Side::Backend, Where::Node, is_translated);
            }
        }
        if through.is_from_outside() {
            path.check(Side::Client, Where::Router, true);
            // The node's own error to a backend pod quotes the packet as the pod knows it: nothing
            // is translated.
            if through != ToNode {
                path.check(Side::Client, Where::Node, through == Masquerade);
            }
        }
    }
}

impl Path<'_> {
    /// Checks that both ends of a TCP connection learn of the narrow link. What becomes of errors
    /// about datagrams is in tests/fuzz/cases/errors.txt.
    fn check(&self, side: Side, at: Where, is_translated: bool) {
        self.narrow(side, at);
        let count = |counter| self.routed.node.count(counter);
        let both = || [Counter::IcmpTranslated, Counter::Masqueraded].map(count);
        let before = both();
        println!("narrow at the {side:?}'s {at:?}");
        assert_eq!(self.transfer(), [NARROW; 2]);
        let after = both();
        let grown = [0, 1].map(|at: usize| after[at] > before[at]);
        let expected = [is_translated, self.through == Masquerade];
        assert_eq!(grown, expected, "errors, masqueraded");
    }

    /// Makes one link of a side narrow and the others wide; both ends forget their path MTU.
    fn narrow(&self, narrow: Side, at: Where) {
        for (side, one) in [Side::Client, Side::Backend].into_iter().enumerate() {
            for (link, there) in [Where::Node, Where::Router].into_iter().enumerate() {
                let is_narrow = (one, there) == (narrow, at);
                let mtu = if is_narrow { NARROW } else { 1500 };
                self.routed.set_mtu(side, link, mtu);
            }
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
        let ([client, server], is_at_socket) = (self.ends, self.through.is_at_the_socket());
        let listening = self.servers.listen(server, Protocol::TCP, self.backend);
        let _listening = listening.expect("a server");
        let client_of = Client {
            patience: PATIENCE,
            ..Client::new(client, any(self.service.is_ipv6()))
        };
        let call = || client_of.call(Protocol::TCP, self.service, MIB);
        let called = match is_at_socket {
            true => self.routed.node.cgroup().inside(call),
            false => Ok(call()),
        };
        let outcome = called.expect("the cgroup").expect("a call").outcome;
        let Outcome::Answered(answer) = outcome else {
            panic!("{outcome:?}")
        };
        assert!(answer.intact, "{answer:?}");
        let peer = if is_at_socket {
            self.backend
        } else {
            self.service
        };
        [(client, peer.ip()), (server, answer.seen.ip())].map(|(end, peer)| {
            let route = end.feed("ip", &["-o", "route", "get", &peer.to_string()], "");
            let route = route.expect("a route");
            let mut words = route.split_whitespace().skip_while(|word| *word != "mtu");
            let mtu = words.nth(1).and_then(|mtu| mtu.parse().ok());
            mtu.unwrap_or_else(|| panic!("nothing was learned: {route}"))
        })
    }
}
