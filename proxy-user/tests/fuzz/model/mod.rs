// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A model of the packet path: what must happen to a packet, by the project's documents. It stores
//! complete flows, not map entries. It shares with the programs only `decide`, the hashes of the
//! selection and of map slots. Where the programs choose at random, it checks that their choice was
//! allowed.

mod answers;
mod begin;
mod egress;
mod flows;
mod icmp;
mod ingress;
pub(crate) mod life;
mod masquerade;
mod past;
mod room;
mod select;
mod sums;
pub(crate) mod wire;
mod xdp;

use std::{
    collections::{HashMap, HashSet},
    net::{IpAddr, SocketAddr},
};

use proxy_common::{Counter, EndpointSet, FrontendKind};

use crate::{
    context::{NEXT, REDIRECT, SHOT},
    packets::at,
    services::{Backend, Frontend, Interface, NodeSettings, Service, node},
};
pub(crate) use flows::{Flow, Key};
pub(crate) use life::Life;
use wire::{Headers, Tuple};

/// The bit of the packet mark that asks egress to masquerade.
pub(crate) const MARK: u32 = 1 << 14;

/// What a program made of a packet.
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

impl Seen {
    /// Returns a packet that goes on like this.
    pub(crate) fn passed(frame: Vec<u8>, mark: u32, counter: Counter) -> Self {
        Self {
            verdict: NEXT,
            frame,
            mark,
            counter,
        }
    }
    /// Checks that the packet passes with these bytes and mark, counted by one of these counters.
    fn passes(&self, frame: &[u8], mark: u32, counters: &[Counter]) -> Judgement {
        let (verdict, counter) = (self.verdict, self.counter);
        if verdict != NEXT {
            fail!("it must pass as {counters:?}, but the verdict is {verdict} ({counter:?})");
        }
        self.counted(counters)?;
        if !wire::same(frame, &self.frame) {
            let (wanted, seen) = (hex(frame), hex(&self.frame));
            fail!("it must go on as\n  {wanted}\nbut is\n  {seen}");
        }
        if self.mark != mark {
            fail!("its mark must be {mark:#x} but is {:#x}", self.mark);
        }
        Ok(())
    }
    fn counted(&self, counters: &[Counter]) -> Judgement {
        if !counters.contains(&self.counter) {
            let seen = self.counter;
            fail!("it must be counted as {counters:?} but is {seen:?}");
        }
        Ok(())
    }
}

/// Ok if the program did what it must do, else a text about the difference.
pub(crate) type Judgement = Result<(), String>;

/// The key of a datagram's fragments: source, destination, id, protocol, client's interface.
type Datagram = (IpAddr, IpAddr, u32, u8, u32);

/// The state of the model: services, flows and the rest that decides about the next packet.
#[derive(Default)]
pub(crate) struct Model {
    pub(crate) settings: NodeSettings,
    /// True if packets may leave past the kernel's network stack.
    pub(crate) is_past: bool,
    pub(crate) services: HashMap<String, Live>,
    pub(crate) flows: HashMap<Key, Flow>,
    /// The keys of flows by the tuple of their replies, and of their masqueraded replies.
    replies: HashMap<Tuple, Key>,
    masqueraded: HashMap<Tuple, Key>,
    /// Flows of datagrams from the node's own processes at node ports, by the tuple of the answers.
    pub(crate) untouched: HashMap<Tuple, flows::Untouched>,
    pub(crate) affinity: HashMap<(String, IpAddr), AffinityEntry>,
    fragments: HashMap<Datagram, (u16, u16)>,
    /// Reply tuples of connections to no service, by their slots in the map `direct`. A later
    /// connection may overwrite an earlier one.
    recalled: HashMap<u32, Tuple>,
    /// How many entries the flow table of each address family has space for.
    capacity: usize,
    /// The keys of flows that the programs have evicted at the last packet.
    pub(crate) evicted: HashSet<Key>,
    /// All ports that backends have ever had, also in earlier sequences.
    pub(crate) backend_ports: HashSet<u16>,
    incarnations: u64,
    /// True after the programs have chosen in a way that the model cannot see.
    pub(crate) is_lost: bool,
    /// The model's time in seconds. It begins at 1: 0 is long ago.
    pub(crate) now: u64,
}

/// A service, with the incarnation of each backend: a number that changes when the backend serves
/// again after it had been removed.
pub(crate) struct Live {
    service: Service,
    incarnations: HashMap<SocketAddr, u64>,
}

/// The backend to which session affinity sends a client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct AffinityEntry {
    pub(crate) backend: SocketAddr,
    pub(crate) incarnation: u64,
    pub(crate) last_used: u64,
}

