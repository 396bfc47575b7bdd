// SPDX-License-Identifier: (Apache-2.0 OR MIT) AND GPL-2.0-only
//! The socket hooks: a connection or datagram to a service is sent to a backend when the process asks
//! for it, and answers show the service's address. Lookup, verdict, selection and affinity are `service`'s.

mod bind;
mod connect;
mod context;
mod datagram;
mod packet;
mod table;

use aya_ebpf::{EbpfContext, helpers::generated as helpers, programs::SockContext};
use proxy_common::{
    Addr, AffinityEntry, Counter, Origin, PodAffinityKey, Port, Protocol, Record, ServiceFlags,
    ServiceId, Settings, SocketCookie, SocketEntry, SocketKey, SocketRole, Verdict, ports,
};

use crate::{
    count,
    family::{Family, Ipv4, Ipv6},
    filter,
    maps::{AFFINITY_PODS, EXCEPTIONS},
    packet::access,
    service::{self, ByAddress, Choice, Chosen, Client},
};

use self::table::{Room, find};
pub use self::{
    bind::bind,
    connect::{connect, peer_name},
    context::{AsMapped, AsV4, AsV6, SockAddr},
    datagram::{receive, send},
    packet::{is_translated, lost_frontend},
};

/// What a hook tells the kernel.
pub const PROCEED: i32 = 1;
const FAIL: i32 = 0;

const ECONNREFUSED: i32 = 111;

/// Backends that are tried so that one socket's services do not share one.
const BACKEND_TRIES: u32 = 4;

/// Fails the system call with an error of its own instead of EPERM.
#[inline(always)]
fn fail_with(error: i32) -> i32 {
    // SAFETY: no pointers.
    unsafe { helpers::bpf_set_retval(-error) };
    FAIL
}

#[inline(always)]
fn proceed(counter: Counter) -> i32 {
    count::add(counter);
    PROCEED
}

/// Removes what is known about a socket that is being closed.
#[inline(always)]
pub fn release(ctx: SockContext) -> i32 {
    const AF_INET6: u32 = 10;
    // SAFETY: the context is valid for the program's run.
    let (family, protocol, peer) = unsafe {
        let socket = &*ctx.sock;
        (socket.family, socket.protocol, Port(socket.dst_port))
    };
    // A translated connection's peer is its backend to the end (connecting it elsewhere removes the entry), so this is
    // somebody else's: an accepted one, say, which has no cookie yet and need not get one.
    if protocol == Protocol::TCP.0 as u32 && !peer.is_any() && !may_be_backend(peer) {
        return PROCEED;
    }
    // SAFETY: the context is valid.
    let cookie = SocketCookie::new(unsafe { helpers::bpf_get_socket_cookie(ctx.as_ptr()) });
    let datagrams = protocol == Protocol::UDP.0 as u32;
    // An IPv6 socket may have sent to IPv4 addresses.
    table::release::<Ipv4>(&cookie, datagrams);
    if family == AF_INET6 {
        table::release::<Ipv6>(&cookie, datagrams);
    }
    PROCEED
}

/// Whether a socket that has this peer may have been given it.
#[inline(always)]
fn may_be_backend(peer: Port) -> bool {
    filter::bits(peer) & ports::BACKEND != 0
}

/// Who calls.
#[derive(Clone, Copy)]
struct Caller {
    settings: &'static Settings,
    netns: u64,
}

impl Caller {
    #[inline(always)]
    fn of(ctx: SockAddr, settings: &'static Settings) -> Self {
        Self {
            settings,
            netns: ctx.netns(),
        }
    }
    /// A process of the node itself, not of a pod.
    #[inline(always)]
    fn is_node(self) -> bool {
        self.netns == self.settings.node_netns
    }
    /// Whether its sockets are translated here, not left to the packet path.
    #[inline(always)]
    fn is_served(self) -> bool {
        self.is_node()
            || self.settings.has(Settings::POD_SOCKETS)
                && !(self.settings.has(Settings::SOCKET_EXCEPTIONS) && is_excepted())
    }
    #[inline(always)]
    fn flags<F: Family>(self) -> u8 {
        if self.is_node() {
            SocketEntry::<F::Addr>::HOST
        } else {
            0
        }
    }
}

/// Levels of the cgroup hierarchy at which an exception is looked for.
const CGROUP_LEVELS: i32 = 12;

/// Whether the calling process is in an excepted cgroup or below one.
#[inline(never)]
fn is_excepted() -> bool {
    for level in 0..CGROUP_LEVELS {
        // SAFETY: no pointers.
        let id = unsafe { helpers::bpf_get_current_ancestor_cgroup_id(level) };
        if id == 0 {
            return false;
        }
        if EXCEPTIONS.get_ptr(id).is_some() {
            return true;
        }
    }
    false
}

/// Whether any frontend may have this address and port: no hash lookup for all the others.
#[inline(always)]
fn may_be_frontend<F: Family>(address: F::Addr, port: Port, settings: &Settings) -> bool {
    filter::bits(port) & (ports::FRONTEND | ports::NODE_PORT) != 0
        || F::services(settings).contains(address)
}

/// What is asked for: an address and port, and the protocol of the socket.
#[derive(Clone, Copy)]
struct Target<A> {
    address: A,
    port: Port,
    protocol: Protocol,
}

/// What becomes of what a socket asks for, and why; in one word so that subprograms can return it.
#[derive(Clone, Copy)]
#[repr(transparent)]
struct Answer(u32);

