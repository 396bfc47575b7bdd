// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `xdp`: packets of known flows between a client and a backend that are behind two uplinks. What
//! XDP takes at one uplink, what it notes, and what it passes to tc, stands in tests/fuzz/cases:
//! `xdp.txt` and `xdp-life.txt`. There XDP may leave any packet to tc; that it takes them, and
//! notes when, is here.

use std::net::SocketAddr;

use datapath::XdpMode;
use proxy_common::{
    Counter, FlowEntry, FlowKind, Port, V4, maps,
    masquerade::Marks,
    xdp::{Abilities, Uplink},
};
use rstest::rstest;

use crate::{
    node::{INSIDE, INSIDE_MAC, Node, OUTSIDE, OUTSIDERS_MAC, PODS_MAC},
    packets::{NODE_MAC, Tcp, hops, tcp, with_hops},
    service::{Addresses, IPV4, IPV6},
    world::Outcome,
};

/// The action of XDP that redirects.
const REDIRECT: u32 = 4;

/// A connection from outside to the service's backend, which tc has begun.
struct Open {
    node: Node,
    client: SocketAddr,
    /// The node's address and port, which the backend sees.
    source: SocketAddr,
}

impl Open {
    fn new(a: Addresses) -> Self {
        let node = Node::new(a, |options| options.xdp = Some(XdpMode::Native), 0);
        let mut open = Self {
            client: a.outside_client(),
            source: a.client(),
            node,
        };
        for uplink in [OUTSIDE, INSIDE] {
            open.permit(uplink, Abilities::ALL);
        }
        open.node.world.change_routes();
        let (service, backend) = (open.node.service(), open.node.backend());
        let syn = tcp(open.client, service, Tcp::Syn, b"");
        open.source = open.by_tc(&syn).src();
        assert_eq!(open.source.ip(), a.node, "masqueraded");
        let answer = tcp(backend, open.source, Tcp::SynAck, b"");
        let back = open.node.ingress(&answer, INSIDE);
        let back = open.node.egress(&back.packet, 0, OUTSIDE);
        assert_eq!(back.dst(), open.client);
        open.by_tc(&open.question(b""));
        open.node.record(FlowKind::ORIGINAL, INSIDE, 0);
        open.node.record(FlowKind::MASQUERADED_REPLY, OUTSIDE, 0);
        open
    }
    /// A packet of the client.
    fn question(&self, payload: &[u8]) -> Vec<u8> {
        tcp(self.client, self.node.service(), Tcp::Ack, payload)
    }
    /// A packet of the backend to the node's address, at the inner uplink, which has another one.
    fn answer(&self, payload: &[u8]) -> Vec<u8> {
        tcp(self.node.backend(), self.source, Tcp::Ack, payload)
    }
    /// Passes a client's packet through tc, in and out; returns the result.
    fn by_tc(&self, packet: &[u8]) -> Outcome {
        let inside = self.node.ingress(packet, OUTSIDE);
        let mark = Marks::DEFAULT.masquerade;
        self.node.egress(&inside.packet, mark, INSIDE)
    }
    fn at_xdp(&self, packet: &[u8], interface: u32) -> Option<Outcome> {
        let packet = Node::framed(packet, interface);
        let world = &self.node.world;
        self.node.enter(|| world.at_xdp(&packet, interface))
    }
    /// Expects that XDP takes a packet, at the latest once its next hop is known: some packets go
    /// to the stack so that the stack sees them.
    fn taken(&self, packet: &[u8], interface: u32) -> Outcome {
        let taken = (0..8).find_map(|_| self.at_xdp(packet, interface));
        taken.expect("XDP takes it")
    }
    /// Expects that XDP passes a packet to tc, unchanged and uncounted.
    fn left(&self, packet: &[u8], interface: u32) {
        for _ in 0..3 {
            assert!(self.at_xdp(packet, interface).is_none());
        }
    }
    /// Stores what an uplink can do.
    fn permit(&self, uplink: u32, abilities: Abilities) {
        let is_inside = uplink == INSIDE;
        let mac = if is_inside { INSIDE_MAC } else { NODE_MAC };
        let word = Uplink::new(mac, abilities).0;
        self.node.world.store(maps::UPLINKS, uplink, word);
    }
}

#[rstest]
fn xdp_translates_and_counts_packets_between_two_uplinks(#[values(*IPV4, *IPV6)] a: Addresses) {
    let open = Open::new(a);
    let node = &open.node;
    let traffic = || {
        let counted = node.world.counted().backends;
        let [backend] = &counted[..] else {
            panic!("one backend: {counted:?}")
        };
        let of = &backend.traffic;
        let out = [of.packets_out, of.bytes_out];
        ([of.packets_in, of.bytes_in, of.connections], out)
    };
    let ([packets, bytes, connections], [answers, answered]) = traffic();
    let (question, answer) = (open.question(b"a question"), open.answer(b"an answer"));
    let there = open.taken(&question, OUTSIDE);
    assert_eq!(there.fate(), (REDIRECT, Counter::ForwardedByXdp));
    assert_eq!(there.ends(), (open.source, node.backend()));
    assert!(there.packet.ends_with(b"a question"));
    assert_eq!(hops(&there.packet), 63);
    assert_eq!(there.packet[..12], [PODS_MAC, INSIDE_MAC].concat());

    let back = open.taken(&answer, INSIDE);
    assert_eq!(back.fate(), (REDIRECT, Counter::ReplyByXdp));
    assert_eq!(back.ends(), (node.service(), open.client));
    assert!(back.packet.ends_with(b"an answer"));
    assert_eq!(hops(&back.packet), 63);
    assert_eq!(back.packet[..12], [OUTSIDERS_MAC, NODE_MAC].concat());
    let [to, from] = [question, answer].map(|packet| packet.len() as u64 - 14);
    let asked = [packets + 1, bytes + to, connections];
    let expected = (asked, [answers + 1, answered + from]);
    assert_eq!(traffic(), expected);

    // None of IPv6, whose entries cannot be changed here.
    let last_seen = || {
        let mut all = node.world.all_flows().into_iter();
        let original = all.find(|entry| entry.kind == FlowKind::ORIGINAL);
        original.map(|entry| entry.last_seen)
    };
    for (packet, uplink) in [(open.question(b""), OUTSIDE), (open.answer(b""), INSIDE)] {
        // As if no packet had come for two seconds.
        let age = |entry: &mut FlowEntry<V4>| entry.last_seen -= 2_000_000_000;
        node.world.change_flows(false, age);
        let old = last_seen();
        open.taken(&packet, uplink);
        assert!(last_seen() >= old.map(|old| old + 1_000_000_000));
    }
}

