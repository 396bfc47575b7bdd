// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A flow's life: ARCHITECTURE.md, "A flow's life" and "A flow's entries".

use std::net::SocketAddr;

use proxy_common::flow::IdleTimes;

use super::{
    Model,
    rings::{Named, Place, Ring},
    wire::{ACK, FIN, Headers, RST, SCTP, SYN, TCP, Tuple, UDP},
};
use crate::services::Interface;

/// The original direction: the client's packets, and the interface that they come by.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(crate) struct Key {
    pub(crate) tuple: Tuple,
    pub(crate) interface: u32,
}

/// A flow.
#[derive(Clone, Debug)]
pub(crate) struct Flow {
    pub(crate) backend: SocketAddr,
    /// The client as ingress sends its packets on: its own address, and mostly its own port.
    pub(crate) source: SocketAddr,
    /// None for a conversation past every service.
    pub(crate) service: Option<String>,
    pub(crate) incarnation: u64,
    pub(crate) is_masqueraded: bool,
    /// The source that the backend sees, once a packet has left.
    pub(crate) masquerade: Option<SocketAddr>,
    /// The masquerade port of the flow before.
    pub(crate) port_before: Option<u16>,
    pub(crate) life: Life,
    pub(crate) last_seen: u64,
    pub(crate) place: Place,
}

/// What has been seen of a flow.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Life {
    pub(crate) answered: bool,
    pub(crate) acknowledged: bool,
    pub(crate) repeated: bool,
    pub(crate) client_fin: bool,
    pub(crate) backend_fin: bool,
    pub(crate) backend_first: bool,
    pub(crate) reset: bool,
    /// The number with which a client acknowledges the backend's SYN.
    pub(crate) next: u32,
}

/// As `portolan flows` names it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Phase {
    Unanswered,
    Answered,
    Established,
    ClosingByClient,
    ClosingByBackend,
    Closed,
}

impl Phase {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Unanswered => "unanswered",
            Self::Answered => "answered",
            Self::Established => "established",
            Self::ClosingByClient => "closing-by-client",
            Self::ClosingByBackend => "closing-by-backend",
            Self::Closed => "closed",
        }
    }
}

/// A datagram of the node's own from a served node port.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Untouched {
    pub(crate) is_repeated: bool,
    pub(crate) is_established: bool,
    pub(crate) last_seen: u64,
    pub(crate) place: Place,
}

impl Life {
    pub(crate) fn phase(&self) -> Phase {
        if self.reset || self.client_fin && self.backend_fin {
            Phase::Closed
        } else if self.client_fin {
            Phase::ClosingByClient
        } else if self.backend_fin {
            Phase::ClosingByBackend
        } else if self.acknowledged {
            Phase::Established
        } else if self.answered {
            Phase::Answered
        } else {
            Phase::Unanswered
        }
    }
    pub(crate) fn is_closed(&self) -> bool {
        self.phase() == Phase::Closed
    }
    pub(crate) fn is_closing(&self) -> bool {
        self.reset || self.client_fin || self.backend_fin
    }

    /// A packet of the client. The sequence numbers of RST and FIN are not asked yet; they would be here.
    fn client_sends(&mut self, headers: &Headers) {
        let (protocol, flags) = (headers.tuple.protocol, headers.flags);
        if flags & RST != 0 {
            self.reset = true;
            return;
        }
        if protocol != UDP && headers.begins() {
            self.repeated |= !self.answered;
            return;
        }
        if protocol == TCP && flags & (SYN | ACK | RST | FIN) == ACK {
            // A forged reset ends nothing.
            self.reset = false;
        }
        if protocol == TCP && flags & FIN != 0 {
            self.client_fin = true;
        }
        let proves = match protocol {
            UDP => true,
            TCP => {
                flags & (SYN | ACK) == ACK
                    && headers.acknowledgement.wrapping_sub(self.next) < 1 << 16
            }
            _ => flags & (SYN | ACK) == ACK,
        };
        if self.answered && !self.acknowledged && proves {
            self.acknowledged = true;
            self.repeated = false;
        }
    }
    /// A packet of the backend.
    fn backend_sends(&mut self, headers: &Headers) {
        let (protocol, flags) = (headers.tuple.protocol, headers.flags);
        let answers = flags & (SYN | ACK | RST) == SYN | ACK;
        if protocol == TCP && answers {
            self.next = headers.sequence.wrapping_add(1);
        }
        if flags & RST != 0 {
            self.reset = true;
        } else if protocol == TCP && flags & FIN != 0 {
            self.backend_first |= !self.client_fin;
            self.backend_fin = true;
        } else if protocol != TCP || answers {
            self.answered = true;
        }
    }
}

