// SPDX-License-Identifier: (Apache-2.0 OR MIT) AND GPL-2.0-only
//! From a destination to a backend: frontend, record, verdict, affinity, selection. Shared by every hook
//! that begins a connection.

use aya_ebpf::btf_maps::lpm_trie::Key;
use proxy_common::{
    Addr, AffinityEntry, AffinityKey, Backend, BackendId, Block, Counter, EndpointSet, FrontendKey,
    FrontendKind, Origin, Port, Protocol, Record, ServiceFlags, ServiceId, Settings, Verdict,
    decide,
    maps::{interface, node_address},
    ports, select,
    service::SourceRangeKey,
};

use crate::{
    family::Family,
    filter,
    maps::{INTERFACES, SETTINGS, SLOTS},
    packet::{Skb, access},
};

/// The node's settings; absent only before the agent has written them.
#[inline(always)]
pub fn settings() -> Option<&'static Settings> {
    SETTINGS.get(0)
}

/// The record that a destination leads to: by its address and port, by its port if it is one of the
/// node's addresses, or because it is a cluster IP.
#[inline(always)]
pub fn find<F: Family>(
    address: F::Addr,
    port: Port,
    protocol: Protocol,
) -> Option<&'static Record<F::Addr>> {
    match F::find_record(address, port, protocol) {
        NO_RECORD => None,
        id => F::records().get(id),
    }
}

const NO_RECORD: u32 = 0;

/// The same record's id, or [`NO_RECORD`]; for [`Family::find_record`].
#[inline(always)]
pub fn find_id<F: Family>(address: F::Addr, port: Port, protocol: Protocol) -> u32 {
    let bits = filter::bits(port);
    if bits & ports::FRONTEND != 0
        && let Some(id) = id_of::<F>(&FrontendKey::new(address, port, protocol))
    {
        return id;
    }
    if bits & ports::NODE_PORT != 0
        && serves_node_ports::<F>(address)
        && let Some(id) = id_of::<F>(&FrontendKey::node_port(port, protocol))
    {
        return id;
    }
    settings()
        .and_then(|settings| guard_of::<F>(address, settings))
        .unwrap_or(NO_RECORD)
}

/// Whether an address that no frontend has is one of those that cluster IPs are allocated from.
#[inline(always)]
pub fn is_unallocated<F: Family>(address: F::Addr, settings: &Settings) -> bool {
    F::services(settings).contains(address) && F::is_allocatable(address)
}

/// The id of the record that rejects a cluster IP's unserved ports, if the address is one.
#[inline(always)]
pub fn guard_of<F: Family>(address: F::Addr, settings: &Settings) -> Option<u32> {
    if !F::services(settings).contains(address) {
        return None;
    }
    id_of::<F>(&FrontendKey::unserved(address))
}

/// Whether node ports are served on this address.
#[inline(always)]
pub fn serves_node_ports<F: Family>(address: F::Addr) -> bool {
    // SAFETY: the value is one word, read at once.
    unsafe { F::node_addresses().get(address) }
        .is_some_and(|flags| flags & node_address::NODE_PORT != 0)
}

/// Whether this is an address of the node.
#[inline(always)]
pub fn is_node_address<F: Family>(address: F::Addr) -> bool {
    F::node_addresses().get_ptr(address).is_some()
}

/// The id of a frontend's record. Hash elements are recycled under readers, so the record says whose it is; on a
/// mismatch the second look meets the finished change.
#[inline(always)]
fn id_of<F: Family>(key: &FrontendKey<F::Addr>) -> Option<u32> {
    for _ in 0..2 {
        // SAFETY: the value is one word, read at once.
        let id = unsafe { F::frontends().get(key) }?;
        let record = F::records().get(id.0)?;
        if record.key == *key {
            return Some(id.0);
        }
    }
    None
}

/// Who sends, told by the source address or the interface; whether a non-pod is the node itself is only
/// looked up for frontends where it matters.
#[inline(always)]
fn origin_of<F: Family>(
    skb: Skb,
    source: F::Addr,
    flags: ServiceFlags,
    settings: &Settings,
) -> Origin {
    let is_pod = if settings.has(Settings::PODS_BY_INTERFACE) {
        portolan_has_pods(skb.interface()) != 0
    } else {
        settings.has(Settings::DETECTS_PODS) && F::is_pod(settings, source)
    };
    if is_pod {
        Origin::Pod
    } else if flags.has(ServiceFlags::EXTERNAL_LOCAL) && is_node_address::<F>(source) {
        Origin::Host
    } else {
        Origin::External
    }
}

/// Whether pods are behind the interface with this index: 1 or 0.
// VERIFIER: exported, so that it is verified once and not on every path that leads here.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn portolan_has_pods(interface: u32) -> u32 {
    (known_of(interface) & interface::PODS != 0) as u32
}

/// What the agent has said of an interface, as in [`interface`]; nothing of those that the programs are not on.
#[inline(always)]
pub fn known_of(index: u32) -> u32 {
    // SAFETY: the value is one word, read at once.
    unsafe { INTERFACES.get(index) }.copied().unwrap_or(0)
}

/// What a client's first packet is to become.
#[inline(always)]
pub fn judge<F: Family>(
    skb: Skb,
    record: &Record<F::Addr>,
    source: F::Addr,
    settings: &Settings,
) -> Verdict {
    let origin = origin_of::<F>(skb, source, record.flags, settings);
    judge_as::<F>(record, origin, source, settings)
}

