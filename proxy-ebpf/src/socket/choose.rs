// SPDX-License-Identifier: (Apache-2.0 OR MIT) AND GPL-2.0-only
//! Chooses the backend for the address that a socket connects or sends to: record, verdict,
//! selection. Called by `connect` and `datagram`.

use proxy_common::{
    Addr, Block, Counter, PodAffinityKey, Port, Protocol, Record, ServiceId, SocketCookie,
    SocketEntry, SocketKey, SocketRole, Verdict, origin_of_socket, traffic::event,
};

use super::{
    Caller,
    table::{EntryBuffer, find},
};
use crate::{
    count,
    family::Family,
    helpers,
    maps::{AFFINITY_PODS, AffinityBy, node, traffic},
    service::{
        lookup, policy,
        select::{ByAddress, Choice, Chosen, Client, portolan_number},
    },
};

/// How many backends are tried to find one that no other service of the socket uses.
const BACKEND_TRIES: u32 = 4;

/// The address and port that a process connects or sends to, and the protocol of its socket.
#[derive(Clone, Copy)]
pub struct Target<A> {
    pub address: A,
    pub port: Port,
    pub protocol: Protocol,
}

/// The verdict on a socket's destination, and the counter that says why; in one word so that
/// subprograms can return it.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct SocketVerdict(u32);

impl SocketVerdict {
    /// The system call gets the address of the backend in the entry.
    pub const TRANSLATE: u32 = 0;
    /// The system call keeps the address that the process asked for.
    pub const UNTOUCHED: u32 = 1;
    /// The system call fails with ECONNREFUSED.
    pub const REFUSE: u32 = 2;
    /// Nothing is sent, and the process gets no answer.
    pub const DROP: u32 = 3;

    pub const fn new(kind: u32, counter: Counter) -> Self {
        Self(kind << 16 | counter as u32)
    }
    pub const fn kind(self) -> u32 {
        self.0 >> 16 & 0xff
    }
    /// The same verdict for a connection that begins; `events` are bits of [`event`] to count with
    /// it.
    #[inline(always)]
    const fn that_begins(self, events: u32) -> Self {
        Self(self.0 | (event::BEGUN | events) << 24)
    }
    /// Counts the connection for the entry's backend, if the verdict begins a connection.
    #[inline(always)]
    pub fn note<F: Family>(self, entry: &SocketEntry<F::Addr>) {
        let events = self.0 >> 24;
        if events != 0 {
            traffic::note::<F>(entry.backend.0, entry.generation, events);
        }
    }
    /// The same verdict, after counting a refusal for this service port.
    #[inline(always)]
    fn refusing(self, service: ServiceId) -> Self {
        traffic::portolan_refuse(service.0, self.0 & 0xffff);
        self
    }
    #[inline(always)]
    pub fn count(self) {
        count::add_at(self.0 & 0xffff);
    }
}

const UNTOUCHED: SocketVerdict =
    SocketVerdict::new(SocketVerdict::UNTOUCHED, Counter::SocketUntouched);

/// Chooses a backend. If the verdict is to translate, `buffer` then has the socket's entry, without
/// its link in the socket's list. `avoid` is the socket whose other services must not share the
/// backend.
#[inline(never)]
pub fn choose<F: Family>(
    caller: &Caller,
    target: &Target<F::Addr>,
    avoid: Option<&SocketCookie>,
    buffer: &mut EntryBuffer<F::Addr>,
) -> SocketVerdict {
    if node::is_drained() {
        return UNTOUCHED;
    }
    let settings = caller.settings;
    if F::is_loopback(target.address) && !caller.is_node() {
        // The address is a pod's own loopback, not the node's.
        return UNTOUCHED;
    }
    let address = served_at::<F>(target.address);
    let Target { port, protocol, .. } = *target;
    let Some(record) = lookup::record_of::<F>(address, port, protocol) else {
        // The packet path drops what pods send there.
        if caller.is_node() && lookup::is_unallocated::<F>(address, settings) {
            return SocketVerdict::new(SocketVerdict::DROP, Counter::DroppedUnallocated)
                .refusing(ServiceId::NONE);
        }
        return UNTOUCHED;
    };
    let Some(origin) = origin_of_socket::<F::Addr>(settings, record.flags, caller.is_node()) else {
        return UNTOUCHED;
    };
    // Only frontends with source ranges read the source, and pods never get here for such
    // frontends.
    let source = F::internal_address(settings);
    let external = match policy::verdict::<F>(record, origin, source, settings) {
        Verdict::Forward { external, .. } => external,
        Verdict::Reject => {
            return SocketVerdict::new(SocketVerdict::REFUSE, policy::rejection_of(record))
                .refusing(record.service);
        }
        // The packet path drops and counts these.
        _ if !caller.is_node() => return UNTOUCHED,
        Verdict::DropNoLocalEndpoint => {
            return SocketVerdict::new(SocketVerdict::DROP, Counter::DroppedNoLocalEndpoint)
                .refusing(record.service);
        }
        Verdict::DropSource => {
            return SocketVerdict::new(SocketVerdict::DROP, Counter::DroppedSource)
                .refusing(record.service);
        }
    };
    let now = helpers::now();
    let chosen = if caller.is_node() {
        select::<F>(
            record,
            ByAddress(source),
            external,
            now,
            avoid,
            target,
            buffer,
        )
    } else {
        select::<F>(
            record,
            ByNetns(caller.netns),
            external,
            now,
            avoid,
            target,
            buffer,
        )
    };
    let Some((chosen, events)) = chosen else {
        return SocketVerdict::new(SocketVerdict::DROP, Counter::DroppedInconsistent)
            .refusing(record.service);
    };
    let backend = chosen.backend;
    buffer.write(SocketEntry {
        check: 0,
        service: record.service,
        backend: chosen.id,
        generation: chosen.generation,
        frontend: target.address,
        backend_address: backend.address,
        next: F::Addr::UNSPECIFIED,
        frontend_port: port,
        backend_port: backend.port,
        next_port: Port::ANY,
        protocol,
        flags: caller.flags::<F>(),
        _pad: <F::Addr as Addr>::RecordPad::default(),
        last_used: now,
    });
    SocketVerdict::new(SocketVerdict::TRANSLATE, Counter::SocketTranslated).that_begins(events)
}