impl Model {
    /// `capacity`: how many entries a flow table has space for.
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            capacity,
            now: 1,
            ..Self::default()
        }
    }
    /// Adds or replaces a service.
    pub(crate) fn apply(&mut self, service: &Service) {
        let mut before = self
            .services
            .remove(&service.name)
            // With another protocol it is a new service port, whose backends are new too.
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
    /// Returns true if a backend still serves the service in the same incarnation.
    fn serves(&self, service: &str, backend: SocketAddr, incarnation: u64) -> bool {
        self.services
            .get(service)
            .is_some_and(|live| live.incarnations.get(&backend) == Some(&incarnation))
    }
    /// Returns true if the flow's backend still serves the flow's service, or there is none.
    fn serves_still(&self, flow: &Flow) -> bool {
        let service = flow.service.as_ref();
        service.is_none_or(|name| self.serves(name, flow.backend, flow.incarnation))
    }
    /// Returns all frontends with their services.
    fn frontends(&self) -> impl Iterator<Item = (&Live, &Frontend)> {
        let services = self.services.values();
        services.flat_map(|live| live.service.frontends.iter().map(move |one| (live, one)))
    }
    /// Returns the service and frontend of a destination; a node port only if there is no other.
    fn frontend(&self, to: SocketAddr, protocol: u8) -> Option<(&Live, &Frontend)> {
        let all = || {
            let all = self.frontends();
            all.filter(move |(live, _)| live.service.protocol == protocol)
        };
        let is_node_port = |one: &Frontend| one.kind == FrontendKind::NodePort;
        let of_node = |one: &Frontend| at(node(one.at.is_ipv6()), one.at.port());
        let own = all().find(|(_, one)| !is_node_port(one) && one.at == to);
        own.or_else(|| all().find(|(_, one)| is_node_port(one) && of_node(one) == to))
    }
    /// Returns true if the address is the cluster IP of a service.
    fn is_cluster_ip(&self, address: IpAddr) -> bool {
        let is_it = |one: &Frontend| one.kind == FrontendKind::ClusterIp && one.at.ip() == address;
        self.frontends().any(|(_, one)| is_it(one))
    }
}

/// A packet at a program: as given, as read by the model, and as the program left it.
#[derive(Clone, Copy)]
pub(crate) struct Case<'a> {
    given: &'a Given<'a>,
    headers: Headers,
    seen: &'a Seen,
}

impl<'a> Case<'a> {
    fn new(given: &'a Given<'a>, headers: Headers, seen: &'a Seen) -> Self {
        Self {
            given,
            headers,
            seen,
        }
    }
    /// Returns the key of the packet's flow, if a client has sent it.
    fn key(&self) -> Key {
        Key::new(self.given.interface, self.headers.tuple)
    }
    /// Returns true if the frame is addressed to this node.
    fn is_for_this_node(&self) -> bool {
        let (interface, frame) = (self.given.interface, self.given.frame);
        // At a port of a bridge, frames are addressed to the bridge alone: see `place_interfaces`.
        frame[..6] == interface.mac() || interface.is_bridge_port()
    }
    /// Returns the type of an ICMP message.
    fn icmp_type(&self) -> Option<u8> {
        self.headers.icmp_type(self.given.frame)
    }
    /// Returns the given frame with another source and destination.
    fn with_ends(&self, src: SocketAddr, dst: SocketAddr) -> Vec<u8> {
        wire::with_ends(self.given.frame, &self.headers, src, dst)
    }
    /// Checks that the packet passes with this source, destination and mark.
    fn leaves(&self, ends: (SocketAddr, SocketAddr), mark: u32, counter: Counter) -> Judgement {
        let frame = self.with_ends(ends.0, ends.1);
        self.seen.passes(&frame, mark, &[counter])
    }
    /// Returns the tuple of the packet as the program left it.
    fn went(&self) -> Result<Tuple, String> {
        let headers = wire::read(&self.seen.frame).ok_or("what goes on is no packet")?;
        Ok(headers.tuple)
    }
    /// Checks that the packet passes as it is.
    fn unchanged(&self, counters: &[Counter]) -> Judgement {
        let Given { frame, mark, .. } = *self.given;
        self.seen.passes(frame, mark, counters)
    }
    fn untouched(&self) -> Judgement {
        self.unchanged(&[Counter::Untouched])
    }
    /// Checks that the packet is dropped and this counter counts it.
    fn dropped(&self, counter: Counter) -> Judgement {
        let (verdict, seen) = (self.seen.verdict, self.seen.counter);
        if (verdict, seen) != (SHOT, counter) {
            fail!("it must be dropped as {counter:?}, but the verdict is {verdict} ({seen:?})");
        }
        Ok(())
    }
}

impl Live {
    /// Returns the backends of a set in one address family, with those of weight 0.
    fn in_set(&self, set: EndpointSet, v6: bool) -> Vec<Backend> {
        let is_in = |one: &&Backend| one.sets.intersects(set) && one.at.is_ipv6() == v6;
        let backends = self.service.backends.iter().filter(is_in);
        backends.copied().collect()
    }
}

fn hex(bytes: &[u8]) -> String {
    let word = |pair: &[u8]| pair.iter().map(|byte| format!("{byte:02x}")).collect();
    bytes.chunks(2).map(word).collect::<Vec<String>>().join(" ")
}
