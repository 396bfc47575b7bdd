// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Judges packets that leave past the kernel's network stack: see "From a packet to a packet" in
//! ARCHITECTURE.md. Such a packet must be as if ingress, the stack and egress had forwarded it.

use std::net::{IpAddr, SocketAddr};

use proxy_common::Counter;

use super::{
    Case, Flow, Given, Key, Model, REDIRECT, Seen,
    wire::{self, ACK, FIN, Fragment, Headers, RST, SYN, TCP, Tuple, UDP},
};
use crate::{
    run::STEP,
    services::{self, Interface, is_node},
};

/// A reply need not be recorded if its acknowledgement is at most so many bytes from the last.
const FAR: i32 = 1 << 20;

/// How a packet leaves past the stack.
struct Way {
    headers: Headers,
    /// Its new source and destination.
    ends: (SocketAddr, SocketAddr),
    counter: Counter,
    /// The packet as ingress would send it through the stack.
    inside: Seen,
}

impl Model {
    /// Judges what ingress did with a packet on a node where packets may leave past the stack.
    /// Returns true if this one did.
    pub(crate) fn ingress_past(&mut self, given: &Given<'_>, seen: &Seen) -> Result<bool, String> {
        let Some(way) = self.way(given) else {
            self.ingress(given, seen)?;
            return Ok(false);
        };
        if (seen.verdict, seen.counter) != (REDIRECT, way.counter) {
            self.ingress(given, seen)?;
            if seen.counter == way.inside.counter {
                fail!("it must leave past the stack");
            }
            // Its flow has ended, and another one begins.
            return Ok(false);
        }
        let (back, is_handed) = as_before(given.frame, &way.headers, &seen.frame)?;
        let to = way.ends.1.ip();
        if is_handed != (to == services::pod(Interface::PodA, to.is_ipv6())) {
            fail!("handed to a pod's link: {is_handed}");
        }
        self.ingress(given, &way.inside)?;
        let back = Seen::passed(back, seen.mark, seen.counter);
        let case = Case::new(given, way.headers, &back);
        case.leaves(way.ends, given.mark, way.counter)?;
        Ok(true)
    }

    /// Returns how a packet leaves past the stack; None if it takes the stack.
    fn way(&self, given: &Given<'_>) -> Option<Way> {
        let headers = wire::read(given.frame)?;
        let tuple = headers.tuple;
        let (key, to) = self.passed(given.interface, tuple)?;
        let flow = &self.flows[&key];
        let goes_on = match tuple.protocol {
            TCP => headers.flags & (SYN | FIN | RST) == 0,
            protocol => protocol == UDP,
        };
        if !goes_on || !may_leave(given, &headers, to) || needs_stack(flow, key) {
            return None;
        }
        let with_ends = |src, dst| wire::with_ends(given.frame, &headers, src, dst);
        let (ends, counter, inside) = if key == Key::new(given.interface, tuple) {
            let is_open = flow.life.answered && (flow.life.acknowledged || tuple.protocol == UDP);
            let is_known = !flow.is_masqueraded || flow.masquerade.is_some();
            if !is_open || !is_known || !self.is_fresh(flow.last_seen) {
                return None;
            }
            let ends = (flow.masquerade.unwrap_or(flow.source), flow.backend);
            let (frame, counter) = (with_ends(flow.source, flow.backend), Counter::ForwardedHit);
            let inside = Seen::passed(frame, given.mark | flow.mark(), counter);
            (ends, counter, inside)
        } else {
            let is_masqueraded = self.masqueraded.contains_key(&tuple);
            let is_known = if is_masqueraded {
                self.is_routine(flow, &headers)
            } else {
                !flow.is_masqueraded && flow.reply_noted.is_some_and(|at| self.is_fresh(at))
            };
            if !is_known
                || !self.is_bound(given.interface, key, &tuple)
                || !key.is_behind(Interface::towards(to))
            {
                return None;
            }
            let (frame, counter) = match is_masqueraded {
                true => (
                    with_ends(tuple.src, flow.source),
                    Counter::ReplyUnmasqueraded,
                ),
                false => (given.frame.to_vec(), Counter::ReplyPassed),
            };
            let inside = Seen::passed(frame, given.mark, counter);
            let ends = (key.tuple.dst, key.tuple.src);
            (ends, Counter::ReplyTranslated, inside)
        };
        Some(Way {
            headers,
            ends,
            counter,
            inside,
        })
    }

