// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How many answers the node gives by itself. What is answered, and how, stands in
//! tests/fuzz/cases.

use proxy_common::{Protocol, Settings};
use rstest::rstest;

use crate::{
    packets::{icmp, udp},
    service::{IPV4, Service},
    world::{REDIRECT, SHOT, World},
};

#[rstest]
fn answers_to_rejected_packets_and_to_pings_are_rate_limited(#[values(false, true)] pings: bool) {
    let a = *IPV4;
    let mut world = World::new(&[Service::over(Protocol::UDP, a).backed_by(&[])]);
    world.configure(|settings| settings.flags |= Settings::ANSWER_PING);
    let packet = match pings {
        true => icmp(a.outsider, a.cluster_ip, &[8, 0, 0, 0, 0, 7, 0, 1]),
        false => udp(a.client(), a.service(), b"?"),
    };
    // More than a burst on every CPU and what comes back meanwhile.
    let verdicts: Vec<_> = (0..6_000).map(|_| world.ingress_quietly(&packet)).collect();
    assert!(verdicts.contains(&REDIRECT) && verdicts.contains(&SHOT));
}
