// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The model of the packet path: what must happen to a packet, by the project's documents. It
//! stores complete flows, not entries, and shares only `decide` with the programs. Where the
//! programs choose at random, it accepts the choice that it sees and checks that it was allowed.

mod begin;
mod direct;
mod echo;
mod egress;
mod flows;
mod icmp;
mod ingress;
mod life;
mod masquerade;
mod past;
mod reject;
mod rings;
mod select;
mod sums;
mod tuples;
pub(crate) mod wire;
mod xdp;

use std::{
    collections::{HashMap, HashSet},
    net::{IpAddr, SocketAddr},
};

use proxy_common::{Counter, EndpointSet, FrontendKind};

use crate::services::{Frontend, Interface, NodeSettings, Service};
pub(crate) use flows::{Flow, Key};
pub(crate) use life::Life;
pub(crate) use past::Exit;
use rings::Rings;
use wire::Tuple;
pub(crate) use xdp::AtXdp;

/// The verdicts of tc.
pub(crate) const NEXT: u32 = u32::MAX;
pub(crate) const SHOT: u32 = 2;
pub(crate) const REDIRECT: u32 = 7;
/// The mark that asks egress to masquerade.
pub(crate) const MARK: u32 = 1 << 14;

/// The result of a program's run on a packet.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) verdict: u32,
    pub(crate) frame: Vec<u8>,
    pub(crate) mark: u32,
    pub(crate) counter: Counter,
}

/// A packet as a program gets it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Given<'a> {
    pub(crate) interface: Interface,
    pub(crate) frame: &'a [u8],
    pub(crate) mark: u32,
    /// At egress: true if a process of this node has sent the packet.
    pub(crate) is_own: bool,
}

/// `Err` if the result differs from what must happen.
pub(crate) type Judgement = Result<(), String>;

/// The key of a datagram's fragments: source, destination, identification, protocol and the
/// client's interface.
type Datagram = (IpAddr, IpAddr, u32, u8, u32);

/// The state of the packet path.
pub(crate) struct Model {
    pub(crate) settings: NodeSettings,
    /// True if packets may leave past the stack.
    pub(crate) is_past: bool,
    services: HashMap<String, Live>,
    pub(crate) flows: HashMap<Key, Flow>,
    /// The flows by the tuples of their replies and of their masqueraded replies.
    replies: HashMap<Tuple, Key>,
    masqueraded: HashMap<Tuple, Key>,
    /// The state of datagrams from served node ports, by the tuple of the answers.
    pub(crate) untouched: HashMap<Tuple, flows::Untouched>,
    pub(crate) affinity: HashMap<(String, IpAddr), AffinityEntry>,
    fragments: HashMap<Datagram, (u16, u16)>,
    /// The reply tuples of connections to no service, by their slots in the map: a later one may
    /// overwrite an earlier one.
    recalled: HashMap<u32, Tuple>,
    rings: Rings,
    /// All ports that backends have ever had.
    backend_ports: HashSet<u16>,
    incarnations: u64,
    /// True once a full table has made the programs choose in a way that cannot be seen.
    pub(crate) is_lost: bool,
    /// The time in seconds.
    pub(crate) now: u64,
    /// The values that the counters must have.
    pub(crate) counts: HashMap<Counter, u64>,
}

/// A service, with the incarnation of each backend: it changes when the backend serves again after
/// it had stopped.
pub(crate) struct Live {
    service: Service,
    incarnations: HashMap<SocketAddr, u64>,
}

/// The backend of a client's session affinity.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct AffinityEntry {
    pub(crate) backend: SocketAddr,
    pub(crate) incarnation: u64,
    pub(crate) last_used: u64,
}