    /// Returns the flow of an incoming packet if the stack has passed such a one, and where to.
    pub(crate) fn passed(&self, at: Interface, tuple: Tuple) -> Option<(Key, IpAddr)> {
        let own = Key::new(at, tuple);
        if let Some(flow) = self.flows.get(&own) {
            return Some((own, flow.backend.ip()));
        }
        let replied = self.masqueraded.get(&tuple);
        let key = *replied.or_else(|| self.replies.get(&tuple))?;
        self.flows[&key].reply_noted?;
        Some((key, key.tuple.src.ip()))
    }
    /// Returns true if a reply comes in as one that the stack has let pass.
    pub(super) fn is_bound(&self, at: Interface, key: Key, reply: &Tuple) -> bool {
        self.is_past
            && self.flows[&key].reply_noted.is_some()
            && at == Interface::towards(reply.src.ip())
    }
    /// Returns true if a packet that was recorded then still speaks for those that follow.
    pub(super) fn is_fresh(&self, noted: u64) -> bool {
        noted > 0 && self.now - noted <= STEP
    }

    /// Returns true if a reply to a masqueraded flow need not be recorded, because a similar one
    /// has been recorded in the same second.
    pub(super) fn is_routine(&self, flow: &Flow, headers: &Headers) -> bool {
        let Some((at, number)) = flow.answer_noted else {
            return false;
        };
        let apart = headers.acknowledgement.wrapping_sub(number).cast_signed();
        at == self.now
            && headers.flags & (SYN | FIN | RST) == 0
            && match headers.tuple.protocol {
                TCP => headers.flags & ACK != 0 && number != 0 && (-FAR..=FAR).contains(&apart),
                protocol => protocol == UDP,
            }
    }

    /// Records a reply to a masqueraded flow, unless `is_routine` says that it need not be.
    pub(crate) fn note_answer(&mut self, key: Key, headers: &Headers, frame: &[u8]) {
        if self.is_routine(&self.flows[&key], headers) {
            return;
        }
        let number = match headers.tuple.protocol {
            // A later fragment has payload at this offset, which the programs record as well.
            TCP => wire::word(frame, headers.l4 + 8).unwrap_or(0),
            _ => 0,
        };
        let now = self.now;
        if let Some(flow) = self.flows.get_mut(&key) {
            flow.answer_noted = Some((now, number));
        }
    }
}

/// Returns true if client or backend of a flow is the node itself, so that the stack must handle
/// its packets. False for a connection to no service, for which the programs do not check this.
pub(super) fn needs_stack(flow: &Flow, key: Key) -> bool {
    let (client, backend) = (key.tuple.src.ip(), flow.backend.ip());
    flow.service.is_some() && (is_node(client) || is_node(backend))
}

/// Returns true if headers, interface and destination allow a packet to leave past the stack.
pub(super) fn may_leave(given: &Given<'_>, headers: &Headers, to: IpAddr) -> bool {
    given.interface.redirects()
        && given.frame[..6] == given.interface.mac()
        && headers.l3 == 14
        && headers.is_plain()
        && headers.fragment == Fragment::No
        && !is_node(to)
        && !to.is_loopback()
}

/// Returns the frame of a packet that has left, with its hop limit increased by one again.
pub(super) fn older(frame: &[u8], headers: &Headers) -> Result<Vec<u8>, String> {
    let mut back = frame.to_vec();
    let hop = headers.hop();
    let hops = back.get_mut(hop).ok_or("it is cut short")?;
    *hops = hops.wrapping_add(1);
    if !headers.is_v6() {
        wire::follow_half(&mut back, headers.l3 + 10, frame, hop);
    }
    Ok(back)
}

/// Does the same as `older` and restores the MACs of the frame's arrival; true if the frame had
/// left with the MACs of a pod's link.
fn as_before(given: &[u8], headers: &Headers, frame: &[u8]) -> Result<(Vec<u8>, bool), String> {
    let mut back = older(frame, headers)?;
    let is_handed = back[..12] == [services::POD_MAC, Interface::PodA.mac()].concat();
    if is_handed {
        back[..12].copy_from_slice(&given[..12]);
    }
    Ok((back, is_handed))
}
