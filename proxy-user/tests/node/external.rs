// SPDX-License-Identifier: Apache-2.0 OR MIT
//! External IPs: segments of unknown connections, connections of another proxy, and ping.

use etherparse::{NetSlice, PacketBuilder, SlicedPacket, TransportSlice};

use crate::{agent::eventually, objects::Service, repair::are_complete, world::World};

const EXTERNAL: &str = "198.51.100.1";

/// The service `cart` with an external IP.
fn cart() -> Service {
    Service::new("cart", "172.30.1.1").spec(|spec| spec.external_ips = Some(vec![EXTERNAL.into()]))
}

#[test]
fn a_segment_of_an_unknown_connection_to_an_external_ip_is_reset_and_not_sent_on() {
    let world = World::build();
    world.write("cart.yaml", cart());
    let mut uplink = world.add_tunnel("10.9.0.2");
    // The router at the uplink believes that the node has the address; the node routes it back.
    world.ip(&format!("route add {EXTERNAL}/32 dev tun0"));
    let agent = world.start(7);
    eventually("the settings are complete", &agent, || are_complete(&world));
    let mut sent = Vec::new();
    PacketBuilder::ipv4([10, 9, 0, 2], [198, 51, 100, 1], 64)
        .tcp(40000, 80, 1000, 65000)
        .ack(2000)
        .write(&mut sent, b"the middle of something")
        .expect("a packet");
    for _ in 0..5 {
        uplink.send(&sent).expect("sent");
    }
    for _ in 0..5 {
        let answer = uplink
            .receive(|packet| packet[0] >> 4 == 4)
            .unwrap_or_else(|error| panic!("{error}: {}", agent.log()));
        let answer = SlicedPacket::from_ip(&answer).expect("an IP packet");
        let (Some(NetSlice::Ipv4(ip)), Some(TransportSlice::Tcp(tcp))) =
            (&answer.net, &answer.transport)
        else {
            panic!("TCP over IPv4: {answer:?}")
        };
        assert_eq!(
            (ip.header().source(), ip.header().destination()),
            ([198, 51, 100, 1], [10, 9, 0, 2]),
            "nothing is sent on"
        );
        assert_eq!((tcp.source_port(), tcp.destination_port()), (80, 40000));
        assert!(tcp.rst() && !tcp.syn());
        assert_eq!(tcp.sequence_number(), 2000, "one that the sender accepts");
    }
    let more = uplink.receive(|packet| packet[0] >> 4 == 4);
    assert!(more.is_err(), "one answer for each: {more:?}");
}

#[test]
fn connections_of_another_proxy_to_an_external_ip_go_on() {
    let world = World::build();
    let rules = format!(
        "add table ip other
add chain ip other services {{ type nat hook prerouting priority dstnat; }}
add rule ip other services ip daddr {EXTERNAL} tcp dport 80 dnat to 10.40.1.20:8080
"
    );
    world.nft(&rules);
    let to = format!("{EXTERNAL}:80");
    let mut open = world.connect(&to).expect("the other serves");
    world.write("cart.yaml", cart());
    let agent = world.start(7);
    for line in ["beside", "and beside"] {
        assert_eq!(open.echo(line), line, "{}", agent.log());
    }
    agent.says(&["live on in nf_conntrack", "connections=1"]);
    world.nft("delete table ip other");
    assert_eq!(open.echo("by itself"), "by itself");
}

#[test]
fn services_answer_ping_only_with_answer_ping() {
    let world = World::build();
    world.write("cart.yaml", cart());
    let pings = |address: &str| {
        let words = [
            "-n", "-c", "2", "-i", "0.2", "-W", "2", "-s", "200", address,
        ];
        world.client().feed("ping", &words, "").is_ok()
    };
    let both = ["172.30.1.1", EXTERNAL];
    let agent = world.start(7);
    assert_eq!(both.map(pings), [false; 2]);
    assert!(agent.stop().success());
    let agent = world.start_configured(7, "portolan: {answerPing: true}\n");
    assert_eq!(both.map(pings), [true; 2], "{}", agent.log());
    assert!(!pings("172.30.1.9"), "no service has it");
    let metric = "portolan_packets_total{outcome=\"echo_answered\"}";
    eventually("all are counted", &agent, || {
        agent.metric(metric) == Some(4)
    });
    assert!(agent.stop().success());
    // Once switched off, ping is no longer answered.
    let agent = world.start(7);
    assert_eq!(both.map(pings), [false; 2], "{}", agent.log());
}
