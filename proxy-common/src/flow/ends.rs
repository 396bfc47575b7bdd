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
