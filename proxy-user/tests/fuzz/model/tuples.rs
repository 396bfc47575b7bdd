// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which tuples a new flow may have: no two living flows have the same tuple.

use std::net::SocketAddr;

use super::{
    Key, Model,
    begin::PORT_TRIES,
    wire::{Tuple, UDP},
};
use crate::node;

impl Model {
    /// Returns true if a client may use its own port to a backend: neither a living flow nor a
    /// connection to no service has that tuple.
    pub(crate) fn is_free(&self, key: Key, backend: SocketAddr, client: SocketAddr) -> bool {
        let reply = Tuple {
            protocol: key.tuple.protocol,
            src: backend,
            dst: client,
        };
        !self.is_recalled(reply) && self.is_free_for(key, backend, client)
    }
    /// Returns true if a connection to no service has begun whose replies have this tuple.
    pub(crate) fn is_recalled(&self, reply: Tuple) -> bool {
        reply.protocol != UDP && self.recalled.get(&node::direct(reply)) == Some(&reply)
    }
    pub(crate) fn is_free_for(&self, key: Key, backend: SocketAddr, source: SocketAddr) -> bool {
        let reply = Tuple {
            protocol: key.tuple.protocol,
            src: backend,
            dst: source,
        };
        // The masquerade port of a flow is in use like a client's own port.
        let is_masqueraded = self.masqueraded.contains_key(&reply);
        let holder = self.flow_of_reply(&reply);
        !is_masqueraded && holder.is_none_or(|(held, flow)| held == key || flow.life.is_closed())
    }
    /// Returns true if an evictable flow of a client behind another interface has the tuple.
    pub(crate) fn gives_in(&self, key: Key, backend: SocketAddr, source: SocketAddr) -> bool {
        let reply = Tuple {
            protocol: key.tuple.protocol,
            src: backend,
            dst: source,
        };
        self.flow_of_reply(&reply)
            .is_some_and(|(held, flow)| held.interface != key.interface && flow.life.gives_way())
    }
    /// Returns true if there are so few ports that the programs may find no free one.
    pub(crate) fn are_ports_scarce(&self) -> bool {
        let (low, high) = self.settings.ports;
        usize::from(high - low) < 8 * PORT_TRIES
    }
}
