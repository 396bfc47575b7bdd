// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Judges outgoing packets: replies must get the service's address as their source, and packets
//! with the masquerade mark the node's address.

use proxy_common::{Counter, Settings};

use super::{
    Case, Given, Judgement, Key, MARK, Model, Seen,
    flows::Untouched,
    icmp,
    wire::{self, Fragment, Headers, TCP, UDP},
};
use crate::{
    node,
    services::{Interface, is_node},
};

impl Model {
    /// Judges what the egress program did with a packet.
    pub(crate) fn egress(&mut self, given: &Given<'_>, seen: &Seen) -> Judgement {
        let Some(headers) = wire::read(given.frame) else {
            return seen.passes(given.frame, given.mark, &[Counter::Untouched]);
        };
        let mut case = Case::new(given, headers, seen);
        if case.icmp_type().is_some() && headers.fragment == Fragment::No {
            return icmp::egress(self, &case);
        }
        if !headers.tuple.has_ports() || !self.know_fragment(&mut case.headers) {
            return case.untouched();
        }
        let reversed = case.headers.tuple.reversed();
        let masquerades = given.mark & MARK != 0
            && !self.settings.has(Settings::MARK_ONLY)
            && self
                .flow_of_reply(&reversed)
                .is_some_and(|(_, flow)| flow.is_masqueraded);
        if masquerades {
            return self.masquerade(&case);
        }
        self.leaving(&case)
    }

    fn leaving(&mut self, case: &Case<'_>) -> Judgement {
        let (given, headers) = (case.given, &case.headers);
        let tuple = headers.tuple;
        if let Some((key, _)) = self.flow_of_reply(&tuple) {
            // Replies are translated only if they leave through the interface of the flow's client.
            if !key.is_behind(given.interface) {
                return case.untouched();
            }
            self.backend_sent(key, headers);
            let (client, frontend) = (key.tuple.src, key.tuple.dst);
            return self.translated(case, frontend, client, Counter::ReplyTranslated);
        }
        // The kernel does not forward an IPv4 packet that arrived with one of the node's addresses
        // as its source. So a packet with such a source got it by the node's own NAT rules.
        let is_the_nodes =
            given.is_own || tuple.src.is_ipv4() && self.settings.has(Settings::RESET_UNKNOWN);
        if tuple.protocol != TCP && is_the_nodes {
            self.own_datagram(headers);
        }
        // Other NAT rules have masqueraded this packet: portolan's flows must avoid its tuple.
        let is_of_others = (given.mark & MARK != 0 || tuple.protocol == TCP)
            && !given.is_own
            && is_node(tuple.src.ip())
            && self.backend_ports.contains(&tuple.dst.port());
        let reply = tuple.reversed();
        if is_of_others && headers.begins() && self.masqueraded.contains_key(&reply) {
            // It may get another port or end the flow, which depends on more than the model stores.
            self.is_lost = true;
        } else if is_of_others && tuple.protocol != UDP && headers.begins() {
            self.recalled.insert(node::direct(reply), reply);
        }
        case.untouched()
    }

    /// Records a datagram that a process of the node sends from a node port of a service.
    fn own_datagram(&mut self, headers: &Headers) {
        let tuple = headers.tuple.reversed();
        if self.untouched.contains_key(&tuple) {
            // For SCTP the types of the chunks, not a repetition, tell the state.
            self.touch_untouched(tuple, |held| held.is_repeated = tuple.protocol == UDP);
            return;
        }
        let key = Key::new(Interface::Uplink, tuple);
        let is_other = self.flows.contains_key(&key) || self.holder(&tuple).is_some();
        let is_served = self.frontend(tuple.dst, tuple.protocol).is_some();
        let is_own = tuple.dst.ip() == crate::services::node(tuple.dst.is_ipv6());
        if is_other || !is_own || !is_served {
            return;
        }
        if !self.make_room(&tuple, 0) {
            return;
        }
        let held = Untouched {
            is_repeated: false,
            is_established: false,
            last_seen: self.now,
        };
        self.untouched.insert(tuple, held);
    }
}
