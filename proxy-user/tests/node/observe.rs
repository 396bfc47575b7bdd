// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The log line for each packet, the metrics, and a drop that only a real device provokes.

use std::{thread::sleep, time::Duration};

use config::runbooks::of_outcome;
use etherparse::PacketBuilder;
use nix::sys::signal::Signal;
use proxy_common::Counter;

use crate::{
    agent::{Agent, eventually},
    trace::Tracing,
    tunnel::Tunnel,
    world::World,
};

/// The SYN of a connection to a port of the service `cart`.
fn syn(from: [u8; 4], port: u16, data: &[u8]) -> Vec<u8> {
    let mut packet = Vec::new();
    PacketBuilder::ipv4(from, [172, 30, 1, 1], 64)
        .tcp(40000, port, 1000, 65000)
        .syn()
        .write(&mut packet, data)
        .expect("a packet");
    packet
}

#[test]
fn every_packet_of_a_client_behind_a_device_without_link_layer_is_logged() {
    let world = World::serving();
    let mut tunnel = world.add_tunnel("10.9.0.2");
    let agent = world.start_with(7, &["--log-packets"]);
    tunnel.send(&syn([10, 9, 0, 2], 80, &[])).expect("sent");
    for line in [
        "forwarded_new: TCP 10.9.0.2:40000 -> 172.30.1.1:80 at interface",
        "masqueraded: TCP 10.9.0.2:40000 -> 10.40.1.20:8080 at interface",
        "reply_translated: TCP 10.40.1.20:8080 -> 10.9.0.2:40000 at interface",
    ] {
        agent.says(&[line]);
    }
}

/// The reset that refuses a port would be too short for the checksum that the device is asked to
/// fill in.
pub(crate) fn a_packet_that_cannot_be_rewritten_is_dropped_and_named(world: &World, agent: &Agent) {
    let odd = world.node().enter(|| Tunnel::leaving_checksums("odd0"));
    let mut odd = odd.expect("enter the node").expect("a device");
    world.ip("link set odd0 up\nroute add 10.40.9.3/32 dev odd0");
    eventually("the device is served", agent, || {
        agent.metric("portolan_interfaces_attached") == Some(4)
    });
    let trace = Tracing::start(world, &["--verdict", "drop"]);
    // A virtio_net_hdr: the checksum covers the bytes from 100 on and is stored 16 bytes later.
    let mut packet = vec![1, 0, 0, 0, 0, 0, 100, 0, 16, 0];
    packet.extend(syn([10, 40, 9, 3], 81, &[0; 200]));
    odd.send(&packet).expect("sent");
    let reason = Counter::DroppedRewrite;
    let line = trace.wait("the drop", |line| line["outcome"] == reason.name());
    assert_eq!(line["reason"], reason.help().trim());
    assert_eq!(line["page"].as_str(), of_outcome(reason));
    assert_eq!(world.count(reason), 1);
    trace.end(Signal::SIGINT);
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
        "portolan_map_entries{map=\"affinity_pods\"}",
        "portolan_map_capacity{map=\"sock_buckets_v4\"}",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
    assert_eq!(agent.metrics("/proxyMode"), "ebpf");
}
