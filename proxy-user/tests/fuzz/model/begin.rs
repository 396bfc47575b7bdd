// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Judges a packet of no known flow: its service, the verdict, and the flow that it may begin.

use std::net::{IpAddr, SocketAddr};

use proxy_common::{Addr, Counter, FrontendKey, Port, Protocol, Verdict, select};

use super::{
    AffinityEntry, Flow, Given, Judgement, Key, Live, MARK, Model, NEXT, Seen, counted, dropped,
    ingress::untouched,
    life::Life,
    passes, reject,
    rings::{Named, Ring},
    wire::{self, ACK, Fragment, Headers, RST, SYN, TCP, Tuple},
};
use crate::services::{Backend, Frontend, service_range, v4, v6};

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
    /// True if the packet is not the first one of its connection.
    is_middle: bool,
}

impl Model {
    pub(crate) fn begin(
        &mut self,
        given: &Given<'_>,
        headers: &Headers,
        key: Key,
        before: Before,
        seen: &Seen,
    ) -> Judgement {
        let Tuple { protocol, src, dst } = headers.tuple;
        let is_first = !matches!(headers.fragment, Fragment::Later(_));
        let concerns = is_first
            && Self::is_for_this_node(given)
            && !is_loopback(src.ip())
            && !is_loopback(dst.ip());
        if !concerns {
            return untouched(given, seen);
        }
        let found = self.frontend(dst, protocol);
        if !headers.begins() {
            return self.in_the_middle(given, headers, key, seen);
        }
        let Some((live, frontend)) = found else {
            if self.is_cluster_ip(dst.ip()) {
                return reject::judge(given, headers, seen, Counter::RejectedUnserved);
            }
            if self.settings.allocated && service_range(dst.is_ipv6()).contains(&dst.ip()) {
                return dropped(seen, Counter::DroppedUnallocated);
            }
            return self.past_every_service(given, headers, key, seen);
        };
        match self.verdict(given, src.ip(), live, frontend) {
            Verdict::Reject => reject::judge(given, headers, seen, Counter::RejectedNoEndpoint),
            Verdict::DropNoLocalEndpoint => dropped(seen, Counter::DroppedNoLocalEndpoint),
            Verdict::DropSource => dropped(seen, Counter::DroppedSource),
            Verdict::Forward {
                external,
                masquerade,
            } => {
                let wanted = self.wanted(live, frontend, headers, (external, masquerade), before);
                self.forward(given, headers, key, &wanted, seen)
            }
        }
    }

    /// Returns what the service requires of a new flow to this frontend.
    fn wanted(
        &self,
        live: &Live,
        frontend: &Frontend,
        headers: &Headers,
        (external, masquerade): (bool, bool),
        before: Before,
    ) -> Wanted {
        let Tuple { src, dst, .. } = headers.tuple;
        let set = live.service.flags(frontend).set_of_block(external);
        let held = self.held(live, src.ip(), set);
        let mut allowed = held.map_or_else(|| live.in_set(set, dst.is_ipv6()), |one| vec![one]);
        let named = if live.service.is_maglev && held.is_none() {
            Some(hashed(live, frontend, src, &allowed))
        } else {
            held.filter(|_| live.service.is_maglev).map(|one| one.at)
        };
        allowed.retain(|one| held.is_some() || one.is_wanted());
        let has_equal_slots =
            named.is_none() && allowed.windows(2).all(|two| two[0].weight == two[1].weight);
        let allowed = allowed
            .into_iter()
            .map(|one| (one.at, live.incarnations[&one.at]));
        Wanted {
            name: live.service.name.clone(),
            allowed: allowed.collect(),
            is_held: held.is_some(),
            has_affinity: live.service.affinity > 0,
            masquerade,
            before,
            named,
            has_equal_slots,
            is_middle: !headers.begins(),
        }
    }

