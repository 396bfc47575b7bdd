// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests of what XDP takes: by state, signals, flags and age.

use super::*;
use crate::{
    BackendId, Port, ServiceId, V4,
    flow::{ClientInterface, Offload, SPARE},
};

const SECOND: u64 = 1_000_000_000;

fn entry(kind: FlowKind) -> FlowEntry<V4> {
    FlowEntry {
        check: 0,
        kind,
        flags: FlowEntry::<V4>::MASQUERADE,
        port: Port::from_host(8080),
        address: V4 {
            octets: [10, 0, 0, 2],
        },
        masquerade: V4 {
            octets: [192, 0, 2, 1],
        },
        client_port: Port::from_host(40_000),
        masquerade_port: Port::from_host(2000),
        service: ServiceId(1),
        backend: BackendId(1),
        generation: 1,
        interface: ClientInterface::SHARED,
        state: FlowState::ESTABLISHED,
        last_seen: 5 * SECOND,
        sequence: 1000,
        reuse: 0,
        slot: 0,
        offload: Offload::NONE,
        _pad: SPARE,
    }
}

const ACK: Signals = Signals(Signals::ACK);

#[test]
fn xdp_takes_only_datagrams_and_mid_connection_tcp_segments() {
    const PUSH: u8 = 8;
    assert!(takes(Protocol::TCP, ACK));
    assert!(takes(Protocol::TCP, Signals(Signals::ACK | PUSH)));
    assert!(takes(Protocol::UDP, Signals::NONE));
    for other in [Signals::SYN, Signals::FIN, Signals::RST] {
        assert!(!takes(Protocol::TCP, Signals(Signals::ACK | other)));
    }
    assert!(!takes(Protocol::TCP, Signals::NONE), "without ACK");
    assert!(!takes(Protocol::SCTP, ACK));
    assert!(!takes(Protocol::ICMP, Signals::NONE));
}

#[test]
fn xdp_takes_client_packets_of_established_flows_only() {
    let takes = |entry: &FlowEntry<V4>| takes_original(entry, Protocol::TCP, ACK, || false);
    let whole = entry(FlowKind::ORIGINAL);
    assert!(takes(&whole));
    for state in [
        FlowState::NEW,
        FlowState::ANSWERED,
        FlowState::ESTABLISHED.with(FlowState::CLIENT_FIN),
        FlowState::ESTABLISHED.with(FlowState::BACKEND_FIN),
        FlowState::ESTABLISHED.with(FlowState::RESET),
        FlowState::ESTABLISHED.with(FlowState::RENEWED),
    ] {
        assert!(!takes(&FlowEntry { state, ..whole }), "{state:?}");
    }
}

#[test]
fn xdp_takes_only_flows_with_both_translations_and_no_local_end() {
    for kind in [FlowKind::ORIGINAL, FlowKind::MASQUERADED_REPLY] {
        let takes = |entry: &FlowEntry<V4>| {
            if kind == FlowKind::ORIGINAL {
                takes_original(entry, Protocol::TCP, ACK, || true)
            } else {
                takes_reply(entry)
            }
        };
        let whole = entry(kind);
        assert!(takes(&whole));
        assert!(!takes(&FlowEntry {
            masquerade_port: Port::ANY,
            ..whole
        }));
        assert!(!takes(&FlowEntry {
            flags: whole.flags | FlowEntry::<V4>::NEEDS_STACK,
            ..whole
        }));
    }
    let reply = entry(FlowKind::MASQUERADED_REPLY);
    assert!(leads_to_client(&reply, ClientInterface::SHARED));
    assert!(!leads_to_client(&reply, ClientInterface::of_pod(7)));
    let flags = 0;
    let direct = FlowEntry {
        flags,
        ..entry(FlowKind::ORIGINAL)
    };
    assert!(!takes_original(&direct, Protocol::TCP, ACK, || true));
    assert!(
        !takes_reply(&entry(FlowKind::REPLY)),
        "egress translates it"
    );
    assert!(!takes_reply(&entry(FlowKind::UNTOUCHED)));
}

