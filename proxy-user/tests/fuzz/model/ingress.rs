// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Judges incoming packets: see "From a packet to a packet" in ARCHITECTURE.md.

use std::net::SocketAddr;

use proxy_common::Counter;

use super::{
    Given, Judgement, Key, MARK, Model, Seen,
    begin::Before,
    dropped, echo, icmp, passes, reject,
    wire::{self, Fragment, Headers, SCTP, TCP, UDP},
};
use crate::services::service_range;

/// A SYN that anyone may have sent ends an established connection after so many silent seconds.
const SILENCE: u64 = 60;

impl Model {
    /// Judges what the ingress program did with a packet.
    pub(crate) fn ingress(&mut self, given: &Given<'_>, seen: &Seen) -> Judgement {
        *self.counts.entry(seen.counter).or_default() += 1;
        let Some(mut headers) = wire::read(given.frame) else {
            return untouched(given, seen);
        };
        headers.interface = Self::client_interface(given.interface);
        if self.is_of_no_service(given, &headers) {
            let dst = headers.tuple.dst.ip();
            if self.is_cluster_ip(dst) {
                return if given.frame.len() < headers.l4 + 8 {
                    dropped(seen, Counter::RejectedSilently)
                } else {
                    reject::judge(given, &headers, seen, Counter::RejectedUnserved)
                };
            }
            if self.settings.allocated && service_range(dst.is_ipv6()).contains(&dst) {
                return dropped(seen, Counter::DroppedUnallocated);
            }
        }
        if headers.icmp_type(given.frame).is_some() && headers.fragment == Fragment::No {
            if self.answers_echo(given, &headers) {
                return echo::judge(given, &headers, seen);
            }
            return icmp::ingress(self, given, &headers, seen);
        }
        if !matches!(headers.tuple.protocol, TCP | UDP | SCTP) {
            return untouched(given, seen);
        }
        self.forget_fragment(&headers);
        if let Fragment::Later(_) = headers.fragment
            && !self.recall_fragment(&mut headers)
        {
            // A later fragment to a cluster IP must be dropped if its first fragment is unknown.
            return if self.is_cluster_ip(headers.tuple.dst.ip()) {
                dropped(seen, Counter::DroppedFragment)
            } else {
                untouched(given, seen)
            };
        }
        self.ingress_of_flow(given, &headers, seen)
    }

    fn ingress_of_flow(&mut self, given: &Given<'_>, headers: &Headers, seen: &Seen) -> Judgement {
        let tuple = headers.tuple;
        let key = Key {
            tuple,
            interface: Self::client_interface(given.interface),
        };
        if let Some(flow) = self.flows.get(&key) {
            let anew = match self.begins_anew(key, flow, headers) {
                None if self.lost_its_frontend(key) => Some(Before::default()),
                anew => anew,
            };
            return match anew {
                Some(before) => {
                    let gone = self.remove_flow(key);
                    let port = gone.and_then(|gone| gone.masquerade).map(|at| at.port());
                    self.begin(given, headers, key, Before { port, ..before }, seen)
                }
                None => self.hit(given, headers, key, seen),
            };
        }
        // Replies may also come from pods, but a SYN or INIT is never a reply.
        if key.interface != 0 && tuple.protocol != UDP && headers.begins() {
            return self.begin(given, headers, key, Before::default(), seen);
        }
        if let Some(key) = self.masqueraded.get(&tuple).copied() {
            let client = self.flows[&key].source;
            if self.is_past {
                self.note_answer(key, headers, given.frame);
            }
            return self.translated(
                given,
                headers,
                tuple.src,
                client,
                seen,
                Counter::ReplyUnmasqueraded,
            );
        }
        if let Some(key) = self.replies.get(&tuple).copied() {
            if self.is_past {
                self.backend_sent(key, headers);
                return passes(seen, given.frame, given.mark, &[Counter::ReplyPassed]);
            }
            // Egress translates the reply. Ingress may skip the lookup and count Untouched.
            return passes(
                seen,
                given.frame,
                given.mark,
                &[Counter::ReplyPassed, Counter::Untouched],
            );
        }
        if self.untouched.contains_key(&tuple) {
            self.touch_untouched(tuple, |held| held.is_established |= held.is_repeated);
            return passes(seen, given.frame, given.mark, &[Counter::UntouchedFlow]);
        }
        self.begin(given, headers, key, Before::default(), seen)
    }

