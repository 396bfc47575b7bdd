// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Judges masquerade: the node's address and port with which a flow leaves. See "Masquerade" and "A
//! flow's life" in ARCHITECTURE.md.

use std::net::{IpAddr, SocketAddr};

use proxy_common::Counter;

use super::{
    Case, Flow, Judgement, Key, MARK, Model, SHOT,
    wire::{self, TCP, Tuple},
};
use crate::services::{Interface, node, uplink_address};

/// How many ports the programs try.
const TRIES: usize = 32;
/// Linux keeps a connection in TIME_WAIT for a minute. In seconds.
const TIME_WAIT: u64 = 60;

impl Model {
    /// Judges a packet that ingress has marked for masquerade.
    pub(super) fn masquerade(&mut self, case: &Case<'_>) -> Judgement {
        let (given, headers, seen) = (case.given, &case.headers, case.seen);
        let found = self.flow_of_reply(&headers.tuple.reversed());
        let (key, flow) = found.expect("the caller has found it");
        let flow = flow.clone();
        let address = address_of(given.interface, headers.is_v6());
        let source = match flow.masquerade {
            Some(source) => source,
            None if !self.has_room(case, key) => {
                return case.dropped(Counter::DroppedFlowTableFull);
            }
            None if seen.verdict == SHOT => {
                case.dropped(Counter::DroppedNoMasqueradePort)?;
                return self.check_exhausted(address, key, &flow);
            }
            None => self.check_choice(case, address, key, &flow)?,
        };
        self.remember_fragment(headers);
        let ends = (source, headers.tuple.dst);
        case.leaves(ends, given.mark & !MARK, Counter::Masqueraded)
    }

    /// Returns true if a flow's packet has room for a third entry. In a full table another flow
    /// goes, or this one; the packet may be dropped even so, and only the next one has room. With
    /// few ports, the flow may instead have taken over a port.
    fn has_room(&mut self, case: &Case<'_>, key: Key) -> bool {
        let v6 = case.headers.is_v6();
        if self.room(v6) > 0 {
            return true;
        }
        self.is_lost = self.settings.are_ports_scarce(TRIES);
        self.make_room(&case.headers.tuple, 0)
            && self.flows.contains_key(&key)
            && case.seen.counter != Counter::DroppedFlowTableFull
    }

    /// Checks the source that the programs have selected, and records it.
    fn check_choice(
        &mut self,
        case: &Case<'_>,
        address: IpAddr,
        key: Key,
        flow: &Flow,
    ) -> Result<SocketAddr, String> {
        let source = case.went()?.src;
        self.settings.expect_source(source, address)?;
        let ports = || self.settings.ports();
        let reply = |port| reply_of(flow, key, SocketAddr::new(address, port));
        let at = |port| self.holder(&reply(port));
        let timestamp = case.headers.timestamp;
        let rank = |port| self.rank(at(port)?, SocketAddr::new(address, port), timestamp);
        let is_free = |port| at(port).is_none() && !self.is_recalled(&reply(port));
        if self.is_recalled(&reply(source.port())) {
            fail!("{source} is others'");
        }
        let first = flow.port_before.unwrap_or(case.headers.tuple.src.port());
        if ports().contains(&first) && is_free(first) && source.port() != first {
            fail!("port {first} is free and comes first, not {source}");
        }
        if let Some(holder) = at(source.port()) {
            let are_all_tried = ports().len() <= TRIES;
            if are_all_tried && ports().any(is_free) {
                fail!("{source} is taken, and another port is free");
            }
            let own = rank(source.port());
            if own.is_none() {
                fail!("{source} is the source of a living flow");
            }
            let best = ports().filter_map(rank).min();
            if are_all_tried && own != best {
                fail!("{source} is of rank {own:?}, the best one of {best:?}");
            }
            self.remove_flow(holder);
        }
        self.masqueraded.insert(reply_of(flow, key, source), key);
        // What the answer to this packet acknowledges; a later fragment has payload there.
        let number = wire::word(case.given.frame, case.headers.l4 + 4).unwrap_or(0);
        if let Some(flow) = self.flows.get_mut(&key) {
            flow.masquerade = Some(source);
            // Replies that were recorded before the masquerade count too.
            flow.answer_noted = flow.reply_noted.map(|at| (at, number.wrapping_add(1)));
        }
        Ok(source)
    }

    /// Checks that the programs could not use any port.
    fn check_exhausted(&self, address: IpAddr, key: Key, flow: &Flow) -> Judgement {
        let usable = self.settings.ports().find(|port| {
            let source = SocketAddr::new(address, *port);
            let reply = reply_of(flow, key, source);
            let holder = self.holder(&reply);
            !self.is_recalled(&reply)
                && holder.is_none_or(|holder| self.rank(holder, source, 0).is_some())
        });
        usable.map_or(Ok(()), |port| Err(format!("port {port} can be used")))
    }

    /// Returns the flow whose replies to the node already have this tuple, if there is one.
    pub(super) fn holder(&self, reply: &Tuple) -> Option<Key> {
        // A client with an address of the node may have this tuple without masquerade.
        let held = self.masqueraded.get(reply);
        held.or(self.replies.get(reply)).copied()
    }

    /// Returns the order in which ports are taken over from other flows: 0 first, None for the port
    /// of a flow that must keep it. ARCHITECTURE.md orders half-open flows only by age. A client
    /// that has the tuple without masquerade keeps it. `timestamp` is that of the new flow's SYN.
    fn rank(&self, holder: Key, source: SocketAddr, timestamp: u32) -> Option<u32> {
        let flow = &self.flows[&holder];
        if flow.masquerade != Some(source) || !flow.life.gives_way() {
            return None;
        }
        let waits = flow.life.backend_first
            && !flow.life.reset
            && holder.tuple.protocol == TCP
            && self.now - flow.last_seen < TIME_WAIT;
        Some(match (flow.life.is_closed(), waits) {
            (true, false) => 0,
            (true, true) if is_later(timestamp, flow.life.timestamp) => 1,
            (true, true) => 2,
            (false, _) => 3,
        })
    }
}

/// Returns the tuple of the backend's replies if the flow leaves with this source.
fn reply_of(flow: &Flow, key: Key, source: SocketAddr) -> Tuple {
    Tuple::new(key.tuple.protocol, flow.backend, source)
}

/// Returns true if one timestamp is later than another; false if either is missing.
fn is_later(timestamp: u32, than: u32) -> bool {
    timestamp != 0 && than != 0 && timestamp.wrapping_sub(than).cast_signed() > 0
}

/// Returns the uplink's address for packets that leave there, else the node's InternalIP.
fn address_of(interface: Interface, v6: bool) -> IpAddr {
    match interface {
        Interface::Uplink => uplink_address(v6),
        _ => node(v6),
    }
}
