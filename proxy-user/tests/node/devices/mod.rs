// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Services through every kind of interface that clusters use: tunnels between nodes, uplinks,
//! interface pairs of pods. A client outside, a pod here and a pod of another node each send 300 kB
//! in both directions over TCP, and datagrams.

mod kinds;
mod lane;

use std::{net::IpAddr, time::Duration};

use anyhow::{Result, bail};
use lab::{
    node::{
        settings::Forwarding::{self, Auto, Stack},
        topology::NODE_PARAMETERS,
    },
    traffic::{clients::Client, probe::Outcome, servers::Servers},
};
use proxy_common::Protocol;
use rstest::rstest;

use self::{
    kinds::{NETKIT, OF_MODULES, VXLAN, kinds},
    lane::{CLUSTER, Flow, Lane, of_node},
};
use crate::{objects::node_object, world::World};

/// The bytes that each end sends on a connection.
const LENGTH: usize = 300_000;
/// How often to try: neighbour resolution and path MTU discovery may lose the first datagrams.
const ATTEMPTS: usize = 4;

/// The most packets of a flow that may pass the stack although they are redirected: its first ones.
/// A transfer has at least three times as many, and one of its directions half of that.
const FEW: u64 = 15;

// Each start of an agent takes half a minute in a virtual machine, so some kinds share one.
#[rstest]
#[case::vxlan(VXLAN)]
#[ignore = "needs the modules geneve, ipip, ip_gre, wireguard, 8021q, bonding: `cargo xtask kernels` runs it on every kernel"]
#[case::modules(OF_MODULES)]
#[ignore = "needs netkit: `cargo xtask kernels` runs it on Linux 6.7 and newer"]
#[case::netkit(NETKIT)]
fn services_are_reached_through_every_kind_of_interface(
    #[case] lines: &str,
    #[values(Stack, Auto)] forwarding: Forwarding,
) {
    let world = World::bare(&NODE_PARAMETERS);
    let lanes: Vec<_> = (1..)
        .zip(kinds(lines))
        .map(|(number, kind)| {
            Lane::build(world.node(), kind, number)
                .unwrap_or_else(|error| panic!("{}: {error:#}", kind.name))
        })
        .collect();
    world.write("node.yaml", node_object(&of_node(), 7));
    let (objects, flows): (Vec<_>, Vec<_>) = lanes.iter().map(Lane::flows).unzip();
    world.write("lanes.yaml", objects.join("---\n"));
    let forwarding_name = forwarding.name();
    // Otherwise the sockets of pods would be translated, and the packet path would do nothing.
    let agent = world.start_by_packet(&format!(
        "{{clusterCIDR: '{CLUSTER}', portolan: {{forwarding: {forwarding_name}}}}}"
    ));
    let servers = Servers::start().expect("servers");
    let mut failures = Vec::new();
    for flow in flows.into_iter().flatten() {
        let stack_before = world.forwarded();
        for (protocol, length) in [(Protocol::TCP, LENGTH), (Protocol::UDP, large(&flow))] {
            let name = protocol.name();
            match transfer(&servers, &flow, protocol, length) {
                Err(error) => failures.push(format!("{}, {name}: {error:#}", flow.name)),
                Ok(seen) if (seen != flow.from) != flow.is_masqueraded => {
                    let flow = &flow.name;
                    failures.push(format!("{flow}, {name}: the client is seen as {seen}"));
                }
                Ok(_) => {}
            }
        }
        let by_stack = world.forwarded() - stack_before;
        if (by_stack > FEW) != (forwarding == Stack || flow.needs_stack) {
            failures.push(format!("{}: {by_stack} packets by the stack", flow.name));
        }
    }
    assert!(failures.is_empty(), "{failures:#?}\n{}", agent.log());
}

/// The length of a datagram that fits only the interfaces outside: an ICMP error makes the client
/// fragment it. A request has a line of up to 40 bytes before its data.
fn large(flow: &Flow<'_>) -> usize {
    let headers = if flow.service.is_ipv6() { 48 } else { 28 };
    1500 - headers - 40
}

/// Sends this many bytes through a service and back; returns the client as the backend sees it.
fn transfer(servers: &Servers, flow: &Flow<'_>, protocol: Protocol, size: usize) -> Result<IpAddr> {
    let _listening = servers.listen(flow.backend, protocol, flow.served_at)?;
    let client = Client {
        patience: Duration::from_secs(5),
        ..Client::new(flow.client, flow.from)
    };
    let mut outcome = Outcome::Silence;
    for _ in 0..ATTEMPTS {
        outcome = client.call(protocol, flow.service, size)?.outcome;
        if let Outcome::Answered(answer) = &outcome
            && answer.intact
            && answer.by == flow.served_at
            && answer.from == flow.service
        {
            return Ok(answer.seen.ip());
        }
    }
    bail!("{outcome:?}")
}
