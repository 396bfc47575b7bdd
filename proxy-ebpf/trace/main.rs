// SPDX-License-Identifier: (Apache-2.0 OR MIT) AND GPL-2.0-only
//! The programs of `portolan trace` at the socket hooks. They run after those of the object
//! `portolan`, as long as the command holds their links, and report the outcome of a call. The
//! address that the process asked for is in the socket's entry.
#![no_std]
#![no_main]

#[path = "../src/object.rs"]
mod object;

use aya_ebpf::{
    EbpfContext,
    bindings::bpf_sock_addr,
    btf_maps::{Array, HashMap, PerCpuArray, PerfEventArray},
    helpers::{bpf_get_current_comm, bpf_get_current_pid_tgid, generated as helpers},
    macros::{btf_map, cgroup_sock_addr},
    programs::SockAddrContext,
};
use proxy_common::{
    Addr, Port, Protocol, SocketBucket, SocketCookie, SocketEntry, SocketKey, SocketRole, V4, V6,
    maps::capacity,
    socket::SOCKET_BUCKETS,
    trace::{Event, Filter, Hook, Tuple, call, lost, rate::Rate},
};

const MMAPABLE: usize = aya_ebpf::bindings::BPF_F_MMAPABLE as usize;

type Sockets<A> = HashMap<SocketKey<A>, SocketEntry<A>, { capacity::SOCKETS }>;
type Buckets<A> = Array<SocketBucket<A>, { SOCKET_BUCKETS as usize }, MMAPABLE>;

#[btf_map(name = "sockets_v4")]
static SOCKETS_V4: Sockets<V4> = Sockets::new();
#[btf_map(name = "sockets_v6")]
static SOCKETS_V6: Sockets<V6> = Sockets::new();
#[btf_map(name = "sock_buckets_v4")]
static BUCKETS_V4: Buckets<V4> = Buckets::new();
#[btf_map(name = "sock_buckets_v6")]
static BUCKETS_V6: Buckets<V6> = Buckets::new();
#[btf_map(name = "trace_filter")]
static FILTER: Array<Filter, 1> = Array::new();
#[btf_map(name = "trace_rate")]
static RATE: Array<Rate, 1> = Array::new();
#[btf_map(name = "trace_lost")]
static LOST: PerCpuArray<u64, { lost::COUNT as usize }> = PerCpuArray::new();
#[btf_map(name = "trace_out")]
static OUT: PerfEventArray = PerfEventArray::new();

#[cgroup_sock_addr(connect4)]
pub fn connect_v4(ctx: SockAddrContext) -> i32 {
    tell_v4(&ctx, Hook::Connect)
}
#[cgroup_sock_addr(connect6)]
pub fn connect_v6(ctx: SockAddrContext) -> i32 {
    tell_v6(&ctx, Hook::Connect)
}
#[cgroup_sock_addr(sendmsg4)]
pub fn send_v4(ctx: SockAddrContext) -> i32 {
    tell_v4(&ctx, Hook::Send)
}
#[cgroup_sock_addr(sendmsg6)]
pub fn send_v6(ctx: SockAddrContext) -> i32 {
    tell_v6(&ctx, Hook::Send)
}
#[cgroup_sock_addr(recvmsg4)]
pub fn receive_v4(ctx: SockAddrContext) -> i32 {
    tell_v4(&ctx, Hook::Receive)
}
#[cgroup_sock_addr(recvmsg6)]
pub fn receive_v6(ctx: SockAddrContext) -> i32 {
    tell_v6(&ctx, Hook::Receive)
}
#[cgroup_sock_addr(getpeername4)]
pub fn peer_name_v4(ctx: SockAddrContext) -> i32 {
    tell_v4(&ctx, Hook::PeerName)
}
#[cgroup_sock_addr(getpeername6)]
pub fn peer_name_v6(ctx: SockAddrContext) -> i32 {
    tell_v6(&ctx, Hook::PeerName)
}

/// Keeps the decision of the previous programs.
const PROCEED: i32 = 1;

#[inline(always)]
fn tell_v4(ctx: &SockAddrContext, hook: Hook) -> i32 {
    let raw: *mut bpf_sock_addr = ctx.as_ptr().cast();
    // SAFETY: the context is valid for the program's run.
    let address = V4::from_word(unsafe { (*raw).user_ip4 });
    let entries = (&BUCKETS_V4, &SOCKETS_V4);
    tell(raw, address, address.widened(), hook, entries)
}

#[inline(always)]
fn tell_v6(ctx: &SockAddrContext, hook: Hook) -> i32 {
    let raw: *mut bpf_sock_addr = ctx.as_ptr().cast();
    // VERIFIER: word by word; the context takes no other access.
    // SAFETY: the context is valid for the program's run.
    let words = unsafe {
        [
            (&raw const (*raw).user_ip6[0]).read_volatile(),
            (&raw const (*raw).user_ip6[1]).read_volatile(),
            (&raw const (*raw).user_ip6[2]).read_volatile(),
            (&raw const (*raw).user_ip6[3]).read_volatile(),
        ]
    };
    let address = V6::from_words(words);
    if words[0] | words[1] == 0 && words[2] == 0xffff_u32.to_be() {
        let entries = (&BUCKETS_V4, &SOCKETS_V4);
        tell(raw, V4::from_word(words[3]), address, hook, entries)
    } else {
        let entries = (&BUCKETS_V6, &SOCKETS_V6);
        tell(raw, address, address, hook, entries)
    }
}

