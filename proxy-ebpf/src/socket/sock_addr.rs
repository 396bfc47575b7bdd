// SPDX-License-Identifier: (Apache-2.0 OR MIT) AND GPL-2.0-only
//! The context of the cgroup hooks on socket addresses. Only this module reads and writes the
//! context.

use aya_ebpf::{
    EbpfContext,
    bindings::{bpf_sock, bpf_sock_addr},
    helpers::generated as helpers,
    programs::SockAddrContext,
};
use proxy_common::{Port, Protocol, SocketCookie, V4, V6};

use crate::{
    family::{Family, Ipv4, Ipv6},
    packet::Ip,
};

const SOL_SOCKET: i32 = 1;
const SO_MARK: i32 = 36;

/// The context of a socket hook: a socket, and the address in the system call of its process.
#[derive(Clone, Copy)]
pub struct SockAddr {
    raw: *mut bpf_sock_addr,
}

impl SockAddr {
    #[inline(always)]
    pub fn new(ctx: &SockAddrContext) -> Self {
        Self {
            raw: ctx.as_ptr().cast(),
        }
    }
    #[inline(always)]
    pub fn protocol(self) -> Protocol {
        // SAFETY: the context is valid for the program's run.
        let protocol = unsafe { (*self.raw).protocol };
        // MPTCP's number needs more than eight bits and must not look like another protocol.
        if protocol > 0xff {
            Protocol::ANY
        } else {
            Protocol(protocol as u8)
        }
    }
    #[inline(always)]
    pub fn port(self) -> Port {
        // SAFETY: as above. The field holds the port in network order in its first two bytes.
        Port(unsafe { (*self.raw).user_port } as u16)
    }
    #[inline(always)]
    pub fn set_port(self, port: Port) {
        // SAFETY: as above; the field is writable.
        unsafe { (*self.raw).user_port = port.0 as u32 }
    }
    #[inline(always)]
    pub fn cookie(self) -> SocketCookie {
        // SAFETY: the context is valid.
        SocketCookie::new(unsafe { helpers::bpf_get_socket_cookie(self.raw.cast()) })
    }
    /// Returns the cookie of the socket's network namespace.
    #[inline(always)]
    pub fn netns(self) -> u64 {
        // SAFETY: the context is valid.
        unsafe { helpers::bpf_get_netns_cookie(self.raw.cast()) }
    }
    #[inline(always)]
    pub fn mark(self) -> u32 {
        let socket = self.socket();
        // SAFETY: a field of a live socket.
        unsafe { if socket.is_null() { 0 } else { (*socket).mark } }
    }
    #[inline(always)]
    pub fn set_mark(self, mark: u32) {
        let mut value = mark;
        let (raw, at) = (self.raw.cast(), core::ptr::from_mut(&mut value).cast());
        // SAFETY: the value is readable for its length.
        unsafe { helpers::bpf_setsockopt(raw, SOL_SOCKET, SO_MARK, at, 4) };
    }
    /// Returns the kernel's socket, from which fields can be read.
    #[inline(always)]
    fn socket(self) -> *const bpf_sock {
        // SAFETY: the context is valid.
        unsafe { (*self.raw).__bindgen_anon_1.sk }
    }
    #[inline(always)]
    pub fn is_connected(self) -> bool {
        const ESTABLISHED: u32 = 1;
        let socket = self.socket();
        // SAFETY: a field of a live socket.
        !socket.is_null() && unsafe { (*socket).state } == ESTABLISHED
    }
    // VERIFIER: word by word; the context takes no other access.
    #[inline(always)]
    fn v6(self) -> [u32; 4] {
        // SAFETY: as above.
        unsafe {
            [
                (&raw const (*self.raw).user_ip6[0]).read_volatile(),
                (&raw const (*self.raw).user_ip6[1]).read_volatile(),
                (&raw const (*self.raw).user_ip6[2]).read_volatile(),
                (&raw const (*self.raw).user_ip6[3]).read_volatile(),
            ]
        }
    }
    #[inline(always)]
    fn set_v6(self, words: [u32; 4]) {
        // SAFETY: as above; the field is writable.
        unsafe {
            (&raw mut (*self.raw).user_ip6[0]).write_volatile(words[0]);
            (&raw mut (*self.raw).user_ip6[1]).write_volatile(words[1]);
            (&raw mut (*self.raw).user_ip6[2]).write_volatile(words[2]);
            (&raw mut (*self.raw).user_ip6[3]).write_volatile(words[3]);
        }
    }
    /// Whether the IPv6 address in the system call is IPv4-mapped.
    #[inline(always)]
    pub fn is_mapped(self) -> bool {
        let words = self.v6();
        words[0] == 0 && words[1] == 0 && words[2] == MAPPED
    }
}

