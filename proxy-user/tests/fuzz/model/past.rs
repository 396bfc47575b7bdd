// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Judges packets that leave past the kernel's network stack: see "From a packet to a packet" in
//! ARCHITECTURE.md. Such a packet must be as if the stack had forwarded it between ingress and
//! egress, with a hop limit lower by one.

use std::net::IpAddr;

use proxy_common::Counter;

use super::{
    Case, Flow, Given, Key, MARK, Model, NEXT, REDIRECT, Seen,
    wire::{self, ACK, FIN, Fragment, Headers, RST, SYN, TCP, Tuple, UDP},
};
use crate::services::{self, Interface, is_node};

/// A reply need not be recorded if its acknowledgement is at most so many bytes from that of the
/// last recorded reply.
const FAR: i32 = 1 << 20;

/// Where a packet goes after ingress.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Exit {
    /// To the network stack, unless it is dropped or answered.
    Stack,
    /// Past the stack to the egress program of its outgoing interface.
    Egress,
    /// Out of the node without egress, because ingress has translated both ends.
    Out,
}

impl Model {
    /// Judges what ingress did with a packet on a node where packets may leave past the stack.
    pub(crate) fn ingress_past(&mut self, given: &Given<'_>, seen: &Seen) -> Result<Exit, String> {
        let is_answer = matches!(
            seen.counter,
            Counter::EchoAnswered
                | Counter::RejectedUnserved
                | Counter::RejectedNoEndpoint
                | Counter::RejectedUnknownFlow
        );
        let headers = wire::read(given.frame).filter(|_| !is_answer);
        let Some(headers) = headers else {
            self.ingress(given, seen)?;
            return Ok(Exit::Stack);
        };
        let case = Case::new(given, headers, seen);
        let is_routine = self
            .masqueraded
            .get(&headers.tuple)
            .is_some_and(|key| self.is_routine(&self.flows[key], &headers));
        if seen.verdict != REDIRECT {
            self.ingress(given, seen)?;
            if seen.verdict == NEXT && self.must_leave(&case) {
                fail!("it must leave past the stack");
            }
            return Ok(Exit::Stack);
        }
        let (back, is_handed) = as_before(given.frame, &headers, &seen.frame)?;
        let back = Seen::passed(back, seen.mark, seen.counter);
        let case = Case::new(given, headers, &back);
        let to = case.went()?.dst.ip();
        if !may_leave(given, &headers, to) {
            fail!("it must not leave past the stack");
        }
        let at_once = self.at_once(&case, is_routine)?;
        let is_whole = at_once || is_forwarded(seen.counter) && seen.mark & MARK == 0;
        if is_handed != (is_whole && to == services::pod(Interface::PodA, to.is_ipv6())) {
            fail!("handed to a pod's link: {is_handed}");
        }
        if !at_once {
            self.ingress(given, &back)?;
            if self.needs_stack(&case) {
                fail!("the stack must judge its ends");
            }
            if self.knows_both(&case, to, is_routine) && !is_whole {
                fail!("it must get both of its ends");
            }
        }
        Ok(if at_once { Exit::Out } else { Exit::Egress })
    }

    /// Judges a packet of which ingress has translated both source and destination: the result must
    /// be that of ingress and egress. Returns false if ingress has not translated both.
    fn at_once(&mut self, case: &Case<'_>, is_routine: bool) -> Result<bool, String> {
        let (given, seen) = (case.given, case.seen);
        let own = case.key();
        let tuple = own.tuple;
        if seen.counter == Counter::ReplyTranslated {
            let (key, passed) = match self.masqueraded.get(&tuple) {
                Some(key) if !is_routine => {
                    fail!("what it changes of {key:?} is not accounted");
                }
                Some(key) => {
                    let frame = case.with_ends(tuple.src, self.flows[key].source);
                    let counter = Counter::ReplyUnmasqueraded;
                    (*key, Seen::passed(frame, given.mark, counter))
                }
                None => {
                    let key = self.replies.get(&tuple).ok_or("it is no reply")?;
                    let frame = given.frame.to_vec();
                    (*key, Seen::passed(frame, given.mark, Counter::ReplyPassed))
                }
            };
            self.ingress(given, &passed)?;
            let (frontend, client) = (key.tuple.dst, key.tuple.src);
            let leaves_by = Interface::towards(client.ip());
            if needs_stack(&self.flows[&key], key) || !key.is_behind(leaves_by) {
                fail!("it must not get both of its ends");
            }
            case.leaves((frontend, client), given.mark, Counter::ReplyTranslated)?;
            return Ok(true);
        }
        let known = self.flows.get(&own).filter(|flow| flow.is_masqueraded);
        let Some((flow, masquerade)) = known.and_then(|flow| Some((flow, flow.masquerade?))) else {
            return Ok(false);
        };
        if seen.counter != Counter::ForwardedHit || seen.mark & MARK != 0 {
            return Ok(false);
        }
        let backend = flow.backend;
        let is_odd = needs_stack(flow, own);
        let frame = case.with_ends(flow.source, backend);
        let passed = Seen::passed(frame, given.mark | MARK, Counter::ForwardedHit);
        self.ingress(given, &passed)?;
        if is_odd {
            fail!("the stack must judge its ends");
        }
        case.leaves((masquerade, backend), given.mark, Counter::ForwardedHit)?;
        Ok(true)
    }

    /// Returns true if ingress should have redirected a packet that it passed to the stack.
    fn must_leave(&self, case: &Case<'_>) -> bool {
        let counter = case.seen.counter;
        let is_reply = matches!(counter, Counter::ReplyPassed | Counter::ReplyUnmasqueraded);
        // The model does not find the flow of an ICMP error here, so it allows both.
        if case.icmp_type().is_some() || !is_reply && !is_forwarded(counter) {
            return false;
        }
        let may = |to: Tuple| may_leave(case.given, &case.headers, to.dst.ip());
        case.went().is_ok_and(may) && !self.needs_stack(case)
    }

    /// Returns true if packets of this packet's flow must go to the stack.
    fn needs_stack(&self, case: &Case<'_>) -> bool {
        let found = self.flow_of(case);
        found.is_some_and(|(key, flow)| needs_stack(flow, key))
    }

    fn flow_of(&self, case: &Case<'_>) -> Option<(Key, &Flow)> {
        let own = case.key();
        let known = self.flows.contains_key(&own).then_some(own);
        let key = known.or_else(|| self.holder(&own.tuple))?;
        Some((key, self.flows.get(&key)?))
    }

    /// Returns true if ingress knew both new ends of a packet, so that it needs no egress.
    fn knows_both(&self, case: &Case<'_>, to: IpAddr, is_routine: bool) -> bool {
        let found = self.flow_of(case).filter(|_| case.icmp_type().is_none());
        let Some((key, flow)) = found else {
            return false;
        };
        let tuple = case.headers.tuple;
        if key.tuple == tuple {
            return !flow.is_masqueraded || flow.masquerade.is_some();
        }
        let is_masqueraded = self.masqueraded.contains_key(&tuple);
        key.is_behind(Interface::towards(to))
            && if is_masqueraded {
                is_routine
            } else {
                !flow.is_masqueraded
            }
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

fn is_forwarded(counter: Counter) -> bool {
    matches!(
        counter,
        Counter::ForwardedNew
            | Counter::ForwardedHit
            | Counter::ForwardedElsewhere
            | Counter::ForwardedMidStream
    )
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