/// Returns the address to look frontends up by. KUBE: node ports are served on all of 127.0.0.0/8
/// if on 127.0.0.1.
#[inline(always)]
fn served_at<F: Family>(address: F::Addr) -> F::Addr {
    if F::is_loopback(address) {
        F::LOOPBACK
    } else {
        address
    }
}

/// Returns the id of the service port that a frontend belongs to, or 0: also if no agent has come
/// for so long that others serve it.
// VERIFIER: a subprogram: before Linux 6.9, the caller's frame has no space for it.
#[inline(never)]
pub fn owner<F: Family>(target: &Target<F::Addr>) -> u32 {
    if node::is_abandoned() {
        return 0;
    }
    let address = served_at::<F>(target.address);
    lookup::record_of::<F>(address, target.port, target.protocol)
        .map_or(0, |record| record.service.0)
}

/// Selects a backend for a client, and stores the client's affinity to the backend if the service
/// has affinity. Also returns bits of [`event`] to count with the connection. None if the maps do
/// not agree. Overwrites `buffer`.
#[inline(always)]
fn select<F: Family>(
    record: &Record<F::Addr>,
    client: impl Client<F>,
    external: bool,
    now: u64,
    avoid: Option<&SocketCookie>,
    target: &Target<F::Addr>,
    buffer: &mut EntryBuffer<F::Addr>,
) -> Option<(Chosen<F::Addr>, u32)> {
    // Also for a Maglev table: a socket that connects has no port yet that could be hashed.
    let number = |block: Block| portolan_number(block.count());
    let choice = Choice::new::<F>(record, client, external, now, number);
    let mut chosen = choice.backend::<F>(0)?;
    if let Some(cookie) = avoid
        && !choice.is_held()
    {
        for attempt in 1..BACKEND_TRIES {
            let backend = chosen.backend;
            let key = SocketKey::new(*cookie, SocketRole::REVERSE, backend.address, backend.port);
            if !is_shared::<F>(&key, target, buffer) {
                break;
            }
            chosen = choice.backend::<F>(attempt)?;
        }
    }
    choice.hold::<F>(client, &chosen, now);
    let events = if choice.is_held() { event::HELD } else { 0 };
    Some((chosen, events))
}

/// Whether answers from this backend belong to another service that the same socket uses.
// VERIFIER: uses the caller's buffer: before Linux 6.9, each frame of a chain of calls is rounded
// up to 32 of the 512 bytes.
#[inline(never)]
fn is_shared<F: Family>(
    reverse: &SocketKey<F::Addr>,
    target: &Target<F::Addr>,
    buffer: &mut EntryBuffer<F::Addr>,
) -> bool {
    find::<F>(reverse, buffer)
        .is_some_and(|found| !found.entry.is_frontend(target.address, target.port))
}

/// A pod that is identified by its network namespace.
#[derive(Clone, Copy)]
struct ByNetns(u64);

impl<F: Family> Client<F> for ByNetns {
    type Key = PodAffinityKey;
    #[inline(always)]
    fn key(self, service: ServiceId) -> PodAffinityKey {
        PodAffinityKey {
            service,
            family: F::VERSION,
            netns: self.0,
        }
    }
    #[inline(always)]
    fn map() -> &'static AffinityBy<PodAffinityKey> {
        &AFFINITY_PODS
    }
}
