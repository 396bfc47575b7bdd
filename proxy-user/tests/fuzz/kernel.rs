// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reads BPF maps: counters after each packet, tables after a sequence, which must have the same
//! entries as the model's flows. Empties those that the programs write, and controls the times in
//! the flow tables: only operations of a sequence let time pass.

use std::{
    collections::{BTreeMap, HashSet},
    mem,
    net::{IpAddr, SocketAddr},
    os::fd::OwnedFd,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use datapath::maps::{FlowTable, family::Family, pins::map_path, tables::Table};
use linux::{Mapping, PerCpu, Plain, get_pinned, monotonic, now};
use proxy_common::{
    Counter, FlowKind, FlowState, Protocol,
    flow::{ClientInterface, Offload, coarse, offload::clock},
    maps, ports,
};

use crate::{
    context::moved,
    flow_table::entries,
    model::{
        Key, Life, Model,
        wire::{SCTP, Tuple},
    },
    node,
    services::Interface,
    subject::{Subject, socket},
};

fn pinned(pin_dir: &Path, map: &str) -> OwnedFd {
    get_pinned(&map_path(pin_dir, map), false).expect("pinned")
}

pub(crate) fn table<K: Plain, V: Plain>(pin_dir: &Path, map: &str) -> Table<K, V> {
    Table::new(pinned(pin_dir, map)).expect("a table")
}

/// Removes every element of a table.
pub(crate) fn clear<K: Plain, V: Plain>(table: &Table<K, V>) {
    let entries = table.entries().expect("readable").into_iter();
    let keys: Vec<_> = entries.map(|(key, _)| key).collect();
    let refused = table.delete_all(&keys);
    assert!(refused.is_empty(), "{refused:?}");
}

/// Replaces every value in a table by what `change` makes of it.
fn change<K: Plain, V: Plain>(table: &Table<K, V>, change: impl Fn(&K, &mut V)) {
    for (key, mut value) in table.entries().expect("readable") {
        change(&key, &mut value);
        table.update(&key, &value).expect("stored");
    }
}

/// The map of counters, with the counts before the next packet.
pub(crate) struct Counters {
    map: PerCpu<u32, u64>,
    before: Vec<u64>,
}

impl Counters {
    pub(crate) fn open(pin_dir: &Path) -> Self {
        Self {
            map: PerCpu::new(pinned(pin_dir, maps::COUNTERS)).expect("counters"),
            before: Vec::new(),
        }
    }
    /// Reads the current counts as those before the next packet; returns the previous ones.
    pub(crate) fn reset(&mut self) -> Vec<u64> {
        let mut sums = Vec::new();
        let read = self.map.each(|_, values| {
            sums.push(values.iter().sum());
            true
        });
        read.expect("readable");
        mem::replace(&mut self.before, sums)
    }
    /// Returns the counter that the last packet has increased.
    pub(crate) fn moved(&mut self) -> Result<Option<Counter>, String> {
        moved(&self.reset(), &self.before)
    }
}

/// Other maps that the programs write. `remove` empties them at the beginning of a sequence.
pub(crate) struct Traces {
    budget: PerCpu<u32, [u64; 2]>,
    direct: Table<u32, u32>,
    port_bits: Mapping,
}

impl Traces {
    const PORT_BYTES: usize = ports::WORDS as usize * 8;

    pub(crate) fn open(pin_dir: &Path) -> Self {
        let port_bits = Mapping::new(pinned(pin_dir, maps::PORTS), 0, Self::PORT_BYTES);
        Self {
            budget: PerCpu::new(pinned(pin_dir, maps::REJECT_BUDGET)).expect("a budget"),
            direct: table(pin_dir, maps::DIRECT),
            port_bits: port_bits.expect("mapped"),
        }
    }
    /// Empties the maps. `direct` has the slots of the map `direct` that may be in use.
    pub(crate) fn remove(&self, direct: impl Iterator<Item = u32>) {
        const BY_PROGRAMS: u64 = ports::REPLY | ports::MASQUERADE | ports::DIRECT;
        // An empty budget of rejections fills up again as time passes.
        self.budget.store_all(&[(0, [0; 2])]).expect("stored");
        for place in direct {
            self.direct.update(&place, &0).expect("stored");
        }
        for at in (0..Self::PORT_BYTES).step_by(4) {
            let bits: u32 = self.port_bits.load(at);
            if bits != 0 {
                let cleared = bits & !(BY_PROGRAMS as u32 * (u32::MAX / 0xff));
                self.port_bits.store(at, &cleared);
            }
        }
    }
}

impl Subject {
    /// Makes every flow and session affinity older by some seconds.
    pub(crate) fn pass_time(&self, seconds: u64) {
        let past = seconds * 1_000_000_000;
        self.shift_flows(|at| at.wrapping_sub(past));
        change(&self.v4.affinity, |_, entry| entry.last_used -= past);
        change(&self.v6.affinity, |_, entry| entry.last_used -= past);
    }
    /// Makes flows younger by the real time since the last call, so that the real duration of a run
    /// does not matter: programs record some packets only once a second.
    pub(crate) fn hold_time(&mut self) {
        // Several times a second. The programs' clock is at most the margin behind real time.
        const OFTEN: Duration = Duration::from_millis(200);
        const MARGIN: Duration = Duration::from_millis(50);
        let passed = self.held.elapsed();
        if passed < OFTEN {
            return;
        }
        let present = monotonic() - MARGIN.as_nanos() as u64;
        let passed = passed.as_nanos() as u64;
        self.shift_flows(|last_seen| (last_seen + passed).min(present.max(last_seen)));
        self.held = Instant::now();
    }
    /// Records in the entry of a packet that comes in at `at`, as egress does, that the packets
    /// before it left towards `to`, and that replies came in from where their source is.
    pub(crate) fn record(&self, at: Interface, tuple: Tuple, to: IpAddr) {
        if to.is_ipv4() {
            record(&self.v4.flows, at, tuple, to);
        } else {
            record(&self.v6.flows, at, tuple, to);
        }
    }
    /// Changes the times in every flow's entries by `to`.
    fn shift_flows(&self, to: impl Fn(u64) -> u64) {
        shift(&self.v4.flows, &to);
        shift(&self.v6.flows, &to);
    }
}

fn record<A: Family>(flows: &FlowTable<A>, at: Interface, tuple: Tuple, to: IpAddr) {
    const MARGIN: Duration = Duration::from_millis(50);
    // A datagram's record is fresh until its unit of time ends: the program must run before that,
    // and its clock, which is behind, must have begun the unit.
    let margin = MARGIN.as_nanos() as u64;
    while clock(now() - margin) != clock(now() + margin) {
        thread::sleep(MARGIN / 10);
    }
    let client = ClientInterface::of_pod(Key::new(at, tuple).interface);
    let key = node::key::<A>(tuple);
    for key in [key.behind(client), key] {
        if let Some(mut entry) = flows.lookup(&key).expect("readable") {
            entry.came_by = Interface::towards(tuple.src.ip()).index();
            entry.offload = Offload::new(Interface::towards(to).index(), now());
            flows.update(&key, &entry).expect("stored");
        }
    }
}

/// Changes the times in every entry by `to`.
fn shift<A: Family>(flows: &FlowTable<A>, to: impl Fn(u64) -> u64) {
    for (key, mut entry) in entries(flows).expect("readable") {
        entry.last_seen = to(entry.last_seen);
        if key.protocol == Protocol::UDP && entry.kind == FlowKind::ORIGINAL {
            entry.reuse = coarse(to(u64::from(entry.reuse) << 20));
        }
        flows.update(&key, &entry).expect("stored");
    }
}

/// What an entry says: where packets go, from whom or to whom, whether they are masqueraded and as
/// whom, the bits of the state, and the number.
type Row = (SocketAddr, SocketAddr, bool, Option<SocketAddr>, u32, u32);
/// Flow entries. Key: kind of entry, tuple, and the client's interface.
type Entries = BTreeMap<(u8, Tuple, u32), Row>;

/// Compares flows and session affinities in the maps with those of the model.
pub(crate) fn compare(model: &Model, subject: &Subject) -> Result<(), String> {
    let (wanted, mut found) = (wanted(model), found(subject));
    for (key, row) in &wanted {
        let other = found.remove(key);
        if other != Some(*row) {
            fail!("{key:?} must be\n  {row:?}\nbut is\n  {other:?}");
        }
    }
    if let Some(entry) = found.first_key_value() {
        fail!("an entry is left behind: {entry:?}");
    }
    let (wanted, found) = (model.affinities(), subject.affinities());
    if wanted != found {
        fail!("the affinities must be\n  {wanted:?}\nbut are\n  {found:?}");
    }
    Ok(())
}

/// Returns the keys of the model's flows that have no entry in the maps, among others.
pub(crate) fn evicted(model: &Model, subject: &Subject) -> HashSet<Key> {
    let (wanted, found) = (wanted(model), found(subject));
    let missing = wanted.into_keys();
    let missing = missing.filter(|entry| !found.contains_key(entry));
    let missing = missing.map(|(_, tuple, interface)| Key { tuple, interface });
    missing.collect()
}

/// Returns the state as bits of a [`FlowState`].
fn bits(life: &Life) -> u32 {
    let bits = [
        (life.answered, FlowState::ANSWERED),
        (life.acknowledged, FlowState::ACKNOWLEDGED),
        (life.client_fin, FlowState::CLIENT_FIN),
        (life.backend_fin, FlowState::BACKEND_FIN),
        (life.backend_first, FlowState::BACKEND_FIRST),
        (life.reset, FlowState::RESET),
        (life.repeated, FlowState::REPEATED),
        (life.renewed, FlowState::RENEWED),
        (life.picked_up, FlowState::PICKED_UP),
        (life.fin_answered, FlowState::FIN_ANSWERED),
        (life.data_sent, FlowState::DATA_SENT),
    ];
    let set = bits.into_iter().filter(|(is, _)| *is);
    set.fold(0, |all, (_, bit)| all | bit.0)
}

/// Returns the number in an entry in host byte order; only SCTP's tags are in network byte order.
fn number(protocol: u8, sequence: u32) -> u32 {
    match protocol {
        SCTP => u32::from_be(sequence),
        _ => sequence,
    }
}

fn wanted(model: &Model) -> Entries {
    let mut entries = Entries::new();
    for (key, flow) in &model.flows {
        let Tuple { protocol, src, dst } = key.tuple;
        let (masqueraded, life) = (flow.is_masqueraded, &flow.life);
        let (state, number) = (bits(life), life.client_number);
        let row = (flow.backend, flow.source, masqueraded, None, state, number);
        entries.insert((FlowKind::ORIGINAL.0, key.tuple, key.interface), row);
        let (source, number) = (flow.masquerade, life.backend_number);
        let row = (dst, src, masqueraded, source, 0, number);
        entries.insert((FlowKind::REPLY.0, flow.reply(protocol), 0), row);
        if let Some(tuple) = flow.masqueraded_reply(protocol) {
            let row = (flow.source, tuple.src, false, None, 0, 0);
            entries.insert((FlowKind::MASQUERADED_REPLY.0, tuple, 0), row);
        }
    }
    for tuple in model.untouched.keys() {
        let row = (tuple.dst, tuple.src, false, None, 0, 0);
        entries.insert((FlowKind::UNTOUCHED.0, *tuple, 0), row);
    }
    entries
}

fn found(subject: &Subject) -> Entries {
    let mut found = Entries::new();
    read(&subject.v4.flows, &mut found);
    read(&subject.v6.flows, &mut found);
    found
}

fn read<A: Family>(flows: &FlowTable<A>, found: &mut Entries) {
    for (key, entry) in entries(flows).expect("readable") {
        let (src, dst) = (socket(key.src, key.src_port), socket(key.dst, key.dst_port));
        let tuple = Tuple::new(key.protocol.0, src, dst);
        let to = socket(entry.address, entry.port);
        let masqueraded = entry.is_masqueraded();
        let number = number(tuple.protocol, entry.sequence);
        let row = match entry.kind {
            FlowKind::ORIGINAL => {
                let source = socket(key.src, entry.client_port);
                (to, source, masqueraded, None, entry.state.0, number)
            }
            FlowKind::REPLY => {
                let client = socket(key.dst, entry.client_port);
                let source = socket(entry.masquerade, entry.masquerade_port);
                let source = Some(source).filter(|source| source.port() != 0);
                (to, client, masqueraded, source, 0, number)
            }
            FlowKind::MASQUERADED_REPLY => (to, src, false, None, 0, 0),
            _ => (dst, src, false, None, 0, 0),
        };
        let [a, b, c] = key.interface;
        let interface = u32::from_le_bytes([a, b, c, 0]);
        found.insert((entry.kind.0, tuple, interface), row);
    }
}
