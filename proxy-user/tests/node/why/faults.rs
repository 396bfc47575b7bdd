// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How each fault is made, how its client suffers, and what helps, in the order of the page.

use lab::node::foreign::ChainPosition;

use super::{
    Fault,
    scene::{deaf, login, pay, ranged, sticky},
};
use crate::connection::Open;

const CART: &str = "172.30.1.1:80";
const PAY: &str = "172.30.1.2:80";
const STICKY: &str = "172.30.1.3:80";
const DEAF: &str = "172.30.1.4:80";
const LOGIN: &str = "10.40.0.1:30005";
const RANGED: &str = "203.0.113.6:80";
const CART_FROM_OUTSIDE: &str = "10.40.0.1:30001";
/// The frontend of a service that is gone.
const GONE: &str = "172.30.1.7:80";

/// Rules that kube-proxy's mode nftables leaves behind.
const CHAINS: &str = "add table ip kube-proxy
add chain ip kube-proxy services { type nat hook prerouting priority dstnat; }
add rule ip kube-proxy services ip daddr 172.30.1.7 tcp dport 80 dnat to 10.40.1.20:8080
";
/// A firewall that keeps ICMP errors from senders.
const NO_ICMP: &str = "add table ip silent
add chain ip silent out { type filter hook output priority 0; }
add rule ip silent out icmp type destination-unreachable drop
";

pub(super) const ALL: &[Fault] = &[
    Fault {
        title: "No pod is ready",
        happen: |scene, look| {
            look();
            scene.replace(pay(true));
        },
        is_well: |scene| scene.pod_reaches(PAY),
    },
    Fault {
        title: "The pod does not listen at targetPort",
        happen: |scene, look| {
            look();
            scene.replace(deaf(8080));
        },
        is_well: |scene| scene.pod_reaches(DEAF),
    },
    Fault {
        title: "externalTrafficPolicy Local, and no pod on this node",
        happen: |scene, look| {
            look();
            scene.replace(login("node-a"));
        },
        is_well: |scene| scene.outside_reaches(LOGIN),
    },
    Fault {
        title: "The client is in none of loadBalancerSourceRanges",
        happen: |scene, look| {
            look();
            scene.replace(ranged("198.51.100.0/24"));
        },
        is_well: |scene| scene.outside_reaches(RANGED),
    },
    Fault {
        title: "Docker has set the policy of FORWARD to DROP",
        happen: |scene, look| {
            scene.world.tool("iptables-nft", "--policy FORWARD DROP");
            look();
            scene.world.tool("iptables-nft", "--policy FORWARD ACCEPT");
        },
        is_well: |scene| scene.outside_reaches(CART_FROM_OUTSIDE),
    },
    Fault {
        title: "rp_filter is strict, and the client comes in by another interface",
        happen: |scene, look| {
            let set = |value| scene.world.set("ipv4/conf/all/rp_filter", value);
            scene.route_outside_by("veth10");
            set("1");
            look();
            set("2");
            scene.route_outside_by("eth0");
        },
        is_well: |scene| scene.outside_reaches(CART_FROM_OUTSIDE),
    },
    Fault {
        title: "The node does not forward",
        happen: |scene, look| {
            let set = |value| scene.world.set("ipv4/ip_forward", value);
            set("0");
            look();
            set("1");
        },
        is_well: |scene| scene.pod_reaches(CART),
    },
    Fault {
        title: "The route to the pod is gone",
        happen: |scene, look| {
            scene.world.ip("route del 10.40.1.20/32");
            scene.world.ip("route add blackhole 10.40.1.20/32");
            look();
            scene.world.ip("route del blackhole 10.40.1.20/32");
            let server = scene.interface("veth20");
            scene
                .world
                .ip(&format!("route add 10.40.1.20/32 dev {server}"));
        },
        is_well: |scene| scene.pod_reaches(CART),
    },
    Fault {
        title: "The way takes smaller packets, and nobody tells the sender",
        happen: |scene, look| {
            let server = scene.interface("veth20");
            scene.world.nft(NO_ICMP);
            scene.world.ip(&format!("link set {server} mtu 1300"));
            look();
            scene.world.ip(&format!("link set {server} mtu 1500"));
            scene.world.nft("delete table ip silent\n");
        },
        is_well: |scene| {
            let open = Open::connect(scene.world.client(), CART);
            let mut open = open.expect("small packets pass");
            let line = "x".repeat(8000);
            open.echo(&line) == line
        },
    },
    Fault {
        title: "Another eBPF program takes the packets",
        happen: |scene, look| {
            let client = scene.interface("veth10");
            let foreign = scene.world.foreign(client, false, ChainPosition::First);
            look();
            drop(foreign);
        },
        is_well: |scene| scene.pod_reaches(CART),
    },
    Fault {
        title: "Affinity holds the client to a pod that is dead",
        happen: |scene, look| {
            assert!(scene.pod_reaches(STICKY));
            scene.replace(sticky(&["10.40.1.21", "10.40.1.20"]));
            let dies = scene
                .world
                .server()
                .ip("address del 10.40.1.21/32 dev eth0\n");
            dies.expect("its address goes");
            look();
            scene.replace(sticky(&["10.40.1.20"]));
        },
        is_well: |scene| scene.pod_reaches(STICKY),
    },
    Fault {
        title: "kube-proxy's rules are left over",
        happen: |scene, look| {
            scene.world.nft(CHAINS);
            look();
            scene.world.nft("delete table ip kube-proxy\n");
        },
        // The service is gone, so it must not answer.
        is_well: |scene| !scene.pod_reaches(GONE),
    },
];
