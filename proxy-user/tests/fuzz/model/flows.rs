// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How flows begin, change and end: see "A flow's life" and "A flow's entries" in ARCHITECTURE.md.

use std::net::SocketAddr;

use proxy_common::flow::{IdleTimes, Phase};

use super::{
    MARK, Model,
    life::Life,
    wire::{FIN, Headers, RST, SCTP, SYN, TCP, Tuple, UDP},
};
use crate::services::Interface;

/// The key of a flow: the tuple of the client's packets, and their interface (0 if many share it).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(crate) struct Key {
    pub(crate) tuple: Tuple,
    pub(crate) interface: u32,
}

impl Key {
    /// Returns the key of the flow of a client's packet.
    pub(crate) fn new(interface: Interface, tuple: Tuple) -> Self {
        let interface = match interface {
            Interface::Uplink => 0,
            pod => pod.index(),
        };
        Self { tuple, interface }
    }
    /// Returns true if the flow's client is behind this interface.
    pub(crate) fn is_behind(self, interface: Interface) -> bool {
        self == Self::new(interface, self.tuple)
    }
}

/// A flow as the model stores it.
#[derive(Clone, Debug)]
pub(crate) struct Flow {
    pub(crate) backend: SocketAddr,
    /// The source with which packets leave ingress: the client's address, mostly also its port.
    pub(crate) source: SocketAddr,
    /// The name of the service; None for a connection to no service.
    pub(crate) service: Option<String>,
    pub(crate) incarnation: u64,
    pub(crate) is_masqueraded: bool,
    /// The source that the backend sees; None until a packet has been masqueraded.
    pub(crate) masquerade: Option<SocketAddr>,
    /// The masquerade port of the previous flow with this key, which is tried first.
    pub(crate) port_before: Option<u16>,
    pub(crate) life: Life,
    pub(crate) last_seen: u64,
    /// For UDP: when it was last checked that the frontend still belongs to the service.
    pub(crate) checked: u64,
    /// When a reply was last recorded: at most once a second, and whenever it changes the state.
    /// None before the first reply.
    pub(crate) reply_noted: Option<u64>,
    /// With `redirect`: when a reply to the masquerade address was last recorded, and its number.
    pub(crate) answer_noted: Option<(u64, u32)>,
}

/// The flow of a datagram that a process of the node sends from a node port of a service.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Untouched {
    pub(crate) is_repeated: bool,
    pub(crate) is_established: bool,
    pub(crate) last_seen: u64,
}

impl Flow {
    /// Returns the flow that this packet begins, to a backend of no service yet.
    pub(crate) fn begun(now: u64, headers: &Headers, ends: (SocketAddr, SocketAddr)) -> Self {
        let (source, backend) = ends;
        Self {
            backend,
            source,
            service: None,
            incarnation: 0,
            is_masqueraded: false,
            masquerade: None,
            port_before: None,
            life: Life::begun_by(headers),
            last_seen: now,
            checked: now,
            reply_noted: None,
            answer_noted: None,
        }
    }
    pub(crate) fn reply(&self, protocol: u8) -> Tuple {
        Tuple::new(protocol, self.backend, self.source)
    }
    pub(crate) fn masqueraded_reply(&self, protocol: u8) -> Option<Tuple> {
        Some(Tuple::new(protocol, self.backend, self.masquerade?))
    }
    /// Returns the bit that ingress sets in the mark of the client's packets.
    pub(crate) const fn mark(&self) -> u32 {
        if self.is_masqueraded { MARK } else { 0 }
    }
}

/// Returns the idle time in seconds after which a flow is removed.
pub(crate) fn limit(times: &IdleTimes, protocol: u8, life: &Life) -> u64 {
    let seconds = limit_of(times, protocol, life.phase());
    if protocol == TCP && !life.is_closed() && life.awaits_answer_to_fin() {
        seconds.min(120)
    } else if life.data_sent && life.phase() == Phase::Established {
        seconds.min(300)
    } else {
        seconds
    }
}

fn limit_of(times: &IdleTimes, protocol: u8, phase: Phase) -> u64 {
    let seconds = match (protocol, phase) {
        (UDP, Phase::Established) => times.udp_stream,
        (UDP, _) => times.udp,
        (TCP, Phase::Established) => times.tcp_established,
        (TCP, Phase::ClosingByClient | Phase::ClosingByBackend) => times.tcp_close_wait,
        (TCP, Phase::Closed) => times.tcp_closed,
        (SCTP, Phase::Established) => times.sctp_established,
        _ => 120,
    };
    seconds.into()
}

