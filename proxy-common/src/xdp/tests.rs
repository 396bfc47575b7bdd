// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests of what XDP takes by signals and age. By state and flags: `proxy-user/tests/fuzz`, whose
//! model says what it must not take.

use super::*;
use crate::V4;

const SECOND: u64 = 1_000_000_000;

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
fn replies_are_accounted_at_first_every_second_and_every_mebibyte() {
    // SAFETY: a plain value; every bit pattern is valid.
    let mut reply = unsafe { core::mem::zeroed::<FlowEntry<V4>>() };
    reply.state = FlowState::ESTABLISHED;
    (reply.sequence, reply.last_seen) = (1000, 5 * SECOND);
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