    /// Judges a mid-stream segment of an unknown connection. It must get a reset where the service
    /// would forward a first packet, and be dropped where the policy drops. With selection by hash
    /// and without masquerade, it must go to the backend that the hash selects.
    fn in_the_middle(
        &mut self,
        given: &Given<'_>,
        headers: &Headers,
        key: Key,
        seen: &Seen,
    ) -> Judgement {
        let Tuple { protocol, src, dst } = headers.tuple;
        if protocol != TCP || headers.flags & RST != 0 || !self.settings.resets {
            return untouched(given, seen);
        }
        let Some((live, frontend)) = self.frontend(dst, protocol) else {
            return if self.is_cluster_ip(dst.ip()) {
                reject::judge(given, headers, seen, Counter::RejectedUnserved)
            } else {
                untouched(given, seen)
            };
        };
        if !self.answers_for(frontend, headers) {
            return untouched(given, seen);
        }
        match self.verdict(given, src.ip(), live, frontend) {
            Verdict::Reject => reject::judge(given, headers, seen, Counter::RejectedNoEndpoint),
            Verdict::DropNoLocalEndpoint => dropped(seen, Counter::DroppedNoLocalEndpoint),
            Verdict::DropSource => dropped(seen, Counter::DroppedSource),
            Verdict::Forward {
                external,
                masquerade: false,
            } if live.service.is_maglev && headers.flags & (SYN | ACK) == ACK => {
                let path = (external, false);
                let wanted = self.wanted(live, frontend, headers, path, Before::default());
                self.forward(given, headers, key, &wanted, seen)
            }
            Verdict::Forward { .. } => {
                reject::judge(given, headers, seen, Counter::RejectedUnknownFlow)
            }
        }
    }

