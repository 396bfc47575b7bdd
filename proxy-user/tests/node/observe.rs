// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The log line for each packet, the metrics, and a drop that only a real device provokes.

use std::{
    fs::File,
    io::{self, Write},
    os::fd::AsRawFd,
    thread::sleep,
    time::Duration,
};

use config::runbooks::of_outcome;
use etherparse::PacketBuilder;
use nix::sys::signal::Signal;
use proxy_common::Counter;

use crate::{
    agent::Agent,
    reads::EMPTY,
    trace::Tracing,
    world::{CART, World},
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

/// The agent logs every packet, also those of a device without a link layer.
pub(crate) fn every_packet_of_a_client_behind_a_tunnel_is_logged(world: &World, agent: &Agent) {
    let mut tunnel = tunnel(world, "tun0", 0);
    world.ip("address add 10.9.0.1/32 dev tun0\nlink set tun0 up\nroute add 10.9.0.2/32 dev tun0");
    wait_for_interfaces(agent, 4);
    let sent = tunnel.write_all(&syn([10, 9, 0, 2], 80, &[]));
    sent.expect("sent");
    for line in [
        "forwarded_new: TCP 10.9.0.2:40000 -> 172.30.1.1:80 at interface",
        "masqueraded: TCP 10.9.0.2:40000 -> 10.40.1.20:8080 at interface",
        "reply_translated: TCP 10.40.1.20:8080 -> 10.9.0.2:40000 at interface",
    ] {
        agent.says(&[line]);
    }
    drop(tunnel);
    wait_for_interfaces(agent, 3);
}

fn wait_for_interfaces(agent: &Agent, count: u64) {
    let is_served = || agent.metric("portolan_interfaces_attached") == Some(count);
    agent.eventually("all devices are served", is_served);
}

/// The reset that refuses a port would be too short for the checksum that is to be filled in.
pub(crate) fn a_packet_that_cannot_be_rewritten_is_dropped_and_named(world: &World, agent: &Agent) {
    // Its packets begin with a `virtio_net_hdr`, which can ask for a checksum to be filled in.
    let mut odd = tunnel(world, "odd0", libc::IFF_VNET_HDR);
    world.ip("link set odd0 up\nroute add 10.40.9.3/32 dev odd0");
    wait_for_interfaces(agent, 4);
    let trace = Tracing::start(world, "--verdict drop");
    // A virtio_net_hdr: the checksum covers the bytes from 100 on and is stored 16 bytes later.
    let mut packet = vec![1, 0, 0, 0, 0, 0, 100, 0, 16, 0];
    packet.extend(syn([10, 40, 9, 3], 81, &[0; 200]));
    odd.write_all(&packet).expect("sent");
    let reason = Counter::DroppedRewrite;
    let line = trace.wait("the drop", |line| line["outcome"] == reason.name());
    assert_eq!(line["reason"], reason.help().trim());
    assert_eq!(line["page"].as_str(), of_outcome(reason));
    assert_eq!(world.count(reason), 1);
    trace.end(Signal::SIGINT);
    drop(odd);
    wait_for_interfaces(agent, 3);
}

pub(crate) fn metrics_count_packets_changes_and_services_clients(world: &World, agent: &Agent) {
    // The agent reads the maps more often than this.
    sleep(Duration::from_millis(1500));
    let text = agent.metrics("/metrics");
    for line in include_str!("metrics.txt").lines() {
        assert!(text.contains(line), "{line}: {text}");
    }
    assert_eq!(agent.metrics("/proxyMode"), "ebpf");
    // The counters of services have begun with this scrape.
    assert!(!world.answers(EMPTY), "it is rejected");
    assert!(world.answers(CART));
    let text = agent.metrics("/metrics");
    for line in [
        "portolan_service_connections_total{service=\"shop/cart\"} 1\n",
        "portolan_service_endpoints_ready{service=\"shop/cart\",where=\"here\"} 1\n",
        "portolan_service_endpoints_ready{service=\"shop/empty\",where=\"elsewhere\"} 0\n",
        "portolan_service_refused_total{reason=\"rejected_no_endpoint\",service=\"shop/empty\"} 1\n",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
}

/// Makes a device of the node whose packets have no link-layer header, with this flag of the TUN
/// driver or 0. The file is its far end; the device exists until it is closed.
fn tunnel(world: &World, name: &str, flag: libc::c_int) -> File {
    let open = || File::options().read(true).write(true).open("/dev/net/tun");
    let file = world.node().enter(open).expect("enter the node");
    let file = file.expect("the driver");
    // SAFETY: a request of zeros is valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_TUN | libc::IFF_NO_PI | flag) as libc::c_short;
    // SAFETY: the request outlives the call.
    let made = unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, &raw mut request) };
    assert_eq!(made, 0, "{name}: {}", io::Error::last_os_error());
    file
}