impl Model {
    /// `ring` is the size of each ring; the table holds eight times as many entries.
    pub(crate) fn new(ring: u64) -> Self {
        Self {
            settings: NodeSettings::default(),
            is_past: false,
            services: HashMap::new(),
            flows: HashMap::new(),
            replies: HashMap::new(),
            masqueraded: HashMap::new(),
            untouched: HashMap::new(),
            affinity: HashMap::new(),
            fragments: HashMap::new(),
            recalled: HashMap::new(),
            rings: Rings::new(ring),
            backend_ports: HashSet::new(),
            incarnations: 0,
            is_lost: false,
            now: 0,
            counts: HashMap::new(),
        }
    }
    /// Adds or changes a service.
    pub(crate) fn apply(&mut self, service: &Service) {
        let mut before = self
            .services
            .remove(&service.name)
            // With another protocol it is another service port.
            .filter(|live| live.service.protocol == service.protocol)
            .map(|live| live.incarnations)
            .unwrap_or_default();
        let mut incarnations = HashMap::new();
        for backend in &service.backends {
            self.backend_ports.insert(backend.at.port());
            self.incarnations += 1;
            let incarnation = before.remove(&backend.at).unwrap_or(self.incarnations);
            incarnations.insert(backend.at, incarnation);
        }
        let live = Live {
            service: service.clone(),
            incarnations,
        };
        self.services.insert(service.name.clone(), live);
    }
    pub(crate) fn remove(&mut self, name: &str) {
        self.services.remove(name);
    }
    /// Adds ports that the maps already know when a sequence begins.
    pub(crate) fn knows_ports(&mut self, backends: &HashSet<u16>) {
        self.backend_ports.extend(backends);
    }
    /// Whether a backend of a service still serves in this incarnation.
    fn serves(&self, service: &str, backend: SocketAddr, incarnation: u64) -> bool {
        self.services
            .get(service)
            .is_some_and(|live| live.incarnations.get(&backend) == Some(&incarnation))
    }
    /// The frontend of a destination: its own one, or else the node port's.
    fn frontend(&self, to: SocketAddr, protocol: u8) -> Option<(&Live, &Frontend)> {
        let all = || {
            let services = self.services.values();
            services
                .filter(|live| live.service.protocol == protocol)
                .flat_map(|live| live.service.frontends.iter().map(move |one| (live, one)))
        };
        let is_node_port = |one: &Frontend| one.kind == FrontendKind::NodePort;
        let own = all().find(|(_, one)| !is_node_port(one) && one.at == to);
        own.or_else(|| {
            let served = to.ip() == crate::services::node(to.is_ipv6());
            all().find(|(_, one)| {
                served
                    && is_node_port(one)
                    && one.at.port() == to.port()
                    && one.at.is_ipv6() == to.is_ipv6()
            })
        })
    }
    /// Whether the address is the cluster IP of a service.
    fn is_cluster_ip(&self, address: IpAddr) -> bool {
        self.services.values().any(|live| {
            let frontends = &live.service.frontends;
            frontends
                .iter()
                .any(|one| one.kind == FrontendKind::ClusterIp && one.at.ip() == address)
        })
    }
    /// The interface in the keys of flows: 0 for one that many clients share.
    fn client_interface(interface: Interface) -> u32 {
        match interface {
            Interface::Uplink => 0,
            pod => pod.index(),
        }
    }
    /// Whether the frame is for this node.
    fn is_for_this_node(given: &Given<'_>) -> bool {
        // At a bridge's port, frames are addressed to the bridge or to a neighbour.
        given.frame[..6] == given.interface.mac() || given.interface.is_bridge_port()
    }
}

impl Live {
    /// The backends of a set.
    fn in_set(&self, set: EndpointSet, v6: bool) -> Vec<SocketAddr> {
        let backends = self.service.backends.iter();
        backends
            .filter(|backend| backend.sets.intersects(set) && backend.at.is_ipv6() == v6)
            .map(|backend| backend.at)
            .collect()
    }
}

/// Checks that a packet passes with these bytes and this mark, and is counted by one of these
/// counters.
fn passes(seen: &Seen, frame: &[u8], mark: u32, counters: &[Counter]) -> Judgement {
    if seen.verdict != NEXT {
        return Err(format!(
            "it must pass and be counted as {counters:?}, but the verdict is {} ({:?})",
            seen.verdict, seen.counter
        ));
    }
    counted(seen, counters)?;
    if !wire::same(frame, &seen.frame) {
        return Err(format!(
            "it must go on as\n  {}\nbut is\n  {}",
            hex(frame),
            hex(&seen.frame)
        ));
    }
    if seen.mark != mark {
        return Err(format!(
            "its mark must be {mark:#x} but is {:#x}",
            seen.mark
        ));
    }
    Ok(())
}

fn counted(seen: &Seen, counters: &[Counter]) -> Judgement {
    if counters.contains(&seen.counter) {
        return Ok(());
    }
    Err(format!(
        "it must be counted as {counters:?} but is {:?}",
        seen.counter
    ))
}

/// Checks that the packet is dropped for this reason.
fn dropped(seen: &Seen, counter: Counter) -> Judgement {
    if (seen.verdict, seen.counter) == (SHOT, counter) {
        return Ok(());
    }
    Err(format!(
        "it must be dropped as {counter:?}, but the verdict is {} ({:?})",
        seen.verdict, seen.counter
    ))
}

fn hex(bytes: &[u8]) -> String {
    let words = bytes
        .chunks(2)
        .map(|pair| pair.iter().map(|byte| format!("{byte:02x}")).collect());
    words.collect::<Vec<String>>().join(" ")
}
