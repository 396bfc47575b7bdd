// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The log line for each packet, and the metrics.

use std::{thread::sleep, time::Duration};

use etherparse::{PacketBuilder, SlicedPacket, TransportSlice};

use crate::{agent::Agent, world::World};

#[test]
fn a_client_behind_a_device_without_link_layer_is_served_and_every_packet_logged() {
    let world = World::serving();
    let mut tunnel = world.add_tunnel("10.9.0.2");
    let agent = world.start_with(7, &["--log-packets"]);
    let mut asked = Vec::new();
    PacketBuilder::ipv4([10, 9, 0, 2], [172, 30, 1, 1], 64)
        .tcp(40000, 80, 1000, 65000)
        .syn()
        .write(&mut asked, &[])
        .expect("a packet");
    tunnel.send(&asked).expect("sent");
    let answer = tunnel
        .receive(|packet| packet[0] >> 4 == 4)
        .unwrap_or_else(|error| panic!("{error}: {}", agent.log()));
    let answer = SlicedPacket::from_ip(&answer).expect("an IP packet");
    let Some(etherparse::NetSlice::Ipv4(ip)) = &answer.net else {
        panic!("IPv4: {answer:?}")
    };
    let Some(TransportSlice::Tcp(tcp)) = &answer.transport else {
        panic!("TCP: {answer:?}")
    };
    assert_eq!(ip.header().source(), [172, 30, 1, 1]);
    assert_eq!(ip.header().destination(), [10, 9, 0, 2]);
    assert_eq!((tcp.source_port(), tcp.destination_port()), (80, 40000));
    assert!(tcp.syn() && tcp.ack(), "the pod accepts");
    assert_eq!(tcp.acknowledgment_number(), 1001);
    let expected = tcp.calc_checksum_ipv4(ip.header().source(), ip.header().destination());
    assert_eq!(tcp.checksum(), expected.expect("short enough"));
    for line in [
        "forwarded_new: TCP 10.9.0.2:40000 -> 172.30.1.1:80 at interface",
        "masqueraded: TCP 10.9.0.2:40000 -> 10.40.1.20:8080 at interface",
        "reply_translated: TCP 10.40.1.20:8080 -> 10.9.0.2:40000 at interface",
    ] {
        agent.says(&[line]);
    }
}

pub(crate) fn metrics_count_packets_and_changes(agent: &Agent) {
    // The agent reads the maps more often than this.
    sleep(Duration::from_millis(1500));
    let text = agent.metrics("/metrics");
    for line in [
        "portolan_services 4",
        "portolan_packets_total{outcome=\"socket_translated\"}",
        "portolan_map_entries{map=\"frontends_v4\"} 11",
        "portolan_map_capacity{map=\"frontends_v4\"} 131072",
        "kubeproxy_sync_proxy_rules_duration_seconds_count",
        "kubeproxy_sync_proxy_rules_no_local_endpoints_total{traffic_policy=\"external\",ip_family=\"IPv4\"} 1",
        "process_open_fds ",
        "kubeproxy_sync_proxy_rules_service_changes_total 4",
        "kubeproxy_proxy_healthz_total{code=\"200\"}",
        "portolan_watch_last_event_timestamp_seconds{kind=\"Service\"} 1",
        "portolan_services_failed 0",
        "portolan_source_failing 0",
        "portolan_interfaces_wanted 3",
        "portolan_interfaces_attached 3",
        "portolan_hooks_wanted 11",
        "portolan_hooks_attached 11",
        "portolan_map_entries{map=\"flows_v4\"}",
        "portolan_map_entries{map=\"names\"} 4",
        "portolan_map_entries{map=\"sockets_v6\"} 0",
        "portolan_map_entries{map=\"affinity_pods\"} 1",
        "portolan_map_capacity{map=\"sock_buckets_v4\"}",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
    assert_eq!(agent.metrics("/proxyMode"), "ebpf");
}
