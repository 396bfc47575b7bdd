// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Judges incoming packets: see "From a packet to a packet" in ARCHITECTURE.md.

use std::net::SocketAddr;

use proxy_common::Counter;

use super::{
    Case, Datagram, Flow, Given, Judgement, Key, Model, Seen, answers,
    begin::Before,
    icmp,
    wire::{self, Fragment, Headers, Tuple, UDP},
};
use crate::services::Interface;

/// A SYN that anyone may have sent ends an established connection after so many silent seconds.
const SILENCE: u64 = 60;

impl Model {
    /// Judges what the ingress program did with a packet.
    pub(crate) fn ingress(&mut self, given: &Given<'_>, seen: &Seen) -> Judgement {
        let Some(headers) = wire::read(given.frame) else {
            return seen.passes(given.frame, given.mark, &[Counter::Untouched]);
        };
        let mut case = Case::new(given, headers, seen);
        case.headers.interface = case.key().interface;
        if self.is_of_no_service(&case)
            && let Some(judgement) = self.unserved(&case, true)
        {
            return judgement;
        }
        if case.icmp_type().is_some() && headers.fragment == Fragment::No {
            if self.answers_echo(&case) {
                return answers::echo(&case);
            }
            return icmp::ingress(self, &case);
        }
        if !headers.tuple.has_ports() {
            return case.untouched();
        }
        if !self.know_fragment(&mut case.headers) {
            // A later fragment to a cluster IP must be dropped if its first fragment is unknown.
            return match self.is_cluster_ip(headers.tuple.dst.ip()) {
                true => case.dropped(Counter::DroppedFragment),
                false => case.untouched(),
            };
        }
        self.ingress_of_flow(&case)
    }

    fn ingress_of_flow(&mut self, case: &Case<'_>) -> Judgement {
        let (key, headers) = (case.key(), &case.headers);
        let tuple = key.tuple;
        if let Some(flow) = self.flows.get(&key) {
            let anew = match self.begins_anew(key, flow, headers) {
                None if self.lost_its_frontend(key) => Some(Before::default()),
                anew => anew,
            };
            return match anew {
                Some(before) => {
                    let gone = self.remove_flow(key);
                    let port = gone.and_then(|gone| gone.masquerade).map(|at| at.port());
                    self.begin(case, Before { port, ..before })
                }
                None => self.hit(case, key),
            };
        }
        // Replies may also come from pods, but a SYN or INIT is never a reply.
        if key.interface != 0 && tuple.protocol != UDP && headers.begins() {
            return self.begin(case, Before::default());
        }
        if let Some(key) = self.masqueraded.get(&tuple).copied() {
            let client = self.flows[&key].source;
            if self.is_bound(case.given.interface, key, &tuple) {
                self.note_answer(key, headers, case.given.frame);
            }
            return self.translated(case, tuple.src, client, Counter::ReplyUnmasqueraded);
        }
        if let Some(key) = self.replies.get(&tuple).copied() {
            if self.is_bound(case.given.interface, key, &tuple) {
                self.backend_sent(key, headers);
            }
            // Egress translates the reply. Ingress may skip the lookup and count Untouched.
            let counters = [Counter::ReplyPassed, Counter::Untouched];
            return case.unchanged(&counters[..if self.is_past { 1 } else { 2 }]);
        }
        if self.untouched.contains_key(&tuple) {
            self.touch_untouched(tuple, |held| held.is_established |= held.is_repeated);
            return case.unchanged(&[Counter::UntouchedFlow]);
        }
        self.begin(case, Before::default())
    }

    /// Judges a client's packet of a known flow.
    fn hit(&mut self, case: &Case<'_>, key: Key) -> Judgement {
        let flow = &self.flows[&key];
        let (ends, mark) = ((flow.source, flow.backend), case.given.mark | flow.mark());
        self.client_sent(key, &case.headers);
        self.remember_fragment(&case.headers);
        case.leaves(ends, mark, Counter::ForwardedHit)
    }

    /// Returns true if the frontend of a UDP flow has left the flow's service, checked each second.
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
    fn begins_anew(&self, key: Key, flow: &Flow, headers: &Headers) -> Option<Before> {
        if !headers.begins() {
            return None;
        }
        let is_tcp_like = headers.tuple.protocol != UDP;
        // At an interface that clients share, anyone may have sent the SYN.
        let is_genuine = key.interface != 0 || self.now - flow.last_seen > SILENCE;
        let life = &flow.life;
        if is_tcp_like && life.acknowledged && !life.is_closing() && !is_genuine {
            return None;
        }
        let is_over = flow.life.is_closing() || flow.life.picked_up;
        if is_tcp_like && is_over || !self.serves_still(flow) {
            return Some(Before::default());
        }
        // The client has repeated its SYN for the second time, and the backend has not answered.
        (is_tcp_like && flow.life.is_unanswered_again(headers)).then(|| Before {
            avoided: Some(flow.backend),
            ..Before::default()
        })
    }

    /// Checks that a packet passes with this source and destination.
    pub(super) fn translated(
        &mut self,
        case: &Case<'_>,
        src: SocketAddr,
        dst: SocketAddr,
        counter: Counter,
    ) -> Judgement {
        self.remember_fragment(&case.headers);
        case.leaves((src, dst), case.given.mark, counter)
    }

    /// Gives a later fragment the ports of its first fragment; returns false if these are unknown.
    /// A first fragment makes those of an earlier datagram with its identification unknown.
    pub(super) fn know_fragment(&mut self, headers: &mut Headers) -> bool {
        match headers.fragment {
            Fragment::No => true,
            Fragment::First(id) => {
                self.fragments.remove(&datagram(headers, id));
                true
            }
            Fragment::Later(id) => {
                let ports = self.fragments.get(&datagram(headers, id));
                if let Some((from, to)) = ports {
                    headers.tuple.src.set_port(*from);
                    headers.tuple.dst.set_port(*to);
                }
                ports.is_some()
            }
        }
    }
    /// Returns a packet's tuple, for a later fragment with the ports of its first one.
    pub(crate) fn tuple_at(&mut self, at: Interface, frame: &[u8]) -> Option<Tuple> {
        let mut headers = wire::read(frame)?;
        if let Fragment::Later(_) = headers.fragment {
            headers.interface = Key::new(at, headers.tuple).interface;
            self.know_fragment(&mut headers);
        }
        Some(headers.tuple)
    }
    /// Records the ports of a translated first fragment for the later fragments.
    pub(super) fn remember_fragment(&mut self, headers: &Headers) {
        if let Fragment::First(id) = headers.fragment {
            let Tuple { src, dst, .. } = headers.tuple;
            self.fragments
                .insert(datagram(headers, id), (src.port(), dst.port()));
        }
    }
}

fn datagram(headers: &Headers, id: u32) -> Datagram {
    let Tuple { protocol, src, dst } = headers.tuple;
    (src.ip(), dst.ip(), id, protocol, headers.interface)
}
