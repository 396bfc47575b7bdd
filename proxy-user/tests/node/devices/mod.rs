// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Services through every kind of interface that clusters use: tunnels between nodes, uplinks,
//! interface pairs of pods. A client outside, a pod here and a pod of another node each send 300 kB
//! in both directions over TCP, and datagrams.

mod addresses;
mod kinds;
mod lane;
mod pair;
mod transfer;

use std::path::Path;

use datapath::read::Reader;
use lab::node::{
    agent::{Agent, Manifests, Options},
    bpffs,
    cgroup::Cgroup,
    netns::NetNs,
    settings::{
        Forwarding::{self, Auto, Stack},
        SocketBalancing,
    },
    topology::NODE_PARAMETERS,
};
use proxy_common::Counter;
use rstest::rstest;

use self::kinds::{BOND, GENEVE, GRE, IPIP, Kind, NETKIT_L2, NETKIT_L3, VLAN, VXLAN, WIREGUARD};
use crate::world::{self, BINARY};

/// The largest number of packets that may pass the stack with `redirect`: the first ones of a
/// connection may. A transfer has three times as many at least, one of its directions half of that.
const FEW: u64 = 15;

// Each start of an agent takes half a minute in a virtual machine, so the kinds that come from
// modules share one.
#[rstest]
#[case::vxlan(&[VXLAN])]
#[ignore = "needs the modules geneve, ipip, ip_gre, wireguard, 8021q, bonding: `cargo xtask kernels` runs it on every kernel"]
#[case::modules(&[GENEVE, IPIP, GRE, WIREGUARD, VLAN, BOND])]
#[ignore = "needs netkit: `cargo xtask kernels` runs it on Linux 6.7 and newer"]
#[case::netkit(&[NETKIT_L2, NETKIT_L3])]
fn services_are_reached_through(
    #[case] kinds: &[Kind],
    #[values(Stack, Auto)] forwarding: Forwarding,
) {
    bpffs::prepare().expect("a BPF file system");
    let node = NetNs::new("node").expect("run as root");
    node.set(&NODE_PARAMETERS).expect("forwarding");
    node.ip("link set lo up\n").expect("loopback");
    let lanes: Vec<_> = (1..)
        .zip(kinds)
        .map(|(number, kind)| {
            lane::Lane::build(&node, *kind, number)
                .unwrap_or_else(|error| panic!("{}: {error:#}", kind.name))
        })
        .collect();
    let cgroup = Cgroup::new().expect("a cgroup");
    let cidrs = addresses::CLUSTER.map(|cidr| cidr.parse().expect("a range"));
    let options = Options {
        binary: Path::new(BINARY),
        node_name: "node-a",
        cluster_cidrs: &cidrs,
        config: &format!("{{portolan: {{forwarding: {}}}}}", forwarding.name()),
        // Otherwise the sockets of pods would be translated, and the packet path would do nothing.
        socket_balancing: SocketBalancing::Host,
        kubeconfig: None,
        cgroup_root: cgroup.path(),
    };
    let objects: String = lanes.iter().map(lane::Lane::objects).collect();
    let objects = addresses::node_object() + &objects;
    let mut agent = Agent::start(&node, &options, &Manifests::Text(&objects)).expect("an agent");
    if let Err(error) = agent.wait_for(1) {
        panic!("{error:#}: {:#?}", agent.log_tail(20));
    }
    let reader = Reader::open(agent.pin_dir()).expect("pinned maps");
    let masqueraded = || reader.counters().expect("counters")[Counter::Masqueraded as usize];
    let mut failures = Vec::new();
    for flow in lanes.iter().flat_map(lane::Lane::flows) {
        let before = masqueraded();
        let stack_before = forwarded(&node);
        if let Err(error) = transfer::stream(&flow) {
            failures.push(format!("{flow}, TCP: {error}"));
        }
        if let Err(error) = transfer::datagrams(&flow) {
            failures.push(format!("{flow}, UDP: {error}"));
        }
        let by_stack = forwarded(&node) - stack_before;
        if (by_stack > FEW) != (forwarding == Stack || flow.needs_stack) {
            failures.push(format!("{flow}: {by_stack} packets by the stack"));
        }
        let is_masqueraded = masqueraded() > before;
        if is_masqueraded != flow.is_masqueraded {
            failures.push(format!("{flow}: masqueraded: {is_masqueraded}"));
        }
    }
    let log = agent.log_tail(40);
    assert!(failures.is_empty(), "{failures:#?}\n{log:#?}");
}

/// The number of packets of both families that a node's stack has forwarded.
fn forwarded(node: &NetNs) -> u64 {
    let counters = node.feed("cat", &["/proc/net/snmp6"], "");
    let counters = counters.expect("the stack's counters");
    let of_v6 = counters
        .lines()
        .find_map(|line| line.strip_prefix("Ip6OutForwDatagrams"));
    let of_v6: u64 = of_v6.expect("it").trim().parse().expect("a number");
    world::forwarded(node) + of_v6
}
