// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which tuples a new flow may have: no two living flows have the same tuple. For connections to no
//! service, see the end of "A flow's entries" in ARCHITECTURE.md.

use proxy_common::Counter;

use super::{
    Case, Flow, Judgement, Key, Model,
    begin::PORT_TRIES,
    rings::{Named, Ring},
    wire::{Tuple, UDP},
};
use crate::node;

impl Model {
    /// Returns true if a client may use its own port to a backend, whose replies have this tuple:
    /// neither a living flow nor a connection to no service has it.
    pub(crate) fn is_free(&self, key: Key, reply: &Tuple) -> bool {
        !self.is_recalled(reply) && self.is_free_for(key, reply)
    }
    /// Returns true if a connection to no service has begun whose replies have this tuple.
    pub(crate) fn is_recalled(&self, reply: &Tuple) -> bool {
        reply.protocol != UDP && self.recalled.get(&node::direct(*reply)) == Some(reply)
    }
    pub(crate) fn is_free_for(&self, key: Key, reply: &Tuple) -> bool {
        // The masquerade port of a flow is in use like a client's own port.
        let is_masqueraded = self.masqueraded.contains_key(reply);
        let holder = self.flow_of_reply(reply);
        !is_masqueraded && holder.is_none_or(|(held, flow)| held == key || flow.life.is_closed())
    }
    /// Returns true if an evictable flow of a client behind another interface has the tuple.
    pub(crate) fn gives_in(&self, key: Key, reply: &Tuple) -> bool {
        self.flow_of_reply(reply)
            .is_some_and(|(held, flow)| held.interface != key.interface && flow.life.gives_way())
    }

    /// Judges a first packet to a destination of no service: it must get another source port if a
    /// flow of the same client already has its tuple.
    pub(crate) fn past_every_service(&mut self, case: &Case<'_>) -> Judgement {
        let Tuple { protocol, dst, .. } = case.headers.tuple;
        let reply = case.headers.tuple.reversed();
        let holder = self.flow_of_reply(&reply);
        let holder = holder.map(|(held, flow)| (held, flow.life.is_closed()));
        match holder.filter(|(held, _)| held.interface == case.key().interface) {
            Some((_, false)) => return self.with_another_port(case),
            Some((over, true)) => drop(self.remove_flow(over)),
            None => {}
        }
        if protocol != UDP && self.backend_ports.contains(&dst.port()) {
            self.recalled.insert(node::direct(reply), reply);
        }
        case.untouched()
    }

    fn with_another_port(&mut self, case: &Case<'_>) -> Judgement {
        let key = case.key();
        let place = self.push(Ring::of(&key.tuple), Named::Flow(key));
        let Tuple { protocol, src, dst } = key.tuple;
        if self.room(src.is_ipv6()) < 2 {
            self.is_lost = true;
            return Ok(());
        }
        if case.seen.counter == Counter::Untouched {
            return if self.settings.are_ports_scarce(PORT_TRIES) {
                case.untouched()
            } else {
                Err("a flow has its tuple, so it must get another source port".into())
            };
        }
        let source = case.went()?.src;
        self.settings.expect_source(source, src.ip())?;
        let reply = Tuple::new(protocol, dst, source);
        if self.replies.contains_key(&reply) || self.masqueraded.contains_key(&reply) {
            return Err(format!("another flow has the tuple from {source} to {dst}"));
        }
        let flow = Flow {
            place,
            ..Flow::begun(self.now, &case.headers, (source, dst))
        };
        self.insert_flow(key, flow);
        self.translated(case, source, dst, Counter::ForwardedNew)
    }
}
