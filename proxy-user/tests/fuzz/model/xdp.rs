// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Judges packets at the uplink with XDP: see "At uplinks by XDP" in ARCHITECTURE.md.

use proxy_common::Counter;

use super::{
    Given, Judgement, Key, Model, Seen,
    life::goes_on,
    past::{may_leave, needs_stack, older},
    wire::{self, TCP, UDP},
};
use crate::services::{self, Interface};

impl Model {
    /// Judges what the XDP program made of a frame at the uplink that it has taken.
    pub(crate) fn at_xdp(&mut self, given: &Given<'_>, seen: &Seen) -> Judgement {
        let headers = wire::read(given.frame).ok_or("it is no packet")?;
        let tuple = headers.tuple;
        let goes_on = match tuple.protocol {
            TCP => goes_on(&headers),
            protocol => protocol == UDP,
        };
        let is_reply = seen.counter == Counter::ReplyByXdp;
        let key = match is_reply {
            true => *self.masqueraded.get(&tuple).ok_or("it is no reply")?,
            false => Key::new(Interface::Uplink, tuple),
        };
        let flow = self.flows.get(&key).ok_or("it is of no flow")?;
        let masquerade = flow.masquerade;
        let masquerade = masquerade.ok_or("its flow has no masquerade address")?;
        let (src, dst) = match is_reply {
            true => (key.tuple.dst, key.tuple.src),
            false => (masquerade, flow.backend),
        };
        let is_due = is_reply && !self.is_routine(flow, &headers);
        let may_be_taken = goes_on
            && headers.end <= given.frame.len()
            && may_leave(given, &headers, dst.ip())
            && key.interface == 0
            && Interface::towards(dst.ip()) == Interface::Uplink
            && !needs_stack(flow, key)
            && if is_reply {
                let noted = flow.answer_noted;
                self.is_bound(given.interface, key, &tuple)
                    && noted.is_none_or(|(at, _)| self.is_fresh(at))
                    && (!is_due || flow.life.is_settled(tuple.protocol))
            } else {
                self.is_fresh(flow.last_seen)
                    && flow.life.is_established()
                    && (tuple.protocol != UDP || self.serves_still(flow))
            };
        if !may_be_taken {
            fail!("it must not be taken: {:?}", flow.life);
        }
        if is_due {
            self.note_answer(key, &headers, given.frame);
            self.reply_at_xdp(key, &headers);
        } else if !is_reply {
            self.client_sent(key, &headers);
        }
        let mut frame = older(&seen.frame, &headers)?;
        let (receiver, sender) = (services::ROUTER_MAC, Interface::Uplink.mac());
        if frame[..12] != [receiver, sender].concat() {
            fail!("its MACs are not the router's and the uplink's");
        }
        frame[..12].copy_from_slice(&given.frame[..12]);
        let expected = wire::with_ends(given.frame, &headers, src, dst);
        let went = Seen::passed(frame, seen.mark, seen.counter);
        went.passes(&expected, given.mark, &[seen.counter])
    }
}
