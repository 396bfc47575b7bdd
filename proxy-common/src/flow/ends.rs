// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Computes the new source and destination of a flow's packet at once: at tc with `forwarding:
//! auto`, and at XDP.

use super::{FlowEntry, FlowKey, FlowKind};
use crate::Addr;

impl<A: Addr> FlowEntry<A> {
    /// Writes the new source and destination of a packet into `ends`. `self` is the entry found by
    /// the packet's `key`. Returns false if the entry does not have both.
    #[inline(always)]
    pub fn both_ends_into(&self, key: &FlowKey<A>, ends: &mut FlowKey<A>) -> bool {
        let (kind, protocol) = (self.kind, key.protocol);
        if kind != FlowKind::REPLY && self.is_masqueraded() {
            if !self.knows_masquerade() {
                return false;
            }
            let port = if kind == FlowKind::ORIGINAL {
                self.port
            } else {
                self.client_port
            };
            let (source, source_port) = (&self.masquerade, self.masquerade_port);
            ends.assign(source, source_port, &self.address, port, protocol);
            return true;
        }
        let (address, port, other) = (&self.address, self.port, self.client_port);
        match kind {
            FlowKind::ORIGINAL => ends.assign(&key.src, other, address, port, protocol),
            FlowKind::REPLY if !self.is_masqueraded() => {
                ends.assign(address, port, &key.dst, other, protocol);
            }
            _ => return false,
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        BackendId, Port, Protocol, ServiceId, V4,
        flow::{ClientInterface, FlowState, Offload, SPARE},
    };

    type End = ([u8; 4], u16);
    const CLIENT: End = ([192, 0, 2, 9], 40_000);
    const FRONTEND: End = ([10, 96, 0, 1], 80);
    const BACKEND: End = ([10, 40, 0, 7], 8080);
    const NODE: End = ([192, 0, 2, 1], 2000);
    /// The source port of the client's packets to the backend.
    const OTHER_PORT: u16 = 1234;

    fn address(end: End) -> V4 {
        V4 { octets: end.0 }
    }

    fn key(src: End, dst: End) -> FlowKey<V4> {
        let [from, to] = [src, dst].map(|end| Port::from_host(end.1));
        FlowKey::new(address(src), from, address(dst), to, Protocol::TCP)
    }

    fn entry(kind: FlowKind, to: End, client_port: u16, masquerade: Option<End>) -> FlowEntry<V4> {
        FlowEntry {
            check: 0,
            kind,
            flags: masquerade.map_or(0, |_| FlowEntry::<V4>::MASQUERADE),
            port: Port::from_host(to.1),
            address: address(to),
            masquerade: masquerade.map_or(V4::UNSPECIFIED, address),
            client_port: Port::from_host(client_port),
            masquerade_port: Port::from_host(masquerade.map_or(0, |end| end.1)),
            service: ServiceId(1),
            backend: BackendId(1),
            generation: 1,
            interface: ClientInterface::SHARED,
            state: FlowState::ESTABLISHED,
            last_seen: 0,
            sequence: 0,
            reuse: 0,
            slot: 0,
            offload: Offload::NONE,
            _pad: SPARE,
        }
    }

    fn ends(entry: &FlowEntry<V4>, src: End, dst: End) -> Option<FlowKey<V4>> {
        let mut ends = key(([0; 4], 0), ([0; 4], 0));
        entry
            .both_ends_into(&key(src, dst), &mut ends)
            .then_some(ends)
    }

    #[test]
    fn ends_of_an_unmasqueraded_flow_are_known_in_both_directions() {
        let there = entry(FlowKind::ORIGINAL, BACKEND, OTHER_PORT, None);
        let from = (CLIENT.0, OTHER_PORT);
        assert_eq!(ends(&there, CLIENT, FRONTEND), Some(key(from, BACKEND)));
        let back = entry(FlowKind::REPLY, FRONTEND, CLIENT.1, None);
        assert_eq!(ends(&back, BACKEND, from), Some(key(FRONTEND, CLIENT)));
    }

    #[test]
    fn ends_of_a_masqueraded_flow_are_known_once_its_port_is_chosen() {
        let there = entry(FlowKind::ORIGINAL, BACKEND, OTHER_PORT, Some(NODE));
        assert_eq!(ends(&there, CLIENT, FRONTEND), Some(key(NODE, BACKEND)));
        let back = entry(
            FlowKind::MASQUERADED_REPLY,
            CLIENT,
            CLIENT.1,
            Some(FRONTEND),
        );
        assert_eq!(ends(&back, BACKEND, NODE), Some(key(FRONTEND, CLIENT)));
        let early = entry(FlowKind::ORIGINAL, BACKEND, OTHER_PORT, Some((NODE.0, 0)));
        assert_eq!(ends(&early, CLIENT, FRONTEND), None);
    }

    #[test]
    fn entries_that_do_not_know_both_translations_give_no_ends() {
        let reply = entry(FlowKind::REPLY, FRONTEND, CLIENT.1, Some(NODE));
        assert_eq!(ends(&reply, BACKEND, CLIENT), None);
        let untouched = entry(FlowKind::UNTOUCHED, BACKEND, 1, None);
        assert_eq!(ends(&untouched, CLIENT, FRONTEND), None);
    }
}