/// The same where it is known who sends; `source` is looked at for frontends with source ranges only.
#[inline(always)]
pub fn judge_as<F: Family>(
    record: &Record<F::Addr>,
    origin: Origin,
    source: F::Addr,
    settings: &Settings,
) -> Verdict {
    let source_allowed = !record.flags.has(ServiceFlags::SOURCE_RANGES) || {
        let range = SourceRangeKey {
            service: record.service,
            address: source,
        };
        F::source_ranges()
            .get(&Key::new(32 + F::Addr::BITS, range))
            .is_some()
    };
    decide(
        record.flags,
        origin,
        settings.policy(),
        block_of(record, false).count() != 0,
        block_of(record, true).count() != 0,
        source_allowed,
    )
}

/// Why a verdict is a rejection.
#[inline(always)]
pub fn rejection_of<A: Addr>(record: &Record<A>) -> Counter {
    match record.flags.kind() {
        FrontendKind::Unserved => Counter::RejectedUnserved,
        _ => Counter::RejectedNoEndpoint,
    }
}

/// One of a record's blocks, loaded as one word: the agent may be storing another.
#[inline(always)]
fn block_of<A: Addr>(record: &Record<A>, external: bool) -> Block {
    let block = if external {
        &record.external
    } else {
        &record.internal
    };
    // SAFETY: an aligned word of a live array element.
    unsafe { core::ptr::from_ref(block).read_volatile() }
}

/// A client as affinity remembers it.
pub trait Client<F: Family>: Copy {
    /// What is remembered of the client, if it still holds.
    fn recall(self, record: &Record<F::Addr>, now: u64) -> Option<AffinityEntry>;
    fn remember(self, service: ServiceId, chosen: &Chosen<F::Addr>, now: u64);
}

/// A client by its address.
#[derive(Clone, Copy)]
pub struct ByAddress<A>(pub A);

impl<F: Family> Client<F> for ByAddress<F::Addr> {
    #[inline(always)]
    fn recall(self, record: &Record<F::Addr>, now: u64) -> Option<AffinityEntry> {
        let key = self.key(record.service);
        // SAFETY: copied, then checked by its check word.
        let entry = unsafe { F::affinity().get_ptr(key)?.read_volatile() };
        entry
            .holds(&key, record.affinity_timeout, now)
            .then_some(entry)
    }
    #[inline(always)]
    fn remember(self, service: ServiceId, chosen: &Chosen<F::Addr>, now: u64) {
        let key = self.key(service);
        let entry = AffinityEntry::new(&key, chosen.id, chosen.generation, now);
        // A full LRU map makes room by itself; the next connection tries again.
        let _ = F::affinity().insert(key, entry, 0);
    }
}

impl<A> ByAddress<A> {
    #[inline(always)]
    fn key(self, service: ServiceId) -> AffinityKey<A> {
        AffinityKey {
            service,
            client: self.0,
        }
    }
}

/// A client's choice of backends for one new flow.
pub struct Choice<'a, A: Addr> {
    record: &'a Record<A>,
    block: Block,
    number: u32,
    /// Whether affinity leaves no choice.
    is_held: bool,
    /// The backend that affinity holds the client to, else the first.
    // VERIFIER: no Option, whose value nobody writes where there is none: any register is stored, a pointer too.
    held: BackendId,
}

/// A number to choose one of `count` by; of one there is nothing to choose.
// VERIFIER: exported, so that what follows is verified once and not for either answer.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn portolan_number(count: u32) -> u32 {
    if count > 1 { access::random() } else { 0 }
}

/// A backend, its id, and its generation when it was chosen.
#[derive(Clone, Copy)]
pub struct Chosen<A: 'static> {
    pub id: BackendId,
    pub backend: &'static Backend<A>,
    pub generation: u32,
}

impl<'a, A: Addr> Choice<'a, A> {
    /// Begins to choose for `client`.
    #[inline(always)]
    pub fn new<F: Family<Addr = A>>(
        record: &'a Record<A>,
        client: impl Client<F>,
        external: bool,
        now: u64,
    ) -> Self {
        let set = record.flags.set_of_block(external);
        let held = held_by::<F>(record, client, set, now);
        let block = block_of(record, external);
        Self {
            record,
            block,
            number: portolan_number(block.count()),
            is_held: held.is_some(),
            held: held.unwrap_or_default(),
        }
    }
    /// Whether affinity leaves no choice.
    #[inline(always)]
    pub fn is_held(&self) -> bool {
        self.is_held
    }
    /// The `attempt`-th backend to try: the held one, else one after the other from a random slot.
    #[inline(always)]
    pub fn backend<F: Family<Addr = A>>(&self, attempt: u32) -> Option<Chosen<A>> {
        let id = if self.is_held {
            self.held
        } else {
            let slot = select::slot(self.block, self.number.wrapping_add(attempt))?;
            *SLOTS.get(slot)?
        };
        let backend = F::backends().get(id.0)?;
        // The set is not asked for here: a block says by itself who is in it.
        let serves = backend.service == self.record.service;
        serves.then_some(Chosen {
            id,
            backend,
            generation: backend.generation,
        })
    }
    /// Holds the client to what it got.
    #[inline(always)]
    pub fn hold<F: Family<Addr = A>>(&self, client: impl Client<F>, chosen: &Chosen<A>, now: u64) {
        if self.record.flags.has(ServiceFlags::AFFINITY) {
            client.remember(self.record.service, chosen, now);
        }
    }
}

/// The backend that affinity holds a client to, if it still serves and the client may have it here.
#[inline(always)]
fn held_by<F: Family>(
    record: &Record<F::Addr>,
    client: impl Client<F>,
    set: EndpointSet,
    now: u64,
) -> Option<BackendId> {
    if !record.flags.has(ServiceFlags::AFFINITY) {
        return None;
    }
    let entry = client.recall(record, now)?;
    let backend = F::backends().get(entry.backend.0)?;
    let serves =
        backend.is_current(record.service, entry.generation) && backend.sets.intersects(set);
    serves.then_some(entry.backend)
}
