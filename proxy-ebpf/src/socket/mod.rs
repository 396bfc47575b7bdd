// SPDX-License-Identifier: (Apache-2.0 OR MIT) AND GPL-2.0-only
//! The socket hooks. When a process connects or sends to a service, the system call gets a
//! backend's address instead; for answers and peer names, the process sees the service's address.
//! Look-up, verdict and selection are the same as on the packet path.

mod choose;
mod connect;
mod datagram;
mod packet;
mod sock_addr;
mod table;

use aya_ebpf::{EbpfContext, helpers::generated as helpers, programs::SockContext};
use proxy_common::{
    Counter, Port, Protocol, Settings, SocketCookie, SocketEntry, ports as port_bits,
};

use crate::{
    count,
    family::{Family, Ipv4, Ipv6},
    globals,
    maps::{EXCEPTIONS, ports},
};

use self::choose::{SocketVerdict, Target};
pub use self::{
    connect::{connect, connect_mapped, is_dropped, peer_name},
    datagram::{receive, send},
    packet::is_translated,
    sock_addr::{AsMapped, AsV4, AsV6, SockAddr},
};

/// Result of a hook: the system call goes on.
pub const PROCEED: i32 = 1;
/// Result of a hook: the system call fails.
const FAIL: i32 = 0;

const ECONNREFUSED: i32 = 111;

/// Fails the system call with this error instead of EPERM; returns the hook's result.
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

/// Runs when a socket is closed: removes the socket's entries.
#[inline(always)]
pub fn release(ctx: SockContext) -> i32 {
    const AF_INET6: u32 = 10;
    // SAFETY: the context is valid for the program's run.
    let (family, protocol, peer, mark) = unsafe {
        let socket = &*ctx.sock;
        let peer = Port(socket.dst_port);
        (socket.family, socket.protocol, peer, socket.mark)
    };
    // A translated connection keeps its backend as peer to the end (connecting the socket to
    // another destination removes the entry). So a socket with another peer was not translated. An
    // accepted connection, for example, has no cookie yet and need not get one.
    let is_dropped = mark & globals::DROP_MARK.load() != 0;
    if protocol == Protocol::TCP.0 as u32 && !peer.is_any() && !may_be_backend(peer) && !is_dropped
    {
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

/// Whether a peer with this port may be a backend that a socket hook has chosen.
#[inline(always)]
fn may_be_backend(peer: Port) -> bool {
    ports::bits(peer) & port_bits::BACKEND != 0
}

/// The process whose system call runs a socket hook.
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
    /// Whether the calling process is one of the node itself, not of a pod.
    #[inline(always)]
    fn is_node(self) -> bool {
        self.netns == self.settings.node_netns
    }
    /// Whether the socket hooks translate the process's sockets; if not, the packet path serves
    /// them.
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

/// How many levels of the cgroup hierarchy are searched for an excepted cgroup.
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

/// Whether a frontend may have this address and port: a check without a hash look-up.
#[inline(always)]
fn may_be_frontend<F: Family>(address: F::Addr, port: Port, settings: &Settings) -> bool {
    ports::bits(port) & (port_bits::FRONTEND | port_bits::NODE_PORT) != 0
        || F::services(settings).contains(address)
}
