// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Judges a packet of no known flow: its service, the verdict, and the flow that it may begin.

use std::net::SocketAddr;

use datapath::maps::family::Family;
use proxy_common::{Counter, FrontendKey, Port, Protocol, Settings, V4, V6, Verdict, select};

use super::{
    AffinityEntry, Case, Flow, Judgement, Live, Model, NEXT,
    answers::rejection,
    wire::{ACK, Headers, RST, SYN, TCP, Tuple},
};
use crate::services::{Backend, Frontend, service_range};

/// How many backends the programs try with the client's own source port, and then how many other
/// source ports. ARCHITECTURE.md says "another backend, or another source port" and leaves the
/// numbers to the programs.
const BACKEND_TRIES: usize = 4;
pub(crate) const PORT_TRIES: usize = 8;

/// What a new flow takes over from the previous flow with the same key.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Before {
    /// The masquerade port of the previous flow; None if it had none.
    pub(crate) port: Option<u16>,
    /// The backend of the previous flow, if it did not answer; the new flow should get another one.
    pub(crate) avoided: Option<SocketAddr>,
}

/// What a new flow must be like.
struct Wanted {
    name: String,
    /// The backends that the traffic policy allows, each with its incarnation in the service.
    allowed: Vec<(SocketAddr, u64)>,
    /// True if session affinity determines the backend.
    is_held: bool,
    has_affinity: bool,
    masquerade: bool,
    before: Before,
    /// With selection by hash: the backend that the hash selects.
    named: Option<SocketAddr>,
    /// True if each backend has one slot. Else slots that follow each other may be of the same one.
    has_equal_slots: bool,
}

impl Model {
    /// Judges a packet of no known flow. A mid-stream segment must get a reset where the service
    /// would forward a first packet, and be dropped where the policy drops. With selection by hash
    /// and without masquerade, it must go to the backend that the hash selects.
    pub(crate) fn begin(&mut self, case: &Case<'_>, before: Before) -> Judgement {
        let Headers { tuple, flags, .. } = case.headers;
        let Tuple { protocol, src, dst } = tuple;
        let concerns = !case.headers.is_later()
            && case.is_for_this_node()
            && !src.ip().is_loopback()
            && !dst.ip().is_loopback();
        let is_middle = !case.headers.begins();
        let is_ignored =
            protocol != TCP || flags & RST != 0 || !self.settings.has(Settings::RESET_UNKNOWN);
        if !concerns || is_middle && is_ignored {
            return case.untouched();
        }
        let Some((live, frontend)) = self.frontend(dst, protocol) else {
            return match self.unserved(case, !is_middle) {
                Some(judgement) => judgement,
                None if is_middle => case.untouched(),
                None => self.past_every_service(case),
            };
        };
        if is_middle && !self.answers_for(frontend, &case.headers) {
            return case.untouched();
        }
        let (external, masquerade) = match self.verdict(case.given, src.ip(), live, frontend) {
            Verdict::Reject => return rejection(case, Counter::RejectedNoEndpoint),
            Verdict::DropNoLocalEndpoint => return case.dropped(Counter::DroppedNoLocalEndpoint),
            Verdict::DropSource => return case.dropped(Counter::DroppedSource),
            Verdict::Forward {
                external,
                masquerade,
            } => (external, masquerade),
        };
        let goes_on = live.service.is_maglev && !masquerade && flags & (SYN | ACK) == ACK;
        if is_middle && !goes_on {
            return rejection(case, Counter::RejectedUnknownFlow);
        }
        let wanted = Wanted {
            masquerade,
            before,
            ..self.wanted(live, frontend, src, external)
        };
        self.forward(case, &wanted)
    }

    /// Judges a packet to a port or protocol that no service has; None if the address is no cluster
    /// IP. `begins`: the packet may begin a connection.
    pub(crate) fn unserved(&self, case: &Case<'_>, begins: bool) -> Option<Judgement> {
        let to = case.headers.tuple.dst.ip();
        if self.is_cluster_ip(to) {
            return Some(rejection(case, Counter::RejectedUnserved));
        }
        let drops = begins && self.settings.allocated && service_range(to.is_ipv6()).contains(&to);
        drops.then(|| case.dropped(Counter::DroppedUnallocated))
    }

