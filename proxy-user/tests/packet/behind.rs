// SPDX-License-Identifier: Apache-2.0 OR MIT
//! While programs over new maps take over, they run behind those over the old ones: what these have
//! served is not served again, and flows avoid its tuples.

use proxy_common::{Protocol, maps};
use rstest::rstest;

use crate::{
    packets::{Tcp, at, tcp, udp},
    service::{Addresses, IPV4, IPV6, Service},
    world::{Context, World},
};

/// The note of a packet that programs before these have served.
fn noted(note: u32) -> Context {
    Context {
        note,
        ..Context::default()
    }
}

#[rstest]
fn a_packet_that_programs_before_these_have_translated_is_not_translated_again(
    #[values(IPV4, IPV6)] a: Addresses,
) {
    let world = World::new(&[Service::web(a)]);
    let (client, service, backend) = a.ends();
    let served = world.ingress(&tcp(client, service, Tcp::Syn, b""));
    // As in old maps, the flow's packet has become one as of the direct conversation.
    let translated = tcp(client, backend, Tcp::Syn, b"");
    let other = world.ingress(&translated).src();
    assert_ne!(other, client, "or this shows nothing");
    world.store(maps::DRAINED, 0, maps::generation::BEHIND);
    let passed = world.ingress_by(&translated, noted(served.note));
    passed.expect_untouched(&translated);
    assert_eq!(passed.note, served.note, "for other programs behind");
    let direct = world.ingress_by(&translated, noted(0));
    assert_eq!(direct.src(), other);
    // A flow that begins later avoids the tuple.
    let second = tcp(at(a.pod, 9), backend, Tcp::Syn, b"");
    world.ingress_by(&second, noted(served.note));
    let flow = world.ingress(&tcp(at(a.pod, 9), service, Tcp::Syn, b""));
    assert_ne!(flow.src(), at(a.pod, 9));
}

#[test]
fn an_answer_that_programs_before_these_have_translated_is_none_of_the_nodes_own() {
    let a = IPV4;
    let world = World::new(&[Service::over(Protocol::UDP, a).at_node_port(30_080)]);
    let (client, node_port) = (a.outside_client(), at(a.node, 30_080));
    let question = world.forward(&udp(client, node_port, b"?"));
    let answer = udp(a.endpoint(), question.src(), b"!");
    let served = world.egress(&world.ingress(&answer).packet);
    let entries = world.all_flows().len();
    world.store(maps::DRAINED, 0, maps::generation::BEHIND);
    let to_another = udp(node_port, at(a.outsider, 9), b"!");
    world.egress_by(&to_another, noted(served.note));
    assert_eq!(world.all_flows().len(), entries);
}
