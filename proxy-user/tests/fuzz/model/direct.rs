// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Connections to no service: see the end of "A flow's entries" in ARCHITECTURE.md.

use proxy_common::Counter;

use super::{
    Flow, Given, Judgement, Key, Model, Seen,
    begin::PORT_TRIES,
    ingress::untouched,
    life::Life,
    passes,
    rings::{Named, Ring},
    wire::{self, Headers, Tuple, UDP},
};
use crate::node;

impl Model {
    /// Judges a first packet to a destination of no service: it must get another source port if a
    /// flow of the same client already has its tuple.
    pub(crate) fn past_every_service(
        &mut self,
        given: &Given<'_>,
        headers: &Headers,
        key: Key,
        seen: &Seen,
    ) -> Judgement {
        let Tuple { protocol, dst, .. } = headers.tuple;
        let reply = headers.tuple.reversed();
        let holder = self.flow_of_reply(&reply).map(|(held, flow)| {
            let is_own = held.interface == key.interface;
            (held, is_own, flow.life.is_closed())
        });
        let is_over = match holder {
            Some((_, true, false)) => return self.with_another_port(given, headers, key, seen),
            Some((held, true, true)) => Some(held),
            _ => None,
        };
        if let Some(over) = is_over {
            self.remove_flow(over);
        }
        if protocol != UDP && self.backend_ports.contains(&dst.port()) {
            self.recalled.insert(node::direct(reply), reply);
        }
        untouched(given, seen)
    }

    fn with_another_port(
        &mut self,
        given: &Given<'_>,
        headers: &Headers,
        key: Key,
        seen: &Seen,
    ) -> Judgement {
        let place = self.push(Ring::of(&key.tuple), Named::Flow(key));
        let Tuple { src, dst, .. } = headers.tuple;
        if self.room(src.is_ipv6()) < 2 {
            self.is_lost = true;
            return Ok(());
        }
        if seen.counter == Counter::Untouched {
            let (low, high) = self.settings.ports;
            return if usize::from(high - low) < 8 * PORT_TRIES {
                untouched(given, seen)
            } else {
                Err("a flow has its tuple, so it must get another source port".into())
            };
        }
        let Some(went) = wire::read(&seen.frame) else {
            return Err("what goes on is no packet".into());
        };
        let source = went.tuple.src;
        let (low, high) = self.settings.ports;
        if source.ip() != src.ip() || !(low..=high).contains(&source.port()) {
            return Err(format!("{source} is no source for {src}"));
        }
        let reply = Tuple {
            src: dst,
            dst: source,
            ..headers.tuple
        };
        if self.replies.contains_key(&reply) || self.masqueraded.contains_key(&reply) {
            return Err(format!("another flow has the tuple from {source} to {dst}"));
        }
        let flow = Flow {
            backend: dst,
            source,
            service: None,
            incarnation: 0,
            is_masqueraded: false,
            masquerade: None,
            port_before: None,
            life: Life::begun_by(headers),
            last_seen: self.now,
            checked: self.now,
            reply_noted: None,
            answer_noted: None,
            place,
        };
        self.insert_flow(key, flow);
        self.remember_fragment(headers);
        let frame = wire::with_ends(given.frame, headers, source, dst);
        passes(seen, &frame, given.mark, &[Counter::ForwardedNew])
    }
}