    /// Returns what the service requires of a client's new flow to this frontend.
    fn wanted(&self, live: &Live, frontend: &Frontend, src: SocketAddr, external: bool) -> Wanted {
        let set = live.service.flags(frontend).set_of_block(external);
        let held = self.held(live, src.ip(), set);
        let mut allowed = held.map_or_else(|| live.in_set(set, src.is_ipv6()), |one| vec![one]);
        let named = live.service.is_maglev.then(|| match held {
            Some(held) => held.at,
            None if src.is_ipv6() => hashed::<V6>(live, frontend, src, &allowed),
            None => hashed::<V4>(live, frontend, src, &allowed),
        });
        allowed.retain(|one| held.is_some() || one.is_wanted());
        let has_equal_slots =
            named.is_none() && allowed.windows(2).all(|two| two[0].weight == two[1].weight);
        let allowed = allowed.into_iter();
        let allowed = allowed.map(|one| (one.at, live.incarnations[&one.at]));
        Wanted {
            name: live.service.name.clone(),
            allowed: allowed.collect(),
            is_held: held.is_some(),
            has_affinity: live.service.affinity > 0,
            masquerade: false,
            before: Before::default(),
            named,
            has_equal_slots,
        }
    }

    /// Checks that the programs could select this backend and source port, and records the flow.
    fn forward(&mut self, case: &Case<'_>, wanted: &Wanted) -> Judgement {
        let (key, seen, client) = (case.key(), case.seen, case.headers.tuple.src);
        if let Some(judgement) = self.without_room(case, wanted) {
            return judgement;
        }
        let reply = |backend, source| Tuple::new(key.tuple.protocol, backend, source);
        let is_taken =
            |at| !self.is_free(key, &reply(at, client)) || Some(at) == wanted.before.avoided;
        let is_middle = !case.headers.begins();
        let tries = if wanted.is_held { 1 } else { BACKEND_TRIES };
        let taken = wanted.allowed.iter().filter(|(at, _)| is_taken(*at));
        let taken = taken.count();
        let free_by_hash = wanted.named.filter(|at| !is_taken(*at));
        // Several entries of the hash table that follow each other may have the same backend, so
        // the programs may find no other one.
        let all_taken = match wanted.named {
            Some(_) => free_by_hash.is_none(),
            None if !wanted.has_equal_slots => taken > 0,
            None => taken >= wanted.allowed.len().min(tries),
        };
        if is_middle && free_by_hash.is_none() {
            return rejection(case, Counter::RejectedUnknownFlow);
        }
        if seen.verdict != NEXT {
            case.dropped(Counter::DroppedNoTuple)?;
            return match all_taken && self.settings.are_ports_scarce(PORT_TRIES) {
                true => Ok(()),
                false => Err("there is a free tuple".into()),
            };
        }
        let went = case.went()?;
        let (source, backend) = (went.src, went.dst);
        let Some((_, incarnation)) = wanted.allowed.iter().find(|(at, _)| *at == backend) else {
            let name = &wanted.name;
            fail!("{backend} is no backend of {name} for this client");
        };
        if source != client || !self.is_free(key, &reply(backend, client)) {
            // One of the other source ports that are tried may be the client's own port.
            self.settings.expect_source(source, client.ip())?;
            if !all_taken {
                fail!("the client's own port is free, but it got {source}");
            }
            let ports = || self.settings.ports();
            let at = |port| SocketAddr::new(client.ip(), port);
            let all = ports().flat_map(|port| wanted.allowed.iter().map(move |to| (to.0, port)));
            // The programs may try all ports, each with another backend. Only with the last try may
            // they take over the tuple of a client behind another interface.
            let is_last = || {
                let taken = all.filter(|(to, port)| !self.is_free_for(key, &reply(*to, at(*port))));
                taken.count() >= PORT_TRIES.min(ports().len())
            };
            let wanted = reply(backend, source);
            let fits = self.is_free_for(key, &wanted) || self.gives_in(key, &wanted) && is_last();
            if !fits {
                fail!("another flow has the tuple of {wanted:?}");
            }
        }
        if free_by_hash.is_some_and(|at| at != backend) {
            fail!("{free_by_hash:?} is free, but it got {backend}");
        }
        if is_middle {
            case.seen.counted(&[Counter::ForwardedMidStream])?;
        } else {
            self.check_avoided(case, wanted, backend)?;
        }
        // A closed flow with this tuple is removed with all of its entries.
        if let Some(over) = self.replies.get(&reply(backend, source)) {
            self.remove_flow(*over);
        }
        if wanted.has_affinity {
            let held = AffinityEntry {
                backend,
                incarnation: *incarnation,
                last_used: self.now,
            };
            self.affinity
                .insert((wanted.name.clone(), client.ip()), held);
        }
        let flow = Flow {
            service: Some(wanted.name.clone()),
            incarnation: *incarnation,
            is_masqueraded: wanted.masquerade || client.ip() == backend.ip(),
            port_before: wanted.before.port,
            ..Flow::begun(self.now, &case.headers, (source, backend))
        };
        let mark = case.given.mark | flow.mark();
        self.insert_flow(key, flow);
        self.remember_fragment(&case.headers);
        case.leaves((source, backend), mark, seen.counter)
    }