    /// Judges a client's packet of a known flow.
    fn hit(&mut self, given: &Given<'_>, headers: &Headers, key: Key, seen: &Seen) -> Judgement {
        let flow = &self.flows[&key];
        let (source, backend) = (flow.source, flow.backend);
        let mark = if flow.is_masqueraded { MARK } else { 0 };
        // In a small ring, a flow's new name can overwrite its own last name and evict it.
        self.client_sent(key, headers);
        self.remember_fragment(headers);
        let frame = wire::with_ends(given.frame, headers, source, backend);
        passes(seen, &frame, given.mark | mark, &[Counter::ForwardedHit])
    }

    /// Returns true if the frontend of a UDP flow no longer belongs to the flow's service. This is
    /// checked once a second.
    fn lost_its_frontend(&mut self, key: Key) -> bool {
        let now = self.now;
        let Some(flow) = self.flows.get_mut(&key) else {
            return false;
        };
        if key.tuple.protocol != UDP || flow.service.is_none() || flow.checked == now {
            return false;
        }
        flow.checked = now;
        let owner = self.frontend(key.tuple.dst, UDP);
        owner.map(|(live, _)| &live.service.name) != self.flows[&key].service.as_ref()
    }

    /// Returns what a new flow takes over if this packet begins one; None if it does not.
    fn begins_anew(&self, key: Key, flow: &super::Flow, headers: &Headers) -> Option<Before> {
        if !headers.begins() {
            return None;
        }
        let is_tcp_like = headers.tuple.protocol != UDP;
        // At an interface that clients share, anyone may have sent the SYN.
        let is_genuine = key.interface != 0 || self.now - flow.last_seen > SILENCE;
        let is_safe =
            is_tcp_like && flow.life.acknowledged && !flow.life.is_closing() && !is_genuine;
        if is_safe {
            return None;
        }
        let serves = flow
            .service
            .as_ref()
            .is_none_or(|service| self.serves(service, flow.backend, flow.incarnation));
        let is_over = flow.life.is_closing() || flow.life.picked_up;
        if is_tcp_like && is_over || !serves {
            return Some(Before::default());
        }
        // The client has repeated its SYN for the second time, and the backend has not answered.
        (is_tcp_like && flow.life.is_unanswered_again(headers)).then(|| Before {
            avoided: Some(flow.backend),
            ..Before::default()
        })
    }

    /// Checks that a packet passes with this source and destination.
    pub(crate) fn translated(
        &mut self,
        given: &Given<'_>,
        headers: &Headers,
        src: SocketAddr,
        dst: SocketAddr,
        seen: &Seen,
        counter: Counter,
    ) -> Judgement {
        self.remember_fragment(headers);
        let frame = wire::with_ends(given.frame, headers, src, dst);
        passes(seen, &frame, given.mark, &[counter])
    }

    /// Removes the recorded ports of an earlier datagram with this first fragment's identification.
    pub(crate) fn forget_fragment(&mut self, headers: &Headers) {
        if let Fragment::First(id) = headers.fragment {
            let Tuple { protocol, src, dst } = headers.tuple;
            let key = (src.ip(), dst.ip(), id, protocol, headers.interface);
            self.fragments.remove(&key);
        }
    }
    /// Records the ports of a translated first fragment for the later fragments.
    pub(crate) fn remember_fragment(&mut self, headers: &Headers) {
        if let Fragment::First(id) = headers.fragment {
            let Tuple { protocol, src, dst } = headers.tuple;
            let key = (src.ip(), dst.ip(), id, protocol, headers.interface);
            self.fragments.insert(key, (src.port(), dst.port()));
        }
    }
    /// Gives a later fragment the ports of its first fragment; returns false if these are unknown.
    pub(crate) fn recall_fragment(&self, headers: &mut Headers) -> bool {
        let Fragment::Later(id) = headers.fragment else {
            return false;
        };
        let interface = headers.interface;
        let Tuple { protocol, src, dst } = &mut headers.tuple;
        let key = (src.ip(), dst.ip(), id, *protocol, interface);
        match self.fragments.get(&key) {
            Some((from, to)) => {
                src.set_port(*from);
                dst.set_port(*to);
                true
            }
            None => false,
        }
    }
}

use super::wire::Tuple;

/// Checks that a packet passes unchanged.
pub(crate) fn untouched(given: &Given<'_>, seen: &Seen) -> Judgement {
    passes(seen, given.frame, given.mark, &[Counter::Untouched])
}