#[test]
fn without_xdp_tx_packets_are_redirected_to_the_interface_they_came_in_by() {
    let open = Open::new(*IPV4);
    open.node.ip("route replace BACKEND dev outside\n\
         neigh add BACKEND lladdr 02:00:00:00:00:09 dev outside nud permanent\n");
    let abilities = Abilities {
        returns: false,
        ..Abilities::ALL
    };
    open.permit(OUTSIDE, abilities);
    open.node.world.change_routes();
    open.node.record(FlowKind::ORIGINAL, OUTSIDE, 0);
    let there = open.taken(&open.question(b""), OUTSIDE);
    assert_eq!((there.verdict, there.src()), (REDIRECT, open.source));
}

#[rstest]
#[case::at_once_after_the_agents_new_epoch(|open: &Open| open.node.world.change_routes())]
#[case::without_an_agent_after_a_second(|_: &Open| {
    std::thread::sleep(std::time::Duration::from_millis(1100));
})]
fn a_changed_neighbour_is_used(#[case] wait: fn(&Open), #[values(*IPV4, *IPV6)] a: Addresses) {
    let open = Open::new(a);
    let there = open.taken(&open.question(b""), OUTSIDE);
    assert_eq!(there.packet[..6], PODS_MAC);
    open.node
        .ip("neigh replace BACKEND lladdr 02:00:00:00:00:77 dev inside nud permanent\n");
    wait(&open);
    // The first packet goes to the stack, which thereby sees that the neighbour is in use.
    let there = open.taken(&open.question(b""), OUTSIDE);
    assert_eq!(there.packet[..6], [2, 0, 0, 0, 0, 0x77]);
}

#[test]
fn xdp_takes_packets_up_to_the_route_mtu_with_a_hop_limit_above_one() {
    let open = Open::new(*IPV4);
    let fits = open.question(&[0; 1400 - 40]);
    assert_eq!(open.taken(&fits, OUTSIDE).verdict, REDIRECT);
    open.left(&open.question(&[0; 1401 - 40]), OUTSIDE);
    open.left(&with_hops(&open.question(b""), 1), OUTSIDE);
    let two = open.taken(&with_hops(&open.question(b""), 2), OUTSIDE);
    assert_eq!(hops(&two.packet), 1);
}

#[rstest]
// An older version has noted no choice in them.
#[case::without_choice(false, |entry: &mut FlowEntry<V4>| {
    if entry.kind != FlowKind::REPLY {
        entry.masquerade_port = Port::ANY;
    }
})]
#[case::of_a_flow_for_the_stack(false, |entry: &mut FlowEntry<V4>| {
    entry.flags |= FlowEntry::<V4>::NEEDS_STACK;
})]
#[case::half_written(true, |_: &mut FlowEntry<V4>| {})]
fn xdp_passes_packets_with_unfit_flow_entries_to_tc(
    #[case] is_torn: bool,
    #[case] change: fn(&mut FlowEntry<V4>),
) {
    let open = Open::new(*IPV4);
    let (question, answer) = (open.question(b""), open.answer(b""));
    open.taken(&question, OUTSIDE);
    open.taken(&answer, INSIDE);
    let world = &open.node.world;
    world.change_flows(is_torn, change);
    open.left(&question, OUTSIDE);
    open.left(&answer, INSIDE);
}

#[rstest]
#[case::no_neighbour(|open: &Open| open.node.ip("neigh del BACKEND dev inside\n"))]
#[case::no_route(|open: &Open| open.node.ip("route del BACKEND dev inside\n"))]
#[case::no_forwarding(|open: &Open| open.node.set(&[
    ("ipv4/conf/outside/forwarding", "0"),
    ("ipv6/conf/outside/forwarding", "0"),
]))]
#[case::not_permitted_in(|open: &Open| open.permit(OUTSIDE, Abilities {
    receives: false,
    ..Abilities::ALL
}))]
#[case::not_permitted_out(|open: &Open| open.permit(INSIDE, Abilities {
    sends: false,
    ..Abilities::ALL
}))]
#[case::to_this_node(|open: &Open| open.node.ip("addr add BACKEND dev lo\n"))]
fn xdp_passes_packets_without_a_usable_route_or_interface_to_tc(
    #[values(*IPV4, *IPV6)] a: Addresses,
    #[case] obstruct: fn(&Open),
) {
    let open = Open::new(a);
    let question = open.question(b"");
    open.taken(&question, OUTSIDE);
    obstruct(&open);
    open.node.world.change_routes();
    open.left(&question, OUTSIDE);
}