    /// Judges a first packet while the flow table is full; None if there is space for two entries,
    /// or if flows gave way for them.
    fn without_room(&mut self, case: &Case<'_>, wanted: &Wanted) -> Option<Judgement> {
        let client = case.headers.tuple.src;
        let v6 = client.is_ipv6();
        if self.room(v6) >= 2 {
            return None;
        }
        // If the table has tuples of this client and a backend, the result depends on the backend
        // that the programs tried first.
        let is_known = |at: SocketAddr| {
            let replies = self.replies.keys().chain(self.masqueraded.keys());
            let mut replies = replies.chain(self.recalled.values());
            replies.any(|reply| (reply.src, reply.dst) == (at, client))
        };
        if wanted.allowed.iter().any(|(at, _)| is_known(*at)) {
            self.is_lost = true;
            return Some(Ok(()));
        }
        // For the reply entry, and then for the original one.
        let taken = (0..2).find(|taken| !self.make_room(&case.headers.tuple, *taken))?;
        // With space for one entry, the programs have stored the reply entry and then an affinity,
        // whose backend cannot be seen.
        self.is_lost = taken == 1 && wanted.has_affinity;
        Some(case.dropped(Counter::DroppedFlowTableFull))
    }

    /// Checks that the new flow avoids a backend that did not answer, if there is another backend.
    fn check_avoided(&self, case: &Case<'_>, wanted: &Wanted, backend: SocketAddr) -> Judgement {
        let avoided = wanted.before.avoided;
        case.seen.counted(&[match avoided {
            Some(avoided) if avoided != backend => Counter::ForwardedElsewhere,
            _ => Counter::ForwardedNew,
        }])?;
        let Tuple { protocol, src, .. } = case.headers.tuple;
        let mut others = wanted.allowed.iter().filter(|(at, _)| *at != backend);
        let is_free = |at| self.is_free(case.key(), &Tuple::new(protocol, at, src));
        let has_other = others.any(|(at, _)| is_free(*at));
        let is_equal = wanted.has_equal_slots;
        let few = if is_equal { BACKEND_TRIES } else { 3 };
        let must_avoid = has_other && wanted.allowed.len() < few && !wanted.is_held;
        if avoided == Some(backend) && must_avoid {
            fail!("{backend} does not answer, and there is another backend");
        }
        Ok(())
    }
}

/// Returns the backend among those of a set that the hash of client and frontend selects.
fn hashed<A: Family>(
    live: &Live,
    frontend: &Frontend,
    client: SocketAddr,
    of_set: &[Backend],
) -> SocketAddr {
    let end = |at: SocketAddr| {
        let address = A::of_ip(at.ip()).expect("of this family");
        (address, Port::from_host(at.port()))
    };
    let ends: Vec<_> = of_set.iter().map(|one| end(one.at)).collect();
    let weights: Vec<_> = of_set.iter().map(|one| one.weight).collect();
    let ((source, port), (to, to_port)) = (end(client), end(frontend.at));
    let number = if live.service.affinity > 0 {
        select::client_number(source)
    } else {
        let key = FrontendKey::new(to, to_port, Protocol(live.service.protocol));
        select::flow_number(source, port, &key)
    };
    let table = select::maglev::weighted(&ends, &weights);
    of_set[table[number as usize % table.len()] as usize].at
}
