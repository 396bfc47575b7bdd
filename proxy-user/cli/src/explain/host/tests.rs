// SPDX-License-Identifier: Apache-2.0 OR MIT

use datapath::ChainMember;

use super::*;
use crate::check::finding::{
    Level::{self, Differs, InTheWay, Note},
    code_of,
};

const PORT: u32 = 7;

fn address(text: &str) -> SocketAddr {
    text.parse().expect("an address")
}

fn place(index: u32) -> HookedInterface {
    let state = HookState {
        ours: true,
        ..HookState::default()
    };
    HookedInterface {
        index,
        stack_index: index,
        link: LinkFacts {
            name: format!("pod{index}"),
            mtu: 1500,
            up: true,
            carrier: true,
            ..LinkFacts::default()
        },
        hooks: [state.clone(), state],
        ..HookedInterface::default()
    }
}

fn leaves(interface: u32) -> Routed {
    Routed::Leaves {
        interface,
        neighbour: [10, 0, 0, 9].into(),
        mtu: None,
    }
}

fn endpoint() -> Endpoint {
    Endpoint {
        address: address("10.0.0.9:80"),
        asked_for: false,
        routed: leaves(9),
        outgoing: Some(place(9)),
        mtu: Some(1500),
        silent: None,
        masqueraded: false,
        deaf: None,
    }
}

#[test]
fn an_endpoint_behind_a_next_hop_is_beyond_this_node() {
    assert!(!endpoint().is_beyond());
    let other = Endpoint {
        address: address("10.0.1.9:80"),
        ..endpoint()
    };
    assert!(other.is_beyond());
}

/// Returns facts about a host that lets every packet pass.
fn host() -> Host {
    Host {
        incoming: Some(place(PORT)),
        to_client: Some(leaves(PORT)),
        endpoints: vec![endpoint()],
        ..Host::default()
    }
}

/// Checks that the host has exactly one finding, with this level, whose text contains `words`.
#[track_caller]
fn finds(host: &Host, level: Level, words: &str) {
    let found = findings(host);
    let [one] = &found[..] else {
        panic!("one finding: {found:#?}")
    };
    let said = format!("{}: {}", one.finding.about, one.finding.found);
    assert!(one.finding.level == level && said.contains(words), "{said}");
    assert!(one.page.starts_with("docs/"));
}

#[test]
fn a_host_that_blocks_nothing_has_no_findings() {
    assert_eq!(findings(&host()), []);
    assert_eq!(code_of([].into_iter()), 0);
}

#[test]
fn a_missing_program_is_a_finding_only_on_the_packets_path() {
    let mut one = host();
    one.incoming.as_mut().expect("it").hooks[1].ours = false;
    finds(
        &one,
        InTheWay,
        "attached at egress of this interface of the client",
    );
    one.by_socket = true;
    assert_eq!(findings(&one), [], "a socket hook has translated it");
    one.missing_socket_hooks = vec!["connect_v4"];
    finds(&one, InTheWay, "not attached: connect_v4");

    let mut one = host();
    let outgoing = one.endpoints[0].outgoing.as_mut().expect("it");
    outgoing.hooks[0].ours = false;
    assert_eq!(findings(&one), [], "nothing is masqueraded there");
    one.endpoints[0].masqueraded = true;
    finds(
        &one,
        InTheWay,
        "attached at ingress of this interface of an endpoint",
    );
}

#[test]
fn foreign_programs_on_the_path_are_findings_with_their_position() {
    let mut one = host();
    let police = || ChainMember {
        name: "program 4 (police)".into(),
        program: Some(4),
    };
    one.incoming.as_mut().expect("it").hooks[0].before = vec![police()];
    finds(
        &one,
        Differs,
        "program 4 (police) runs before portolan's at ingress",
    );
    for (verdict, level, words) in [
        (ForeignVerdict::Next, Note, "passes this packet on"),
        (ForeignVerdict::Ends, InTheWay, "ends the chain"),
        (ForeignVerdict::Drops, InTheWay, "drops the packet"),
        (ForeignVerdict::Redirects, InTheWay, "elsewhere"),
    ] {
        one.incoming.as_mut().expect("it").verdicts = vec![verdict];
        finds(&one, level, words);
    }
    let mut one = host();
    one.incoming.as_mut().expect("it").hooks[0].behind = vec![police()];
    finds(
        &one,
        Note,
        "program 4 (police) runs behind portolan's at ingress",
    );
}

