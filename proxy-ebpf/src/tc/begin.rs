// SPDX-License-Identifier: (Apache-2.0 OR MIT) AND GPL-2.0-only
//! The first packet of a flow: finds the verdict and the backend, and makes the flow's entries.
//! Called by `ingress`.

use proxy_common::{
    Addr, BackendId, Counter, FlowEntry, FlowKey, FlowKind, FlowState, Port, Protocol, Record,
    Settings, Verdict,
    carried::Source,
    filter::is_backends,
    flow::{coarse, may_begin},
    ports as port_bits,
    traffic::event,
    verdict,
};

use super::{
    Receiver, direct,
    mid_stream::mid_stream,
    receiver,
    step::{Next, Step},
    translate,
};
use crate::{
    count::Outcome,
    family::Family,
    globals, helpers,
    maps::{
        flow::{self, Claim},
        node, occupied, ports, room, traffic,
        workspace::Scratch,
    },
    packet::{Packet, Shape, Skb},
    service::{
        lookup, policy,
        select::{ByAddress, Choice, Chosen, number_of_flow},
    },
    socket,
};

/// How many backends are tried before a flow gets another source port.
const BACKEND_TRIES: u32 = 4;
/// How many source ports are tried after that.
const PORT_TRIES: u32 = 8;
/// The outcome for a mid-stream segment of an unknown connection.
const UNKNOWN_FLOW: Step = Step::reject(true, Counter::RejectedUnknownFlow);

by_family! {
    /// Decides about the packet in the workspace, which belongs to no known flow.
    begin portolan_begin_v4 portolan_begin_v6 = decide_on -> Step
}

#[inline(always)]
fn decide_on<F: Family>(skb: Skb) -> Step {
    let (Some((packet, _, scratch)), Some(settings)) =
        (flow::filled_workspace::<F>(), node::settings())
    else {
        return Step::untouched();
    };
    if node::is_drained() {
        return Step::untouched();
    }
    let key = &packet.key;
    if !may_begin(key.protocol, packet.signals) {
        let step = mid_stream::<F>(skb, packet, &mut scratch.service);
        if !matches!(step.next(), Next::Begin) {
            return step;
        }
        if !packet.signals.acknowledges() {
            return UNKNOWN_FLOW;
        }
        scratch.beginning.picks_up = 1;
    }
    if packet.shape == Shape::LaterFragment || F::is_loopback(key.dst) || F::is_loopback(key.src) {
        return Step::untouched();
    }
    let record = match receiver(skb) {
        Receiver::Other => return Step::untouched(),
        // Past every service, but this node may have a flow with its tuple.
        Receiver::Neighbour => None,
        Receiver::Node => match lookup::record_of::<F>(key.dst, key.dst_port, key.protocol) {
            Some(_) if socket::is_translated::<F>(skb, key) => None,
            None if lookup::is_unallocated::<F>(key.dst, settings) => {
                return Outcome::drop(Counter::DroppedUnallocated).into();
            }
            found => found,
        },
    };
    let Some(record) = record else {
        return if is_backends(ports::bits(key.dst_port)) {
            Step::DIRECT
        } else {
            Step::untouched()
        };
    };
    scratch.service = record.service;
    match policy::verdict_on_packet::<F>(skb, record, key.src, settings) {
        Verdict::Reject => {
            Step::reject(key.protocol == Protocol::TCP, policy::rejection_of(record))
        }
        Verdict::DropNoLocalEndpoint => Outcome::drop(Counter::DroppedNoLocalEndpoint).into(),
        Verdict::DropSource => Outcome::drop(Counter::DroppedSource).into(),
        Verdict::Forward {
            external,
            masquerade,
        } => {
            let avoids = scratch.beginning.avoided != BackendId(0);
            let may_keep = || {
                !globals::header_port().is_any()
                    && !avoids
                    && !settings.has(Settings::MARK_ONLY)
                    && node::header_key(0).is_some()
                    && lookup::needs_stack::<F>(key.src) == 0
            };
            scratch.beginning.source = Source::of(record.flags, masquerade, may_keep);
            forward::<F>(skb, packet, record, external, scratch)
        }
    }
}