#[test]
fn a_datagram_to_a_backend_that_no_longer_serves_is_left_to_tc() {
    let original = entry(FlowKind::ORIGINAL);
    let takes = |serves| takes_original(&original, Protocol::UDP, Signals::NONE, || serves);
    assert!(takes(true));
    assert!(!takes(false));
}

#[test]
fn replies_are_accounted_at_first_every_second_and_every_mebibyte() {
    let reply = entry(FlowKind::MASQUERADED_REPLY);
    let due = |entry: &FlowEntry<V4>, number, now| is_due(entry, Protocol::TCP, ACK, number, now);
    assert!(!due(&reply, 1000, 5 * SECOND + SECOND - 1));
    assert!(due(&reply, 1000, 6 * SECOND));
    assert!(!due(&reply, 1000 + (1 << 20), 5 * SECOND));
    assert!(due(&reply, 1001 + (1 << 20), 5 * SECOND));
    let fresh = FlowEntry {
        state: FlowState::NEW,
        ..reply
    };
    assert!(due(&fresh, 1000, 5 * SECOND));
    assert!(!is_due(&reply, Protocol::UDP, Signals::NONE, 0, 5 * SECOND));
}

#[test]
fn replies_that_would_change_the_flows_state_are_left_to_tc() {
    let established = FlowState::ESTABLISHED;
    for protocol in [Protocol::TCP, Protocol::UDP] {
        assert!(is_settled(established, protocol));
        let closing = established.with(FlowState::CLIENT_FIN);
        assert!(!is_settled(closing, protocol), "it answers the FIN");
        assert!(is_settled(closing.with(FlowState::FIN_ANSWERED), protocol));
        assert!(!is_settled(FlowState::NEW, protocol));
        assert!(!is_settled(established.with(FlowState::RESET), protocol));
        assert!(!is_settled(established.with(FlowState::RENEWED), protocol));
    }
    assert!(is_settled(FlowState::ANSWERED, Protocol::UDP));
    assert!(!is_settled(FlowState::ANSWERED, Protocol::TCP));
}

#[test]
fn a_cached_next_hop_is_trusted_for_a_second_in_its_epoch() {
    assert_eq!(freshness(true, 7, 7 + BELIEVED - 1), Freshness::Fresh);
    assert_eq!(freshness(true, 7, 7 + BELIEVED), Freshness::Aged);
    assert_eq!(freshness(false, 7, 8), Freshness::Other);
    // The clocks of two processors may differ by a tick.
    assert_eq!(freshness(true, 8, 7), Freshness::Aged);
}

#[test]
fn an_uplinks_abilities_decide_how_a_frame_leaves() {
    let mac = [2, 0x11, 0x22, 0x33, 0x44, 0x55];
    let word = |receives, sends, returns| {
        let abilities = Abilities {
            receives,
            sends,
            returns,
        };
        Uplink::new(mac, abilities)
    };
    let (high, low) = word(true, true, true).address();
    let bytes = [&high.to_ne_bytes()[..], &low.to_ne_bytes()[..]].concat();
    assert_eq!(bytes, mac);
    let all = Uplink::new(mac, Abilities::ALL);
    assert_eq!(exit(all, all, true), Exit::Return);
    assert_eq!(exit(all, all, false), Exit::Redirect);
    // A veth: its driver sends nothing back by itself.
    assert_eq!(
        exit(word(true, true, false), word(true, true, false), true),
        Exit::Redirect
    );
    assert_eq!(
        exit(word(true, false, true), word(true, false, true), true),
        Exit::Return
    );
    assert_eq!(exit(all, word(true, false, true), false), Exit::Stack);
    assert_eq!(exit(word(false, true, true), all, false), Exit::Stack);
    assert_eq!(exit(all, Uplink::default(), false), Exit::Stack);
    assert_eq!(
        exit(Uplink::default(), Uplink::default(), true),
        Exit::Stack
    );
}

#[test]
fn only_ports_of_frontends_and_of_masqueraded_flows_are_looked_up() {
    assert!(may_take(ports::NODE_PORT) && may_take(ports::FRONTEND) && may_take(ports::MASQUERADE));
    assert!(!may_take(ports::REPLY | ports::BACKEND | ports::DIRECT));
}