#[test]
fn rp_filter_is_a_finding_where_the_route_back_is_another() {
    let mut one = host();
    one.to_client = Some(leaves(8));
    finds(&one, Note, "leads through another one");
    one.rp_filter = 1;
    finds(
        &one,
        InTheWay,
        "net.ipv4.conf.pod7.rp_filter: is 1 (strict)",
    );
    one.redirected = true;
    finds(&one, Note, "leads through another one");
    let mut one = host();
    (one.incoming, one.to_client) = (None, Some(Routed::Ended("blackhole")));
    finds(
        &one,
        InTheWay,
        "no way back to it: a route of kind blackhole ends it",
    );
}

#[test]
fn disabled_ip_forwarding_is_a_finding_for_forwarded_packets_only() {
    let mut one = host();
    one.not_forwarding = Some("net.ipv4.ip_forward".into());
    one.endpoints[0].routed = Routed::Refused;
    finds(&one, InTheWay, "net.ipv4.ip_forward: is 0");
    one.endpoints[0].routed = Routed::Here;
    assert_eq!(findings(&one), [], "the endpoint is on this node");
    one.endpoints[0].routed = leaves(9);
    one.redirected = true;
    assert_eq!(findings(&one), [], "past the stack");
}

#[test]
fn one_unreachable_endpoint_of_two_is_a_finding_of_level_differs() {
    let bad = [
        (Routed::None, None, "there is no route"),
        (Routed::Ended("prohibit"), None, "of kind prohibit"),
        (Routed::Refused, None, "refuses to forward"),
        (leaves(9), Some("nobody listens"), "nobody listens"),
    ];
    for (routed, deaf, words) in bad {
        let mut one = host();
        one.endpoints[0] = Endpoint {
            routed,
            deaf: deaf.map(ToOwned::to_owned),
            ..endpoint()
        };
        finds(&one, InTheWay, words);
        one.endpoints.push(endpoint());
        finds(&one, Differs, words);
    }
    let mut one = host();
    one.endpoints[0].silent = Some(silence());
    finds(
        &one,
        InTheWay,
        "endpoint 10.0.0.9:80: nobody answers for 10.0.0.9 at pod9",
    );
    one.endpoints.push(endpoint());
    finds(&one, Differs, "nobody answers");
    let mut one = host();
    one.endpoints[0].mtu = Some(1400);
    finds(
        &one,
        Differs,
        "an MTU of 1400, the client's interface one of 1500",
    );
}

fn silence() -> Silence {
    Silence {
        neighbour: [10, 0, 0, 9].into(),
        interface: "pod9".into(),
        state: linux::NeighbourState::Failed,
        dead_ports: Vec::new(),
    }
}

#[test]
fn a_link_without_carrier_is_named_before_what_follows_from_it() {
    let mut one = host();
    one.endpoints[0].silent = Some(silence());
    one.endpoints[0].deaf = Some("no answer in 1 s".into());
    finds(&one, InTheWay, "nobody answers for 10.0.0.9");
    let link = |one: &mut Host, up| {
        let place = one.endpoints[0].outgoing.as_mut().expect("it");
        (place.link.up, place.link.carrier) = (up, false);
    };
    link(&mut one, true);
    finds(&one, InTheWay, "interface pod9 has no carrier");
    link(&mut one, false);
    finds(&one, InTheWay, "interface pod9 is down");
    let mut one = host();
    one.client_silence = Some(silence());
    finds(&one, InTheWay, "the client: nobody answers for 10.0.0.9");
    one.incoming.as_mut().expect("it").link.carrier = false;
    finds(&one, InTheWay, "the client: interface pod7 has no carrier");
}

#[test]
fn a_chain_that_drops_is_in_the_way_unless_something_accepts() {
    let chain = |rules, accepts_ours| Chain {
        name: "inet firewall forward".into(),
        drops: true,
        rules,
        accepts_ours,
    };
    let with = |chain: Chain| Host {
        chains: vec![chain],
        ..host()
    };
    finds(&with(chain(false, false)), InTheWay, "no rule that accepts");
    finds(
        &with(chain(true, false)),
        Differs,
        "unless one of its rules",
    );
    // Portolan's own rules accept only packets that portolan masquerades.
    finds(&with(chain(false, true)), InTheWay, "no rule that accepts");
    let mut one = with(chain(false, true));
    one.endpoints[0].masqueraded = true;
    assert_eq!(findings(&one), []);
    let mut one = with(chain(false, false));
    one.chains[0].drops = false;
    assert_eq!(findings(&one), []);
}

#[test]
fn connections_that_conntrack_sends_elsewhere_are_counted() {
    let mut one = host();
    one.tracked = vec![
        SentElsewhere {
            client: address("10.0.0.7:4"),
            to: address("10.96.0.1:53"),
            sent_to: address("10.0.0.8:53"),
        };
        2
    ];
    finds(&one, Differs, "holds 2 connections of this client");
}