impl Model {
    pub(crate) fn insert_flow(&mut self, key: Key, flow: Flow) {
        self.replies.insert(flow.reply(key.tuple.protocol), key);
        self.flows.insert(key, flow);
    }
    /// Removes a flow with all of its entries; returns the flow, None if it does not exist.
    pub(crate) fn remove_flow(&mut self, key: Key) -> Option<Flow> {
        let flow = self.flows.remove(&key)?;
        self.replies.remove(&flow.reply(key.tuple.protocol));
        if let Some(tuple) = flow.masqueraded_reply(key.tuple.protocol) {
            self.masqueraded.remove(&tuple);
        }
        Some(flow)
    }
    /// Returns true if the client's flow still leaves with the source and destination of `left`.
    pub(crate) fn leaves_as(&self, interface: Interface, client: Tuple, left: Tuple) -> bool {
        let key = Key::new(interface, client);
        self.flows.get(&key).is_some_and(|flow| {
            let source = flow.masquerade.unwrap_or(flow.source);
            (source, flow.backend) == (left.src, left.dst)
        })
    }
    /// Returns the flow whose backend sends replies with this tuple.
    pub(crate) fn flow_of_reply(&self, reply: &Tuple) -> Option<(Key, &Flow)> {
        let key = self.replies.get(reply)?;
        Some((*key, &self.flows[key]))
    }
    /// Records a client's packet of a flow.
    pub(crate) fn client_sent(&mut self, key: Key, headers: &Headers) {
        // At the interface of a single pod, only packets of that pod arrive.
        let is_trusted = key.interface != 0;
        self.account(key, |life| life.client_sends(headers, is_trusted));
    }
    /// Records a backend's packet of a flow, at most once a second unless it changes the state.
    pub(crate) fn backend_sent(&mut self, key: Key, headers: &Headers) {
        let now = self.now;
        let Some(flow) = self.flows.get_mut(&key) else {
            return;
        };
        flow.life.backend_acknowledges(headers);
        let noted = flow.reply_noted.replace(now);
        let changes = headers.flags & (FIN | RST | SYN) != 0 || noted.is_none();
        if changes || noted < Some(now) {
            self.account(key, |life| life.backend_sends(headers));
        }
    }
    /// Records a reply that XDP has taken and that does not change the state.
    pub(crate) fn reply_at_xdp(&mut self, key: Key, headers: &Headers) {
        let now = self.now;
        if let Some(flow) = self.flows.get_mut(&key) {
            flow.life.backend_acknowledges(headers);
            (flow.reply_noted, flow.last_seen) = (Some(now), now);
        }
    }
    fn account(&mut self, key: Key, change: impl FnOnce(&mut Life)) {
        let now = self.now;
        let Some(flow) = self.flows.get_mut(&key) else {
            return;
        };
        let had_fin = flow.life.client_fin;
        change(&mut flow.life);
        if flow.life.client_fin && !had_fin {
            // The next reply is recorded, however soon it comes.
            flow.reply_noted = flow.reply_noted.map(|_| 0);
            flow.answer_noted = flow.answer_noted.map(|(_, number)| (0, number));
        }
        flow.last_seen = now;
    }
    /// Records a packet of such a datagram flow, from the node's process or to it.
    pub(crate) fn touch_untouched(&mut self, tuple: Tuple, change: impl FnOnce(&mut Untouched)) {
        if let Some(held) = self.untouched.get_mut(&tuple) {
            change(held);
            held.last_seen = self.now;
        }
    }
    /// Removes every flow that has been idle for longer than its time.
    pub(crate) fn expire(&mut self, times: &IdleTimes) {
        let now = self.now;
        for (key, flow) in self.flows.clone() {
            if now - flow.last_seen > limit(times, key.tuple.protocol, &flow.life) {
                self.remove_flow(key);
            }
        }
        self.untouched.retain(|tuple, held| {
            let phase = match (held.is_established, held.is_repeated) {
                (true, _) => Phase::Established,
                (false, true) => Phase::Answered,
                (false, false) => Phase::Unanswered,
            };
            now - held.last_seen <= limit_of(times, tuple.protocol, phase)
        });
    }
}