    /// Checks that the programs could select this backend and source port, and records the flow.
    fn forward(
        &mut self,
        given: &Given<'_>,
        headers: &Headers,
        key: Key,
        wanted: &Wanted,
        seen: &Seen,
    ) -> Judgement {
        let place = self.push(Ring::of(&key.tuple), Named::Flow(key));
        let client = headers.tuple.src;
        if let Some(judgement) = self.without_room(client, wanted, seen) {
            return judgement;
        }
        let free = |model: &Self, at: SocketAddr| model.is_free(key, at, client);
        let tries = if wanted.is_held { 1 } else { BACKEND_TRIES };
        let avoided = wanted.before.avoided;
        let is_taken = |at: SocketAddr| !free(self, at) || Some(at) == avoided;
        let taken = wanted
            .allowed
            .iter()
            .filter(|(at, _)| is_taken(*at))
            .count();
        let free_by_hash = wanted.named.filter(|at| !is_taken(*at));
        // Several entries of the hash table that follow each other may have the same backend, so
        // the programs may find no other one.
        let all_taken = match wanted.named {
            Some(_) => free_by_hash.is_none(),
            None if !wanted.has_equal_slots => taken > 0,
            None => taken >= wanted.allowed.len().min(tries),
        };
        if wanted.is_middle && free_by_hash.is_none() {
            return reject::judge(given, headers, seen, Counter::RejectedUnknownFlow);
        }
        if seen.verdict != NEXT {
            dropped(seen, Counter::DroppedNoTuple)?;
            return if all_taken && self.are_ports_scarce() {
                Ok(())
            } else {
                Err("there is a free tuple".into())
            };
        }
        let Some(went) = wire::read(&seen.frame) else {
            return Err("what goes on is no packet".into());
        };
        let (source, backend) = (went.tuple.src, went.tuple.dst);
        let Some((_, incarnation)) = wanted.allowed.iter().find(|(at, _)| *at == backend) else {
            return Err(format!(
                "{backend} is no backend of {} for this client",
                wanted.name
            ));
        };
        if source != client || !free(self, backend) {
            // One of the other source ports that are tried may be the client's own port.
            let (low, high) = self.settings.ports;
            if source.ip() != client.ip() || !(low..=high).contains(&source.port()) {
                return Err(format!("{source} is no source for {client}"));
            }
            if !all_taken {
                return Err(format!(
                    "the client's own port is free, but it got {source}"
                ));
            }
            let at = |port| SocketAddr::new(client.ip(), port);
            let all =
                (low..=high).flat_map(|port| wanted.allowed.iter().map(move |to| (to.0, port)));
            // The programs may try all ports, each with another backend. Only with the last try may
            // they take over the tuple of a client behind another interface.
            let is_last = || {
                let taken = all.filter(|(to, port)| !self.is_free_for(key, *to, at(*port)));
                taken.count() >= PORT_TRIES.min(usize::from(high - low) + 1)
            };
            let may_have = self.is_free_for(key, backend, source)
                || self.gives_in(key, backend, source) && is_last();
            if !may_have {
                return Err(format!(
                    "another flow has the tuple from {source} to {backend}"
                ));
            }
        }
        if free_by_hash.is_some_and(|at| at != backend) {
            return Err(format!("{free_by_hash:?} is free, but it got {backend}"));
        }
        if wanted.is_middle {
            counted(seen, &[Counter::ForwardedMidStream])?;
        } else {
            self.check_avoided(wanted, backend, client, key, seen)?;
        }
        // A closed flow with this tuple is removed with all of its entries.
        let reply = Tuple {
            protocol: key.tuple.protocol,
            src: backend,
            dst: source,
        };
        if let Some(over) = self.replies.get(&reply) {
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
        let is_masqueraded = wanted.masquerade || client.ip() == backend.ip();
        let flow = Flow {
            backend,
            source,
            service: Some(wanted.name.clone()),
            incarnation: *incarnation,
            is_masqueraded,
            masquerade: None,
            port_before: wanted.before.port,
            life: Life::begun_by(headers),
            last_seen: self.now,
            checked: self.now,
            reply_noted: None,
            answer_noted: None,
            place,
        };
        self.insert_flow(key, flow);
        self.remember_fragment(headers);
        let mark = given.mark | if is_masqueraded { MARK } else { 0 };
        let frame = wire::with_ends(given.frame, headers, source, backend);
        passes(seen, &frame, mark, &[seen.counter])
    }

    /// Judges a first packet while the flow table is full; None if there is space for two entries.
    fn without_room(
        &mut self,
        client: SocketAddr,
        wanted: &Wanted,
        seen: &Seen,
    ) -> Option<Judgement> {
        let v6 = client.is_ipv6();
        let mut room = self.room(v6);
        if room >= 2 {
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
        for taken in 0..2 {
            if room == taken {
                self.make_room(v6);
                room = self.room(v6);
            }
        }
        if room >= 2 {
            return None;
        }
        // With space for one entry, the programs have stored the reply entry and then an affinity,
        // whose backend cannot be seen.
        self.is_lost = room == 1 && wanted.has_affinity;
        Some(dropped(seen, Counter::DroppedFlowTableFull))
    }

    /// Checks that the new flow avoids a backend that did not answer, if there is another backend.
    fn check_avoided(
        &self,
        wanted: &Wanted,
        backend: SocketAddr,
        client: SocketAddr,
        key: Key,
        seen: &Seen,
    ) -> Judgement {
        let counter = match wanted.before.avoided {
            Some(avoided) if avoided != backend => Counter::ForwardedElsewhere,
            _ => Counter::ForwardedNew,
        };
        counted(seen, &[counter])?;
        let others = wanted.allowed.iter().filter(|(at, _)| *at != backend);
        let has_other = others.clone().any(|(at, _)| self.is_free(key, *at, client));
        if wanted.before.avoided == Some(backend)
            && has_other
            && wanted.allowed.len()
                < if wanted.has_equal_slots {
                    BACKEND_TRIES
                } else {
                    3
                }
            && !wanted.is_held
        {
            return Err(format!(
                "{backend} does not answer, and there is another backend"
            ));
        }
        Ok(())
    }
}

/// Returns the backend among those of a set that the hash of client and frontend selects.
fn hashed(live: &Live, frontend: &Frontend, client: SocketAddr, of_set: &[Backend]) -> SocketAddr {
    fn of<A: Addr>(
        live: &Live,
        frontend: &Frontend,
        client: SocketAddr,
        of_set: &[Backend],
        address: fn(IpAddr) -> Option<A>,
    ) -> SocketAddr {
        let end = |at: SocketAddr| {
            let address = address(at.ip()).expect("of this family");
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
    if client.is_ipv6() {
        of(live, frontend, client, of_set, v6)
    } else {
        of(live, frontend, client, of_set, v4)
    }
}

pub(crate) fn is_loopback(address: IpAddr) -> bool {
    address.is_loopback()
}
