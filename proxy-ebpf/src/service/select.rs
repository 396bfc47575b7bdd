// SPDX-License-Identifier: (Apache-2.0 OR MIT) AND GPL-2.0-only
//! Selects one of the backends of a service's record: by affinity, else by a slot of the block,
//! chosen by a random number or a hash. Called by `begin` and the socket hooks.

use proxy_common::{
    Addr, AffinityEntry, AffinityKey, Backend, BackendId, Block, EndpointSet, FlowKey, Record,
    ServiceFlags, ServiceId, affinity::AffinityClient, select,
};

use crate::{
    helpers,
    maps::{AffinityBy, SLOTS, tables::Tables},
    service::policy::block_of,
};

/// A client, in the form in which session affinity identifies it.
pub trait Client<T: Tables>: Copy {
    type Key: AffinityClient + Copy + 'static;
    fn key(self, service: ServiceId) -> Self::Key;
    fn map() -> &'static AffinityBy<Self::Key>;

    /// Returns the client's affinity to a backend of the record's service; None if it has none, or
    /// if it has timed out.
    #[inline(always)]
    fn recall(self, record: &Record<T::Addr>, now: u64) -> Option<AffinityEntry> {
        let key = self.key(record.service);
        // SAFETY: copied, then checked by its check word.
        let entry = unsafe { Self::map().get_ptr(key)?.read_volatile() };
        entry
            .holds(&key, record.affinity_timeout, now)
            .then_some(entry)
    }
    #[inline(always)]
    fn remember(self, service: ServiceId, chosen: &Chosen<T::Addr>, now: u64) {
        let key = self.key(service);
        let entry = AffinityEntry::new(&key, chosen.id, chosen.generation, now);
        // A full LRU map frees an element by itself; the next connection tries again.
        let _ = Self::map().insert(key, entry, 0);
    }
}

/// A client that is identified by its address.
#[derive(Clone, Copy)]
pub struct ByAddress<A>(pub A);

impl<T: Tables> Client<T> for ByAddress<T::Addr> {
    type Key = AffinityKey<T::Addr>;
    #[inline(always)]
    fn key(self, service: ServiceId) -> Self::Key {
        AffinityKey {
            service,
            client: self.0,
        }
    }
    #[inline(always)]
    fn map() -> &'static AffinityBy<Self::Key> {
        T::affinity()
    }
}

/// The selection of a backend for one new connection of a client: from affinity or from a block.
pub struct Choice<'a, A: Addr> {
    record: &'a Record<A>,
    block: Block,
    number: u32,
    /// Whether the client has affinity to a backend, which is in `held`.
    is_held: bool,
    /// The backend that the client has affinity to, else the first id.
    // VERIFIER: no Option, whose value is not written for None: the compiler stores any register,
    // and the verifier refuses a pointer.
    held: BackendId,
}

/// Returns a random number that selects one of `count`; 0 where there is only one.
// VERIFIER: exported, so that what follows is verified once and not for either answer.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn portolan_number(count: u32) -> u32 {
    if count > 1 { helpers::random() } else { 0 }
}

/// Returns the number that selects a slot of the block for a packet's flow: if possible, not a slot
/// of the backend `avoided`, which is 0 if none is to be avoided.
// VERIFIER: a frame of its own, because the caller's chain of calls fills the stack.
#[inline(never)]
pub fn number_of_flow<T: Tables>(
    record: &Record<T::Addr>,
    key: &FlowKey<T::Addr>,
    block: Block,
    avoided: &BackendId,
) -> u32 {
    let number = if !record.flags.has(ServiceFlags::MAGLEV) {
        portolan_number(block.count())
    } else if record.flags.has(ServiceFlags::AFFINITY) {
        select::client_number(key.src)
    } else {
        select::flow_number(key.src, key.src_port, &record.key)
    };
    if *avoided == BackendId(0) {
        return number;
    }
    portolan_past(block.0, number, avoided.0)
}

/// How many consecutive slots are searched for another backend. In a table of two backends, so many
/// slots of the same backend follow each other with a chance of one in four thousand million.
const LOOKS: u32 = 32;

/// Returns the first number from `number` on whose slot in the block has another backend than
/// `avoided`; `number` if none is found. Neighbouring slots of a Maglev table may have the same
/// backend.
// VERIFIER: exported, so that the loop is verified once.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn portolan_past(block: u64, number: u32, avoided: u32) -> u32 {
    for look in 0..LOOKS {
        let number = number.wrapping_add(look);
        let slot = select::slot(Block(block), number).and_then(|slot| SLOTS.get(slot));
        if slot.is_some_and(|id| id.0 != avoided) {
            return number;
        }
    }
    number
}

/// A chosen backend, with its id, and with its generation when it was chosen.
#[derive(Clone, Copy)]
pub struct Chosen<A: 'static> {
    pub id: BackendId,
    pub backend: &'static Backend<A>,
    pub generation: u32,
}

impl<'a, A: Addr> Choice<'a, A> {
    /// Begins the selection for `client`: by affinity, else by a slot. `external` selects the
    /// record's block; `number` returns the number that selects a slot of it.
    #[inline(always)]
    pub fn new<T: Tables<Addr = A>>(
        record: &'a Record<A>,
        client: impl Client<T>,
        external: bool,
        now: u64,
        number: impl FnOnce(Block) -> u32,
    ) -> Self {
        let set = record.flags.set_of_block(external);
        let held = held_by::<T>(record, client, set, now);
        let block = block_of(record, external);
        Self {
            record,
            block,
            number: number(block),
            is_held: held.is_some(),
            held: held.unwrap_or_default(),
        }
    }
    #[inline(always)]
    pub fn is_held(&self) -> bool {
        self.is_held
    }
    /// Returns the `attempt`-th backend to try: the backend that the client has affinity to, else
    /// the backend `attempt` slots after the slot of `number`. None if the maps do not agree, or if
    /// the block is empty.
    #[inline(always)]
    pub fn backend<T: Tables<Addr = A>>(&self, attempt: u32) -> Option<Chosen<A>> {
        let id = if self.is_held {
            self.held
        } else {
            let slot = select::slot(self.block, self.number.wrapping_add(attempt))?;
            *SLOTS.get(slot)?
        };
        let backend = T::backends().get(id.0)?;
        // The backend's set need not be checked: the backend is in the block.
        let serves = backend.service == self.record.service;
        serves.then_some(Chosen {
            id,
            backend,
            generation: backend.generation,
        })
    }
    /// Stores the client's affinity to this backend, if the service has affinity.
    #[inline(always)]
    pub fn hold<T: Tables<Addr = A>>(&self, client: impl Client<T>, chosen: &Chosen<A>, now: u64) {
        if self.record.flags.has(ServiceFlags::AFFINITY) {
            client.remember(self.record.service, chosen, now);
        }
    }
}

/// Returns the backend that a client has affinity to; None if it has none, or if that backend no
/// longer serves or is not in `set`, the endpoints that the client may use here.
#[inline(always)]
fn held_by<T: Tables>(
    record: &Record<T::Addr>,
    client: impl Client<T>,
    set: EndpointSet,
    now: u64,
) -> Option<BackendId> {
    if !record.flags.has(ServiceFlags::AFFINITY) {
        return None;
    }
    let entry = client.recall(record, now)?;
    let backend = T::backends().get(entry.backend.0)?;
    let serves =
        backend.is_current(record.service, entry.generation) && backend.sets.intersects(set);
    serves.then_some(entry.backend)
}
