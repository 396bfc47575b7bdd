// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests of what depends on the clock and on uplinks. What XDP takes: `proxy-user/tests/fuzz`,
//! whose model says what it must not take.

use super::*;

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
    let all = word(true, true, true);
    let (high, low) = all.address();
    let bytes = [&high.to_ne_bytes()[..], &low.to_ne_bytes()[..]].concat();
    assert_eq!(bytes, mac);
    // A veth: its driver sends nothing back by itself.
    let veth = word(true, true, false);
    let sends_nothing = word(true, false, true);
    for (ingress, egress, is_same, expected) in [
        (all, all, true, Exit::Return),
        (all, all, false, Exit::Redirect),
        (veth, veth, true, Exit::Redirect),
        (sends_nothing, sends_nothing, true, Exit::Return),
        (all, sends_nothing, false, Exit::Stack),
        (word(false, true, true), all, false, Exit::Stack),
        (all, Uplink::default(), false, Exit::Stack),
        (Uplink::default(), Uplink::default(), true, Exit::Stack),
    ] {
        let found = exit(ingress, egress, is_same);
        assert_eq!(found, expected, "{ingress:?} {egress:?}");
    }
}
