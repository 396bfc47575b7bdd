// SPDX-License-Identifier: (Apache-2.0 OR MIT) AND GPL-2.0-only
//! The kernel programs' entry points. Read next: `tc` for packets, `xdp` for packets of known flows
//! at uplinks, `socket` for connections at their socket.
#![no_std]
#![no_main]
#![feature(asm_experimental_arch)]
#![allow(
    clippy::needless_borrows_for_generic_args,
    reason = "keys and entries passed by value are copied to a stack of 512 bytes"
)]

#[macro_use]
mod by_family;
mod count;
mod family;
mod globals;
mod helpers;
mod maps;
mod object;
mod packet;
mod service;
mod socket;
mod tc;
mod xdp;

use aya_ebpf::{
    macros::{cgroup_sock, cgroup_sock_addr, classifier, xdp},
    programs::{SockAddrContext, SockContext, TcContext, XdpContext},
};

use crate::{
    family::{Ipv4, Ipv6},
    packet::{Frame, Skb},
    socket::{AsMapped, AsV4, AsV6, SockAddr},
};

#[classifier]
pub fn ingress(ctx: TcContext) -> i32 {
    tc::ingress(Skb::new(ctx.skb.skb), true)
}

#[classifier]
pub fn egress(ctx: TcContext) -> i32 {
    tc::egress(Skb::new(ctx.skb.skb), true)
}

/// Like `ingress`, for devices without a link-layer header.
#[classifier]
pub fn ingress_l3(ctx: TcContext) -> i32 {
    tc::ingress(Skb::new(ctx.skb.skb), false)
}

/// Like `egress`, for devices without a link-layer header.
#[classifier]
pub fn egress_l3(ctx: TcContext) -> i32 {
    tc::egress(Skb::new(ctx.skb.skb), false)
}

/// Egress of the loopback device: drops packets of connections of the node to itself that the
/// policy drops.
#[classifier]
pub fn egress_loopback(ctx: TcContext) -> i32 {
    tc::egress_loopback(Skb::new(ctx.skb.skb))
}

/// Removes idle IPv4 flows: see `tc::expire`.
#[classifier]
pub fn expire_v4(ctx: TcContext) -> i32 {
    tc::expire::<Ipv4>(Skb::new(ctx.skb.skb))
}

/// Removes idle IPv6 flows: see `tc::expire`.
#[classifier]
pub fn expire_v6(ctx: TcContext) -> i32 {
    tc::expire::<Ipv6>(Skb::new(ctx.skb.skb))
}

/// XDP at an uplink: takes packets of known flows before tc sees them.
#[xdp]
pub fn uplink(ctx: XdpContext) -> u32 {
    xdp::run(Frame::new(&ctx))
}

#[cgroup_sock_addr(connect4)]
pub fn connect_v4(ctx: SockAddrContext) -> i32 {
    socket::connect::<AsV4>(SockAddr::new(&ctx))
}

#[cgroup_sock_addr(connect6)]
pub fn connect_v6(ctx: SockAddrContext) -> i32 {
    match SockAddr::new(&ctx) {
        ctx if ctx.is_mapped() => socket::connect_mapped(ctx),
        ctx => socket::connect::<AsV6>(ctx),
    }
}

#[cgroup_sock_addr(getpeername4)]
pub fn peer_name_v4(ctx: SockAddrContext) -> i32 {
    socket::peer_name::<AsV4>(SockAddr::new(&ctx))
}

#[cgroup_sock_addr(getpeername6)]
pub fn peer_name_v6(ctx: SockAddrContext) -> i32 {
    match SockAddr::new(&ctx) {
        ctx if ctx.is_mapped() => socket::peer_name::<AsMapped>(ctx),
        ctx => socket::peer_name::<AsV6>(ctx),
    }
}

#[cgroup_sock_addr(sendmsg4)]
pub fn send_v4(ctx: SockAddrContext) -> i32 {
    socket::send::<AsV4>(SockAddr::new(&ctx))
}

/// The hook `sendmsg6`. The kernel hands datagrams to IPv4-mapped addresses to `send_v4`.
#[cgroup_sock_addr(sendmsg6)]
pub fn send_v6(ctx: SockAddrContext) -> i32 {
    socket::send::<AsV6>(SockAddr::new(&ctx))
}

#[cgroup_sock_addr(recvmsg4)]
pub fn receive_v4(ctx: SockAddrContext) -> i32 {
    socket::receive::<AsV4>(SockAddr::new(&ctx))
}

#[cgroup_sock_addr(recvmsg6)]
pub fn receive_v6(ctx: SockAddrContext) -> i32 {
    match SockAddr::new(&ctx) {
        ctx if ctx.is_mapped() => socket::receive::<AsMapped>(ctx),
        ctx => socket::receive::<AsV6>(ctx),
    }
}

#[cgroup_sock(sock_release)]
pub fn release(ctx: SockContext) -> i32 {
    socket::release(ctx)
}