/// A family's entries of sockets.
type Entries<A> = (&'static Buckets<A>, &'static Sockets<A>);

#[inline(always)]
fn tell<A: Addr>(
    raw: *mut bpf_sock_addr,
    address: A,
    wide: V6,
    hook: Hook,
    entries: Entries<A>,
) -> i32 {
    let Some(filter) = FILTER.get_ptr(0) else {
        return PROCEED;
    };
    // SAFETY: written before the programs are attached, and never later.
    let filter = unsafe { &*filter };
    // SAFETY: the context is valid for the program's run.
    let (port, protocol) = unsafe { (Port((*raw).user_port as u16), (*raw).protocol) };
    let mut event = Event::EMPTY;
    // SAFETY: no pointers but the context.
    unsafe {
        event.time = helpers::bpf_ktime_get_ns();
        event.namespace = helpers::bpf_get_netns_cookie(raw.cast());
        event.cookie = helpers::bpf_get_socket_cookie(raw.cast());
    }
    // The other hooks cannot fail, and may not ask for the result.
    if !matches!(hook, Hook::Receive | Hook::PeerName) {
        // SAFETY: no arguments.
        event.result = unsafe { helpers::bpf_get_retval() };
    }
    event.hook = hook as u8;
    event.process = (bpf_get_current_pid_tgid() >> 32) as u32;
    event.command = bpf_get_current_comm().unwrap_or([0; 16]);
    let named = |tuple: &mut Tuple, address: V6, port: Port| {
        tuple.family = if A::BITS == V4::BITS { 4 } else { 6 };
        // MPTCP's number needs more than eight bits.
        tuple.protocol = Protocol(if protocol > 0xff { 0 } else { protocol as u8 });
        if matches!(hook, Hook::Receive) {
            (tuple.src, tuple.src_port) = (address, port);
        } else {
            (tuple.dst, tuple.dst_port) = (address, port);
        }
    };
    named(&mut event.before, wide, port);
    named(&mut event.after, wide, port);
    let found = entry(event.cookie, address, port, hook, entries);
    if let Some((entry, dropped)) = found {
        // SAFETY: an element whose memory the kernel keeps; one that is replaced meanwhile shows
        // another call's address.
        let (frontend, backend, ports, ids) = unsafe {
            let entry = &*entry;
            (
                entry.frontend.widened(),
                entry.backend_address.widened(),
                (entry.frontend_port, entry.backend_port),
                (entry.service.0, entry.backend.0),
            )
        };
        (event.service, event.backend) = ids;
        if dropped {
            event.result = call::DROPPED;
        } else if matches!(hook, Hook::Receive | Hook::PeerName) {
            named(&mut event.before, backend, ports.1);
        } else {
            named(&mut event.before, frontend, ports.0);
        }
    }
    event.outcome = call::outcome(hook, event.result, found.is_some()) as u32;
    if filter.wants_outcome(&event) && filter.wants(&event) {
        hand_over(raw, &mut event);
    }
    PROCEED
}

/// The entry that explains the address of the call, and whether it says that the socket's data is
/// dropped.
#[inline(always)]
fn entry<A: Addr>(
    cookie: u64,
    address: A,
    port: Port,
    hook: Hook,
    (buckets, sockets): Entries<A>,
) -> Option<(*mut SocketEntry<A>, bool)> {
    let cookie = SocketCookie::new(cookie);
    let restores = matches!(hook, Hook::Receive | Hook::PeerName);
    let fits = |entry: *mut SocketEntry<A>| {
        // SAFETY: an element whose memory the kernel keeps.
        let entry = unsafe { &*entry };
        let dropped = entry.flags & SocketEntry::<A>::DROPPED != 0;
        let is_it = if restores || dropped {
            entry.is_frontend(address, port)
        } else {
            entry.is_backend(address, port)
        };
        (is_it, dropped)
    };
    let bucket = buckets.get_ptr_mut(cookie.bucket_index())?;
    // SAFETY: an element whose memory the kernel keeps.
    let (owner, first) = unsafe { ((*bucket).owner, &raw mut (*bucket).entry) };
    let connected = SocketKey::connected(cookie);
    if owner == SocketBucket::owner_of(&connected)
        && let (true, dropped) = fits(first)
    {
        return Some((first, dropped));
    }
    if let Some(entry) = sockets.get_ptr_mut(connected)
        && let (true, dropped) = fits(entry)
    {
        return Some((entry, dropped));
    }
    let role = if restores {
        SocketRole::FORWARD
    } else {
        SocketRole::REVERSE
    };
    let entry = sockets.get_ptr_mut(SocketKey::new(cookie, role, address, port))?;
    Some((entry, false))
}

#[inline(always)]
fn hand_over(raw: *mut bpf_sock_addr, event: &mut Event) {
    if let Some(rate) = RATE.get_ptr_mut(0) {
        // SAFETY: plain numbers; of what two CPUs do at once, a few events more may come.
        if !unsafe { &mut *rate }.takes(event.time) {
            return object::lose(&LOST, lost::RATE);
        }
    }
    // SAFETY: the context is valid.
    unsafe { object::hand_over(raw.cast(), event, &OUT, &LOST, lost::UNREAD) };
}
