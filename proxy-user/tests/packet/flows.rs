// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which backends and ports flows get. How they begin and end stands in tests/fuzz/cases/flows.txt.

use std::collections::BTreeSet;

use proxy_common::Protocol;
use rstest::rstest;

use crate::{
    packets::{Tcp, at, tcp, udp},
    service::{Addresses, IPV4, IPV6, Service},
    world::World,
};

#[rstest]
fn without_affinity_every_backend_is_reached(#[values(IPV4, IPV6)] a: Addresses) {
    let backends = a.endpoints();
    let world = World::new(&[Service::web(a).backed_by(&backends)]);
    let reached: BTreeSet<_> = (0..64)
        .map(|n| {
            let packet = tcp(at(a.pod, 40_000 + n), a.service(), Tcp::Syn, b"");
            world.ingress(&packet).dst()
        })
        .collect();
    assert_eq!(reached, backends.into());
}

/// The answers would be taken for requests to that node port.
#[rstest]
fn a_flow_is_never_masqueraded_with_the_number_of_a_node_port(#[values(IPV4, IPV6)] a: Addresses) {
    let world = World::new(&[Service::over(Protocol::UDP, a).at_node_port(8444)]);
    let out = |port| world.forward(&udp(at(a.outsider, port), at(a.node, 8444), b"?"));
    for (own, is_kept) in [(8443, true), (8444, false)] {
        let source = out(own).src();
        assert_eq!((source.ip(), source.port() == own), (a.node, is_kept));
    }
}
