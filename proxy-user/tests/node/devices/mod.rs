// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Services through every kind of interface that clusters use: tunnels between nodes, uplinks,
//! interface pairs of pods. A client outside, a pod here and a pod of another node each send 300 kB
//! in both directions over TCP, and datagrams.

mod addresses;
mod kinds;
mod lane;
mod pair;
mod transfer;

use lab::node::{
    settings::Forwarding::{self, Auto, Stack},
    topology::NODE_PARAMETERS,
};
use proxy_common::Counter;
use rstest::rstest;

use self::kinds::{BOND, GENEVE, GRE, IPIP, Kind, NETKIT_L2, NETKIT_L3, VLAN, VXLAN, WIREGUARD};
use crate::world::World;

/// The most packets of a flow that may pass the stack although they are redirected: its first ones.
/// A transfer has at least three times as many, and one of its directions half of that.
const FEW: u64 = 15;

// Each start of an agent takes half a minute in a virtual machine, so the kinds that come from
// modules share one.
#[rstest]
#[case::vxlan(&[VXLAN])]
#[ignore = "needs the modules geneve, ipip, ip_gre, wireguard, 8021q, bonding: `cargo xtask kernels` runs it on every kernel"]
#[case::modules(&[GENEVE, IPIP, GRE, WIREGUARD, VLAN, BOND])]
#[ignore = "needs netkit: `cargo xtask kernels` runs it on Linux 6.7 and newer"]
#[case::netkit(&[NETKIT_L2, NETKIT_L3])]
fn services_are_reached_through_every_kind_of_interface(
    #[case] kinds: &[Kind],
    #[values(Stack, Auto)] forwarding: Forwarding,
) {
    let world = World::bare(&NODE_PARAMETERS);
    let lanes: Vec<_> = (1..)
        .zip(kinds)
        .map(|(number, kind)| {
            lane::Lane::build(world.node(), *kind, number)
                .unwrap_or_else(|error| panic!("{}: {error:#}", kind.name))
        })
        .collect();
    world.write("node.yaml", addresses::node_object());
    for (number, lane) in lanes.iter().enumerate() {
        world.write(&format!("lane-{number}.yaml"), lane.objects());
    }
    let (pods, forwarding_name) = (addresses::CLUSTER, forwarding.name());
    // Otherwise the sockets of pods would be translated, and the packet path would do nothing.
    let agent = world.start_by_packet(
        7,
        &format!("{{clusterCIDR: '{pods}', portolan: {{forwarding: {forwarding_name}}}}}"),
    );
    let masqueraded = || world.count(Counter::Masqueraded);
    let mut failures = Vec::new();
    for flow in lanes.iter().flat_map(lane::Lane::flows) {
        let before = masqueraded();
        let stack_before = forwarded(&world);
        if let Err(error) = transfer::stream(&flow) {
            failures.push(format!("{flow}, TCP: {error}"));
        }
        if let Err(error) = transfer::datagrams(&flow) {
            failures.push(format!("{flow}, UDP: {error}"));
        }
        let by_stack = forwarded(&world) - stack_before;
        if (by_stack > FEW) != (forwarding == Stack || flow.needs_stack) {
            failures.push(format!("{flow}: {by_stack} packets by the stack"));
        }
        let is_masqueraded = masqueraded() > before;
        if is_masqueraded != flow.is_masqueraded {
            failures.push(format!("{flow}: masqueraded: {is_masqueraded}"));
        }
    }
    assert!(failures.is_empty(), "{failures:#?}\n{}", agent.log());
}

/// The number of packets of both families that the node's stack has forwarded.
fn forwarded(world: &World) -> u64 {
    let counters = world.tool("cat", "/proc/net/snmp6");
    let of_v6 = counters
        .lines()
        .find_map(|line| line.strip_prefix("Ip6OutForwDatagrams"));
    let of_v6: u64 = of_v6.expect("it").trim().parse().expect("a number");
    world.forwarded() + of_v6
}
