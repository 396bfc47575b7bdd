// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Policy and selection: the arguments for `decide`, and the backends that a client may get. Which
//! tuples a new flow may have: no two living flows have the same tuple. For connections to no
//! service, see the end of "A flow's entries" in ARCHITECTURE.md.

use std::net::{IpAddr, SocketAddr};

use proxy_common::{
    Counter, EndpointSet, FrontendKind, Origin, Settings, Verdict, decide, verdict::Policy,
};

use super::{
    Case, Flow, Given, Judgement, Key, Live, Model,
    begin::PORT_TRIES,
    wire::{ACK, Headers, SYN, Tuple, UDP},
};
use crate::{
    node,
    services::{Backend, Frontend, is_node, pod_range},
};

impl Model {
    /// Returns the verdict on a client's first packet to a frontend.
    pub(crate) fn verdict(
        &self,
        given: &Given<'_>,
        client: IpAddr,
        live: &Live,
        frontend: &Frontend,
    ) -> Verdict {
        let flags = live.service.flags(frontend);
        let v6 = frontend.at.is_ipv6();
        let any = |external| {
            let set = live.in_set(flags.set_of_block(external), v6);
            set.iter().any(Backend::is_wanted)
        };
        let mut ranges = live.service.sources.iter();
        let allowed = ranges.any(|range| range.contains(&client));
        let policy = Policy {
            masquerade_all: self.settings.has(Settings::MASQUERADE_ALL),
            detects_pods: self.settings.has(Settings::DETECTS_PODS),
        };
        let origin = self.origin(given, client);
        decide(flags, origin, policy, any(false), any(true), allowed)
    }
    fn origin(&self, given: &Given<'_>, client: IpAddr) -> Origin {
        let is_pod = if self.settings.has(Settings::PODS_BY_INTERFACE) {
            given.interface.has_pods()
        } else {
            self.settings.has(Settings::DETECTS_PODS)
                && pod_range(client.is_ipv6()).contains(&client)
        };
        if is_pod {
            Origin::Pod
        } else if is_node(client) {
            Origin::Host
        } else {
            Origin::External
        }
    }
    /// Returns the backend of a client's session affinity if it is valid and in the set; else None.
    pub(crate) fn held(&self, live: &Live, client: IpAddr, set: EndpointSet) -> Option<Backend> {
        let timeout = u64::from(live.service.affinity);
        let held = self.affinity.get(&(live.service.name.clone(), client))?;
        let holds = timeout > 0
            && self.now - held.last_used <= timeout
            && live.incarnations.get(&held.backend) == Some(&held.incarnation);
        let mut of_set = live.in_set(set, held.backend.is_ipv6()).into_iter();
        of_set.find(|one| holds && one.at == held.backend)
    }
    /// Returns client and backend of each affinity whose backend serves, expired or not, sorted.
    pub(crate) fn affinities(&self) -> Vec<(IpAddr, SocketAddr)> {
        let held = self.affinity.iter().filter_map(|((name, client), held)| {
            let serves = self.serves(name, held.backend, held.incarnation);
            serves.then_some((*client, held.backend))
        });
        let mut held: Vec<_> = held.collect();
        held.sort();
        held
    }
    /// Returns true if a mid-stream segment to the frontend may get a reset: not at the node.
    pub(crate) fn answers_for(&self, frontend: &Frontend, headers: &Headers) -> bool {
        let Tuple { src, dst, .. } = headers.tuple;
        match frontend.kind {
            FrontendKind::NodePort => false,
            FrontendKind::ClusterIp => true,
            // Another node may have this address too and masquerade with it; then the segment is a
            // backend's answer to that node.
            _ => {
                let is_answer = headers.flags & (SYN | ACK) == SYN | ACK
                    || self.backend_ports.contains(&src.port());
                !is_node(dst.ip()) && !is_answer
            }
        }
    }

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
        let Tuple { protocol, src, dst } = key.tuple;
        if self.room(src.is_ipv6()) < 2 {
            self.is_lost = true;
            return Ok(());
        }
        if case.seen.counter == Counter::Untouched {
            return match self.settings.are_ports_scarce(PORT_TRIES) {
                true => case.untouched(),
                false => Err("a flow has its tuple, so it must get another source port".into()),
            };
        }
        let source = case.went()?.src;
        self.settings.expect_source(source, src.ip())?;
        let reply = Tuple::new(protocol, dst, source);
        if self.replies.contains_key(&reply) || self.masqueraded.contains_key(&reply) {
            fail!("another flow has the tuple from {source} to {dst}");
        }
        let flow = Flow::begun(self.now, &case.headers, (source, dst));
        self.insert_flow(key, flow);
        self.translated(case, source, dst, Counter::ForwardedNew)
    }
}