const MAPPED: u32 = 0xffff_u32.to_be();

/// A form in which the context may have an address.
pub trait AddressForm {
    type Family: Family;
    fn address(ctx: SockAddr) -> <Self::Family as Ip>::Addr;
    fn set_address(ctx: SockAddr, address: <Self::Family as Ip>::Addr);
    /// Returns the peer's address of a connected socket.
    ///
    /// # Safety
    /// The socket is live.
    unsafe fn peer(socket: *const bpf_sock) -> <Self::Family as Ip>::Addr;
    /// Whether the socket is connected to this address and port.
    #[inline(always)]
    fn is_peer(ctx: SockAddr, address: <Self::Family as Ip>::Addr, port: Port) -> bool {
        // SAFETY: read only of a connected socket, so there is a socket.
        ctx.is_connected()
            && unsafe {
                let socket = ctx.socket();
                Port((*socket).dst_port) == port && Self::peer(socket) == address
            }
    }
}

/// An IPv4 address of an IPv4 socket.
pub enum AsV4 {}
/// An IPv6 address of an IPv6 socket.
pub enum AsV6 {}
/// An IPv4-mapped address of an IPv6 socket.
pub enum AsMapped {}

impl AddressForm for AsV4 {
    type Family = Ipv4;
    #[inline(always)]
    fn address(ctx: SockAddr) -> V4 {
        // SAFETY: the context is valid for the program's run.
        V4::from_word(unsafe { (*ctx.raw).user_ip4 })
    }
    #[inline(always)]
    fn set_address(ctx: SockAddr, address: V4) {
        // SAFETY: as above; the field is writable.
        unsafe { (*ctx.raw).user_ip4 = address.word() }
    }
    #[inline(always)]
    unsafe fn peer(socket: *const bpf_sock) -> V4 {
        // SAFETY: the caller's promise.
        V4::from_word(unsafe { (*socket).dst_ip4 })
    }
}

impl AddressForm for AsV6 {
    type Family = Ipv6;
    #[inline(always)]
    fn address(ctx: SockAddr) -> V6 {
        V6::from_words(ctx.v6())
    }
    #[inline(always)]
    fn set_address(ctx: SockAddr, address: V6) {
        ctx.set_v6(address.words());
    }
    #[inline(always)]
    unsafe fn peer(socket: *const bpf_sock) -> V6 {
        // VERIFIER: word by word, as above.
        // SAFETY: the caller's promise.
        V6::from_words(unsafe {
            [
                (&raw const (*socket).dst_ip6[0]).read_volatile(),
                (&raw const (*socket).dst_ip6[1]).read_volatile(),
                (&raw const (*socket).dst_ip6[2]).read_volatile(),
                (&raw const (*socket).dst_ip6[3]).read_volatile(),
            ]
        })
    }
}

impl AddressForm for AsMapped {
    type Family = Ipv4;
    #[inline(always)]
    fn address(ctx: SockAddr) -> V4 {
        V4::from_word(ctx.v6()[3])
    }
    #[inline(always)]
    fn set_address(ctx: SockAddr, address: V4) {
        ctx.set_v6([0, 0, MAPPED, address.word()]);
    }
    #[inline(always)]
    unsafe fn peer(socket: *const bpf_sock) -> V4 {
        // SAFETY: the caller's promise.
        V4::from_word(unsafe { (*socket).dst_ip4 })
    }
}