/// Selects a backend and enters the flow's entries. `external` is that of [`Verdict::Forward`].
#[inline(always)]
fn forward<F: Family>(
    skb: Skb,
    packet: &Packet<F::Addr>,
    record: &Record<F::Addr>,
    external: bool,
    scratch: &mut Scratch<F::Addr>,
) -> Step {
    let client = ByAddress(packet.key.src);
    let now = helpers::now();
    let number =
        |block| number_of_flow::<F>(record, &packet.key, block, &scratch.beginning.avoided);
    let choice = Choice::new::<F>(record, client, external, now, number);
    let mut search = Search {
        key: &packet.key,
        record,
        scratch,
        choice,
        now,
        n: 0,
        result: TAKEN,
    };
    // No other backend knows a connection that is picked up mid-stream.
    let attempts = if search.scratch.beginning.picks_up == 0 {
        BACKEND_TRIES + PORT_TRIES
    } else {
        1
    };
    helpers::repeat(attempts, &mut search, attempt::<F>);
    if search.result == FULL {
        let tuple = &raw const search.scratch.key;
        room::make::<F>(tuple, search.scratch);
        let n = search.n as u64;
        attempt::<F>(n, &mut search);
    }
    match search.result {
        OURS => {
            if globals::redirects() {
                judge_ends::<F>(search.scratch);
            }
            let held = search.choice.is_held();
            enter_original::<F>(skb, packet, search.scratch, held)
        }
        FULL => Outcome::drop(Counter::DroppedFlowTableFull).into(),
        INCONSISTENT => Outcome::drop(Counter::DroppedInconsistent).into(),
        _ if search.scratch.beginning.picks_up != 0 => UNKNOWN_FLOW,
        _ => Outcome::drop(Counter::DroppedNoTuple).into(),
    }
}

/// The search for a backend and a tuple that no other flow has.
struct Search<'a, F: Family> {
    key: &'a FlowKey<F::Addr>,
    record: &'a Record<F::Addr>,
    scratch: &'a mut Scratch<F::Addr>,
    choice: Choice<'a, F::Addr>,
    now: u64,
    /// The number of the last attempt.
    n: u32,
    /// How the last attempt ended: [`OURS`], [`TAKEN`], [`FULL`] or [`INCONSISTENT`].
    result: u32,
}
const OURS: u32 = 0;
const TAKEN: u32 = 1;
const FULL: u32 = 2;
const INCONSISTENT: u32 = 3;

/// Makes the `n`-th attempt, which enters the reply entry: first with other backends, then with
/// other source ports. Returns 1 to stop.
extern "C" fn attempt<F: Family>(n: u64, search: &mut Search<'_, F>) -> u64 {
    search.n = n as u32;
    search.result = enter_reply::<F>(search, n as u32);
    (search.result != TAKEN) as u64
}

#[inline(always)]
fn enter_reply<F: Family>(search: &mut Search<'_, F>, n: u32) -> u32 {
    let Search {
        key,
        record,
        scratch,
        choice,
        now,
        ..
    } = search;
    let Some(chosen) = choice.backend::<F>(n) else {
        return INCONSISTENT;
    };
    let tries = if choice.is_held() { 1 } else { BACKEND_TRIES };
    if chosen.id == scratch.beginning.avoided && n + 1 < tries {
        return TAKEN;
    }
    let mut client_port = key.src_port;
    if n >= tries {
        let Some(settings) = node::settings() else {
            return INCONSISTENT;
        };
        match settings
            .masquerade_ports
            .candidate(Port::ANY, key.hash(), n)
        {
            Some(port) => client_port = port,
            None => return TAKEN,
        }
    }
    let backend = chosen.backend;
    ports::announce(backend.port, port_bits::REPLY);
    scratch.key.assign(
        &backend.address,
        backend.port,
        &key.src,
        client_port,
        key.protocol,
    );
    if n < tries && key.protocol != Protocol::UDP && direct::is_recalled(&scratch.key) {
        return TAKEN;
    }
    let entry = &mut scratch.entry;
    entry.begin(FlowKind::REPLY, key.interface(), *now);
    fill_reply::<F>(entry, key, record, &chosen, scratch.beginning.source);
    // Egress tries this port first.
    entry.reuse = scratch.beginning.port_before.0 as u32;
    flow::seal::<F>(&mut scratch.entry, &scratch.key);
    scratch.insists = (n + 1 == BACKEND_TRIES + PORT_TRIES) as u32;
    match occupied::claim_reply::<F>(scratch) {
        Claim::Taken => TAKEN,
        Claim::Full => FULL,
        Claim::Ours => {
            choice.hold::<F>(ByAddress(key.src), &chosen, *now);
            OURS
        }
    }
}

