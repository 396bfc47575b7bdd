// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Measures known flows that bypass the stack: ingress translates and masquerades a packet with one
//! look-up, and then redirects it to a pod's interface or by the node's routes; or XDP does.

use anyhow::Result;
use lab::node::netns::NetNs;
use linux::interfaces::PodLink;
use proxy_common::{
    FlowState,
    maps::{self, capacity, interface},
    xdp::{Abilities, Uplink},
};

use crate::{
    Row,
    bare::{Direction, Rotation},
    bench::{Bench, Figure, REPETITIONS},
    flow_table::{entries, flow_table},
    node::{BACKEND_PORT, BACKENDS, Ends, Kind, Node, SERVICE_PORT},
};

/// tc's verdict for a packet that is redirected.
const REDIRECT: u32 = 7;
/// The index of the interface that leads to every backend.
const OUT: u32 = 20;
/// The index of the interface that packets of test runs come in by.
const LOOPBACK: u32 = 1;

/// A node in its own network namespace, whose packets bypass the stack.
pub(crate) struct PastNode {
    netns: NetNs,
    node: Node,
}

impl PastNode {
    pub(crate) fn open(size: u32) -> Result<Self> {
        let netns = NetNs::new("node")?;
        netns.ip(&format!(
            "link set lo up\nlink add out index {OUT} type veth peer name far\nlink set out up\nlink set far up\n\
             addr add 192.168.9.2/24 dev out\naddr add fd99::2/64 nodad dev out\n\
             neigh add 192.168.9.1 lladdr 02:00:00:00:00:09 dev out nud permanent\n\
             neigh add fd99::1 lladdr 02:00:00:00:00:09 dev out nud permanent\n\
             route add 10.16.0.0/12 via 192.168.9.1\nroute add fd00::/16 via fd99::1\n"
        ))?;
        netns.set(&[("ipv6/conf/all/forwarding", "1"), ("ipv4/ip_forward", "1")])?;
        let node = Node::open(size, true)?;
        let word = interface::word(interface::REDIRECTS, 0);
        node.table::<u32, u64>(maps::INTERFACES)?
            .update(&LOOPBACK, &word)?;
        let uplinks = node.table::<u32, u64>(maps::UPLINKS)?;
        for (index, mac) in [(LOOPBACK, [0; 6]), (OUT, [2, 0, 0, 0, 0, 1])] {
            uplinks.update(&index, &Uplink::new(mac, Abilities::ALL).0)?;
        }
        Ok(Self { netns, node })
    }

    /// Measures a bare look-up, a hit that leaves by the node's routes, and one that goes to the
    /// interface of a pod; the last only if the map of pods can have all backends. And a hit at
    /// XDP, of a single service only, because of several XDP leaves some packets to tc.
    pub(crate) fn measure<A: Ends>(&mut self, size: u32) -> Result<Vec<Row>> {
        let services = Rotation::through(size);
        let backends = Rotation {
            base: BACKENDS,
            ..services
        };
        let Self { netns, node } = self;
        let hit = |bench: &Bench<'_, A>| {
            let direction = Direction::To(SERVICE_PORT);
            bench.real("ingress", services, direction, Kind::Ack, REPETITIONS)
        };
        let (bare, routes, xdp) = netns.enter(|| {
            let bench = Bench::<A>::new(node)?.expecting(REDIRECT);
            bench.run_once(services, Kind::Syn, size)?;
            bench.masquerade(backends, BACKEND_PORT, size)?;
            let bare = bench.bare_lookup(services)?;
            let routes = hit(&bench)?;
            let xdp = match size {
                1 => Some(at_xdp::<A>(node, &bench, services)?),
                _ => None,
            };
            Ok::<_, anyhow::Error>((bare, routes, xdp))
        })??;
        let most = Some(bare.0 + 45.0);
        let mut rows = vec![
            ("bare hit", bare, None),
            ("hit, by the routes", routes, most),
        ];
        rows.extend(xdp.map(|xdp| ("hit, at XDP", xdp, most)));
        if size > capacity::PODS as u32 {
            return Ok(rows);
        }
        let link = |n| PodLink {
            address: A::address(BACKENDS + n).into(),
            interface: OUT,
            mtu: 1500,
            destination: [2, 0, 0, 0, 0, 9],
            source: [2, 0, 0, 0, 0, 1],
        };
        let links: Vec<_> = (1..=size).map(link).collect();
        node.datapath.set_pods(&links)?;
        let pods = netns.enter(|| hit(&Bench::<A>::new(node)?.expecting(REDIRECT)))??;
        node.datapath.set_pods(&[])?;
        rows.push(("hit, into a pod", pods, most));
        Ok(rows)
    }
}

/// Measures hits at XDP, which takes only packets of flows that a backend has answered.
fn at_xdp<A: Ends>(node: &Node, bench: &Bench<'_, A>, services: Rotation) -> Result<Figure> {
    let flows = flow_table::<A>(node.pins.path())?;
    for (key, mut entry) in entries(&flows)? {
        entry.state = FlowState::ESTABLISHED;
        flows.update(&key, &entry.sealed(&key))?;
    }
    bench.xdp(services)
}
