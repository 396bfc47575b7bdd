// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The CNI plugin `bandwidth` together with the agent: every packet passes its limits. It limits
//! the packets to a pod by a qdisc at the node's end of the pod's interface, and those from the pod
//! by a filter there that sends them through an ifb device.

use serde_json::json;

use crate::{
    agent::Agent,
    attachments::{LEFT, LINES, is_past_the_stack, redirecting},
    two_uplinks::replies_leave_by_the_uplink_of_their_route_past_the_stack,
    world::World,
};

/// Path of the plugin in Debian's package containernetworking-plugins.
const PLUGIN: &str = "/usr/lib/cni/bandwidth";
/// Bits a second in each direction, and how many may pass at once, faster than the rate.
const RATE: u32 = 20_000_000;
const BURST: u32 = 640_000;

/// Limits the client's traffic, as a container runtime calls the plugin. `interface` is the node's
/// end of the pod's interface.
fn limit(world: &World, interface: &str) {
    let pod = world.client.path();
    let config = json!({
        "cniVersion": "0.4.0", "name": "limits", "type": "bandwidth",
        "ingressRate": RATE, "ingressBurst": BURST, "egressRate": RATE, "egressBurst": BURST,
        "prevResult": {
            "cniVersion": "0.4.0",
            "interfaces": [{"name": interface}, {"name": "eth0", "sandbox": pod}],
            "ips": [],
        },
    });
    let words = format!(
        "CNI_COMMAND=ADD CNI_CONTAINERID=client CNI_NETNS={pod} CNI_IFNAME=eth0 CNI_PATH=/usr/lib/cni {PLUGIN}"
    );
    let words: Vec<_> = words.split(' ').collect();
    let limited = world.node().feed("env", &words, &config.to_string());
    limited.expect("limited: `cargo xtask setup` installs the plugin");
}

#[test]
fn replies_leave_by_their_uplink_and_every_packet_passes_the_bandwidth_plugins_limits() {
    let world = World::serving();
    let agent = redirecting(&world);
    replies_leave_by_the_uplink_of_their_route_past_the_stack(&world, &agent);
    // Distributions set this: a packet from the ifb device must still have its sender's address.
    world.set("ipv4/conf/all/rp_filter", "1");
    let interface = world.client_interface();
    limit(&world, &interface);
    let devices = world.tool("ip", "-o link show type ifb");
    let ifb = devices.split(": ").nth(1).expect("the ifb device");
    let queued = |device: &str| -> u64 {
        let shown = world.tool("tc", &format!("-s qdisc show dev {device}"));
        let (_, limit) = shown.split_once("qdisc tbf").expect("the limit");
        let mut words = limit.split_whitespace().skip_while(|word| *word != "Sent");
        let packets = words.nth(3).expect("a number of packets");
        packets.parse().expect("a number")
    };
    let check = |agent: &Agent| {
        agent.eventually("it is seen", || agent.metric(LEFT) == Some(1));
        let both = || [&interface, ifb].map(queued);
        let before = both();
        assert!(!is_past_the_stack(&world));
        let grown = [0, 1].map(|device: usize| both()[device] - before[device]);
        assert!(grown.iter().all(|count| *count >= LINES), "{grown:?}");
    };
    check(&agent);
    // The next agent starts after the limit.
    assert!(agent.stop().success());
    check(&redirecting(&world));
}