impl Answer {
    /// To the backend in the entry.
    const TRANSLATE: u32 = 0;
    /// To where it asks.
    const UNTOUCHED: u32 = 1;
    const REFUSE: u32 = 2;
    /// Silence.
    const DROP: u32 = 3;

    const fn new(kind: u32, counter: Counter) -> Self {
        Self(kind << 16 | counter as u32)
    }
    const fn kind(self) -> u32 {
        self.0 >> 16
    }
    #[inline(always)]
    fn count(self) {
        count::add_at(self.0 & 0xffff);
    }
}

const UNTOUCHED: Answer = Answer::new(Answer::UNTOUCHED, Counter::SocketUntouched);

/// Chooses a backend and fills `room` with it, but for its list link, where the answer is to translate. `avoid` is the socket whose other
/// services shall not share the backend.
#[inline(never)]
fn choose<F: Family>(
    caller: &Caller,
    target: &Target<F::Addr>,
    avoid: Option<&SocketCookie>,
    room: &mut Room<F::Addr>,
) -> Answer {
    let settings = caller.settings;
    let mut address = target.address;
    if F::is_loopback(address) {
        if !caller.is_node() {
            // A pod's own loopback, not the node's.
            return UNTOUCHED;
        }
        // KUBE: node ports are served on all of 127.0.0.0/8 if on 127.0.0.1.
        address = F::LOOPBACK;
    }
    let Target { port, protocol, .. } = *target;
    let Some(record) = service::find::<F>(address, port, protocol) else {
        // What pods send there is dropped packet by packet.
        if caller.is_node() && service::is_unallocated::<F>(address, settings) {
            return Answer::new(Answer::DROP, Counter::DroppedUnallocated);
        }
        return UNTOUCHED;
    };
    let (origin, source) = if caller.is_node() {
        (Origin::Host, F::internal_address(settings))
    } else if record.flags.has(ServiceFlags::SOURCE_RANGES) {
        // Its source address is not known yet.
        return UNTOUCHED;
    } else if settings.has(Settings::DETECTS_PODS) {
        (Origin::Pod, address)
    } else {
        (Origin::External, address)
    };
    let external = match service::judge_as::<F>(record, origin, source, settings) {
        Verdict::Forward { external, .. } => external,
        Verdict::Reject => return Answer::new(Answer::REFUSE, service::rejection_of(record)),
        // Dropped and counted packet by packet.
        _ if !caller.is_node() => return UNTOUCHED,
        Verdict::DropNoLocalEndpoint => {
            return Answer::new(Answer::DROP, Counter::DroppedNoLocalEndpoint);
        }
        Verdict::DropSource => return Answer::new(Answer::DROP, Counter::DroppedSource),
    };
    let now = access::now();
    let chosen = if caller.is_node() {
        select::<F>(record, ByAddress(source), external, now, avoid, target)
    } else {
        select::<F>(record, ByNetns(caller.netns), external, now, avoid, target)
    };
    let Some(chosen) = chosen else {
        return Answer::new(Answer::DROP, Counter::DroppedInconsistent);
    };
    let backend = chosen.backend;
    room.write(SocketEntry {
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
    Answer::new(Answer::TRANSLATE, Counter::SocketTranslated)
}

/// Selects a backend for a client and holds the client to it where affinity says so.
#[inline(always)]
fn select<F: Family>(
    record: &Record<F::Addr>,
    client: impl Client<F>,
    external: bool,
    now: u64,
    avoid: Option<&SocketCookie>,
    target: &Target<F::Addr>,
) -> Option<Chosen<F::Addr>> {
    let choice = Choice::new::<F>(record, client, external, now);
    let mut chosen = choice.backend::<F>(0)?;
    if let Some(cookie) = avoid
        && !choice.is_held()
    {
        for attempt in 1..BACKEND_TRIES {
            let backend = chosen.backend;
            let key = SocketKey::new(*cookie, SocketRole::REVERSE, backend.address, backend.port);
            if !is_shared::<F>(&key, target) {
                break;
            }
            chosen = choice.backend::<F>(attempt)?;
        }
    }
    choice.hold::<F>(client, &chosen, now);
    Some(chosen)
}

/// Whether what comes from this backend is taken for another service's on the same socket.
#[inline(never)]
fn is_shared<F: Family>(reverse: &SocketKey<F::Addr>, target: &Target<F::Addr>) -> bool {
    let mut room = Room::uninit();
    find::<F>(reverse, &mut room)
        .is_some_and(|found| !found.entry.is_frontend(target.address, target.port))
}

/// A pod by its network namespace.
#[derive(Clone, Copy)]
struct ByNetns(u64);

impl ByNetns {
    #[inline(always)]
    fn key<F: Family>(self, service: ServiceId) -> PodAffinityKey {
        PodAffinityKey {
            service,
            family: F::VERSION,
            netns: self.0,
        }
    }
}

impl<F: Family> Client<F> for ByNetns {
    #[inline(always)]
    fn recall(self, record: &Record<F::Addr>, now: u64) -> Option<AffinityEntry> {
        let key = self.key::<F>(record.service);
        // SAFETY: copied, then checked by its check word.
        let entry = unsafe { AFFINITY_PODS.get_ptr(key)?.read_volatile() };
        entry
            .holds(&key, record.affinity_timeout, now)
            .then_some(entry)
    }
    #[inline(always)]
    fn remember(self, service: ServiceId, chosen: &Chosen<F::Addr>, now: u64) {
        let key = self.key::<F>(service);
        let entry = AffinityEntry::new(&key, chosen.id, chosen.generation, now);
        // A full LRU map makes room by itself; the next connection tries again.
        let _ = AFFINITY_PODS.insert(key, entry, 0);
    }
}
