// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A packet that goes out: replies get the service's address back, marked packets leave with the
//! node's address.

use proxy_common::Counter;

use super::{
    Given, Judgement, MARK, Model, Seen,
    flows::Untouched,
    icmp,
    ingress::untouched,
    rings::{Named, Ring},
    wire::{self, Fragment, Headers, SCTP, TCP, UDP},
};
use crate::{node, services::is_node};

impl Model {
    /// Judges what the egress program did with a packet.
    pub(crate) fn egress(&mut self, given: &Given<'_>, seen: &Seen) -> Judgement {
        *self.counts.entry(seen.counter).or_default() += 1;
        let Some(mut headers) = wire::read(given.frame) else {
            return untouched(given, seen);
        };
        if headers.icmp_type(given.frame).is_some() && headers.fragment == Fragment::No {
            return icmp::egress(self, given, &headers, seen);
        }
        if !matches!(headers.tuple.protocol, TCP | UDP | SCTP) {
            return untouched(given, seen);
        }
        self.forget_fragment(&headers);
        if let Fragment::Later(_) = headers.fragment
            && !self.recall_fragment(&mut headers)
        {
            return untouched(given, seen);
        }
        let reversed = headers.tuple.reversed();
        let masquerades = given.mark & MARK != 0
            && !self.settings.mark_only
            && self
                .flow_of_reply(&reversed)
                .is_some_and(|(_, flow)| flow.is_masqueraded);
        if masquerades {
            return self.masquerade(given, &headers, seen);
        }
        self.leaving(given, &headers, seen)
    }

    fn leaving(&mut self, given: &Given<'_>, headers: &Headers, seen: &Seen) -> Judgement {
        let tuple = headers.tuple;
        if let Some((key, _)) = self.flow_of_reply(&tuple) {
            // A flow's replies leave by its client's interface only.
            if flow_is_of(key.interface, given) {
                let frontend = key.tuple.dst;
                let client = key.tuple.src;
                self.backend_sent(key, headers);
                return self.translated(
                    given,
                    headers,
                    frontend,
                    client,
                    seen,
                    Counter::ReplyTranslated,
                );
            }
            return untouched(given, seen);
        }
        // No IPv4 packet that has come with an address of the node is forwarded: it got it from the
        // node's rules.
        let is_the_nodes = given.is_own || tuple.src.is_ipv4() && self.settings.resets;
        if tuple.protocol != TCP && is_the_nodes {
            self.own_datagram(headers);
        }
        // Others have masqueraded it: our masqueraded flows avoid its tuple.
        let is_of_others = given.mark & MARK != 0 && !given.is_own && is_node(tuple.src.ip());
        let reply = tuple.reversed();
        if is_of_others
            && tuple.protocol != UDP
            && headers.begins()
            && !self.masqueraded.contains_key(&reply)
        {
            self.recalled.insert(node::direct(reply), reply);
        }
        untouched(given, seen)
    }

    /// A datagram that a process of the node sends from a served node port.
    fn own_datagram(&mut self, headers: &Headers) {
        let tuple = headers.tuple.reversed();
        let now = self.now;
        if self.untouched.contains_key(&tuple) {
            // SCTP's show by their chunks alone what they are.
            self.touch_untouched(tuple, |held| held.is_repeated = tuple.protocol == UDP);
            return;
        }
        let key = super::Key {
            tuple,
            interface: 0,
        };
        let is_other = self.flows.contains_key(&key)
            || self.replies.contains_key(&tuple)
            || self.masqueraded.contains_key(&tuple);
        let is_served = self.frontend(tuple.dst, tuple.protocol).is_some();
        let is_own = tuple.dst.ip() == crate::services::node(tuple.dst.is_ipv6());
        if is_other || !is_own || !is_served {
            return;
        }
        let place = self.push(Ring::of(&tuple), Named::Untouched(tuple));
        if self.room(tuple.src.is_ipv6()) == 0 {
            return;
        }
        let held = Untouched {
            is_repeated: false,
            is_established: false,
            last_seen: now,
            place,
        };
        self.untouched.insert(tuple, held);
    }
}

pub(crate) fn flow_is_of(interface: u32, given: &Given<'_>) -> bool {
    interface == Model::client_interface(given.interface)
}