impl Flow {
    pub(crate) fn gives_way(&self) -> bool {
        !self.life.acknowledged || self.life.is_closed()
    }
    pub(crate) fn reply(&self, protocol: u8) -> Tuple {
        Tuple {
            protocol,
            src: self.backend,
            dst: self.source,
        }
    }
    pub(crate) fn masqueraded_reply(&self, protocol: u8) -> Option<Tuple> {
        Some(Tuple {
            protocol,
            src: self.backend,
            dst: self.masquerade?,
        })
    }
}

/// How long, in seconds, a flow may be idle.
pub(crate) fn limit(times: &IdleTimes, protocol: u8, phase: Phase) -> u64 {
    let seconds = match (protocol, phase) {
        (UDP, Phase::Established) => times.udp_stream,
        (UDP, _) => times.udp,
        (TCP, Phase::Established) => times.tcp_established,
        (TCP, Phase::ClosingByClient | Phase::ClosingByBackend) => times.tcp_close_wait,
        (TCP, Phase::Closed) => times.tcp_closed,
        (SCTP, Phase::Answered | Phase::Established) => times.sctp_established,
        _ => 120,
    };
    seconds.into()
}

impl Model {
    pub(crate) fn insert_flow(&mut self, key: Key, flow: Flow) {
        self.replies.insert(flow.reply(key.tuple.protocol), key);
        self.flows.insert(key, flow);
    }
    /// Removes a flow with all that belongs to it.
    pub(crate) fn remove_flow(&mut self, key: Key) -> Option<Flow> {
        let flow = self.flows.remove(&key)?;
        self.replies.remove(&flow.reply(key.tuple.protocol));
        if let Some(tuple) = flow.masqueraded_reply(key.tuple.protocol) {
            self.masqueraded.remove(&tuple);
        }
        Some(flow)
    }
    /// Whether a client's flow still leaves with this tuple.
    pub(crate) fn leaves_as(&self, interface: Interface, client: Tuple, left: Tuple) -> bool {
        let interface = Self::client_interface(interface);
        let key = Key {
            tuple: client,
            interface,
        };
        self.flows.get(&key).is_some_and(|flow| {
            let source = flow.masquerade.unwrap_or(flow.source);
            (source, flow.backend) == (left.src, left.dst)
        })
    }
    /// The flow of a packet of its client.
    pub(crate) fn flow_of_reply(&self, reply: &Tuple) -> Option<(Key, &Flow)> {
        let key = self.replies.get(reply)?;
        Some((*key, &self.flows[key]))
    }
    /// A client's packet of a flow has come.
    pub(crate) fn client_sent(&mut self, key: Key, headers: &Headers) {
        self.account(key, |life| life.client_sends(headers));
    }
    /// A backend's packet of a flow has come.
    pub(crate) fn backend_sent(&mut self, key: Key, headers: &Headers) {
        self.account(key, |life| life.backend_sends(headers));
    }
    fn account(&mut self, key: Key, change: impl FnOnce(&mut Life)) {
        let now = self.now;
        let Some(flow) = self.flows.get_mut(&key) else {
            return;
        };
        let was_closed = flow.life.is_closed();
        change(&mut flow.life);
        flow.last_seen = now;
        if flow.life.is_closed() && !was_closed {
            let place = self.push(Ring::Closed, Named::Flow(key));
            if let Some(flow) = self.flows.get_mut(&key) {
                flow.place = place;
            }
        }
    }
    /// Removes every flow that has been idle for too long.
    pub(crate) fn expire(&mut self, times: &IdleTimes) {
        let now = self.now;
        let idle: Vec<_> = self
            .flows
            .iter()
            .filter(|(key, flow)| {
                now - flow.last_seen > limit(times, key.tuple.protocol, flow.life.phase())
            })
            .map(|(key, _)| *key)
            .collect();
        for key in idle {
            self.remove_flow(key);
        }
        self.untouched.retain(|tuple, held| {
            let phase = match (held.is_established, held.is_repeated) {
                (true, _) => Phase::Established,
                (false, true) => Phase::Answered,
                (false, false) => Phase::Unanswered,
            };
            now - held.last_seen <= limit(times, tuple.protocol, phase)
        });
    }
}