/// Fills in the entry of a new flow's replies: the frontend, the client's port, the service and the
/// backend.
#[inline(always)]
fn fill_reply<F: Family>(
    entry: &mut FlowEntry<F::Addr>,
    key: &FlowKey<F::Addr>,
    record: &Record<F::Addr>,
    chosen: &Chosen<F::Addr>,
    source: Source,
) {
    let is_hairpin = verdict::is_hairpin(key.src, chosen.backend.address);
    entry.flags = source.flags(chosen.backend.sets, is_hairpin);
    entry.port = key.dst_port;
    entry.address.assign(&key.dst);
    entry.client_port = key.src_port;
    entry.service = record.service;
    entry.backend = chosen.id;
    entry.generation = chosen.generation;
}

/// Notes in a new flow's reply entry, which is in the table and in `scratch`, whether one of the
/// flow's ends needs the stack. Checked once for each flow, so that the flow's other packets need
/// no check. Returns 0 if no end needs the stack.
// VERIFIER: checked here and not where the entry is made: the stack is too short there.
#[inline(never)]
fn judge_ends<F: Family>(scratch: &mut Scratch<F::Addr>) -> u32 {
    let Scratch { key, entry, .. } = scratch;
    let needs_stack = lookup::needs_stack::<F>(key.src) | lookup::needs_stack::<F>(key.dst);
    if needs_stack != 0 {
        entry.flags |= FlowEntry::<F::Addr>::NEEDS_STACK;
        flow::seal::<F>(entry, key);
        flow::amend::<F>(key, entry);
    }
    needs_stack
}

/// Enters the original entry of the flow whose reply entry is in the table and in `scratch`, and
/// sends the packet on. `held`: the backend was chosen by affinity. If another CPU has entered the
/// flow first, this CPU removes its own reply entry and uses the other CPU's flow.
#[inline(always)]
fn enter_original<F: Family>(
    skb: Skb,
    packet: &Packet<F::Addr>,
    scratch: &mut Scratch<F::Addr>,
    held: bool,
) -> Step {
    let key = &packet.key;
    let (reply_key, original) = (&scratch.key, &mut scratch.entry);
    original.kind = FlowKind::ORIGINAL;
    (original.address, original.port) = (reply_key.src, reply_key.src_port);
    original.client_port = reply_key.dst_port;
    if scratch.beginning.picks_up != 0 {
        original.state = FlowState::PICKED_UP;
    } else if key.protocol == Protocol::UDP {
        original.reuse = coarse(original.last_seen);
    } else {
        original.sequence = packet.first_number(skb);
    }
    flow::seal::<F>(original, key);
    let claim = room::enter::<F>(key, scratch);
    let (reply_key, original) = (&scratch.key, &mut scratch.entry);
    match claim {
        Claim::Ours => {
            let events = event::BEGUN | if held { event::HELD } else { 0 };
            traffic::note::<F>(original.backend.0, original.generation, events);
        }
        Claim::Full => {
            flow::remove::<F>(reply_key);
            return Outcome::drop(Counter::DroppedFlowTableFull).into();
        }
        Claim::Taken => match flow::find::<F>(key, &mut scratch.other) {
            Some(winner) if winner.entry.kind == FlowKind::ORIGINAL => {
                if !winner.entry.is_replied_by(key, reply_key) {
                    flow::remove::<F>(reply_key);
                }
                *original = *winner.entry;
            }
            _ => {
                flow::remove::<F>(reply_key);
                return Outcome::drop(Counter::DroppedNoTuple).into();
            }
        },
    }
    let counter = match scratch.beginning.avoided {
        _ if scratch.beginning.picks_up != 0 => Counter::ForwardedMidStream,
        BackendId(0) => Counter::ForwardedNew,
        avoided if avoided == original.backend => Counter::ForwardedNew,
        _ => Counter::ForwardedElsewhere,
    };
    if globals::redirects() {
        return Step::send(true, counter);
    }
    translate::to_backend::<F>(skb, packet, original, counter).into()
}
