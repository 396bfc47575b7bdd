// SPDX-License-Identifier: (Apache-2.0 OR MIT) AND GPL-2.0-only
//! The kernel programs' entry points: hook, parse, decide, act, count. Next: `ingress`, `egress`.
#![no_std]
#![no_main]
#![feature(asm_experimental_arch)]
#![allow(
    clippy::needless_borrows_for_generic_args,
    reason = "keys and entries passed by value are copied to a stack of 512 bytes"
)]

mod begin;
mod count;
mod egress;
mod expire;
mod family;
mod filter;
mod flow;
mod fragment;
mod globals;
mod helpers;
mod icmp;
mod ingress;
mod log;
mod lookup;
mod maps;
mod masquerade;
mod node;
mod packet;
mod policy;
mod ports;
mod redirect;
mod reject;
mod select;
mod socket;
mod tables;
mod translate;
mod workspace;

use aya_ebpf::{
    macros::{cgroup_sock, cgroup_sock_addr, classifier},
    programs::{SockAddrContext, SockContext, TcContext},
};
use proxy_common::{Counter, FilterVerdict};

use crate::{
    count::{Outcome, PASS},
    family::{Family, Ipv4, Ipv6},
    packet::{
        Skb,
        headers::{ETHERTYPE_IPV4, ETHERTYPE_IPV6},
        parse::network_offset,
    },
    socket::{AsMapped, AsV4, AsV6, SockAddr},
};

#[classifier]
pub fn ingress(ctx: TcContext) -> i32 {
    at_ingress(Skb::new(&ctx), true)
}

#[classifier]
pub fn egress(ctx: TcContext) -> i32 {
    at_egress(Skb::new(&ctx), true)
}

/// For devices without a link-layer header.
#[classifier]
pub fn ingress_l3(ctx: TcContext) -> i32 {
    at_ingress(Skb::new(&ctx), false)
}

/// For devices without a link-layer header.
#[classifier]
pub fn egress_l3(ctx: TcContext) -> i32 {
    at_egress(Skb::new(&ctx), false)
}

/// Egress of the loopback device: drops what policy drops of the node's own connections to itself.
#[classifier]
pub fn egress_loopback(ctx: TcContext) -> i32 {
    let skb = Skb::new(&ctx);
    if skb.mark() & globals::drop_mark() == 0 {
        return PASS;
    }
    Outcome::drop(Counter::DroppedByMark).conclude()
}

/// Removes idle flows: see `expire`.
#[classifier]
pub fn expire_v4(ctx: TcContext) -> i32 {
    expire::expire::<Ipv4>(Skb::new(&ctx))
}

/// Removes idle flows: see `expire`.
#[classifier]
pub fn expire_v6(ctx: TcContext) -> i32 {
    expire::expire::<Ipv6>(Skb::new(&ctx))
}

#[cgroup_sock_addr(connect4)]
pub fn connect_v4(ctx: SockAddrContext) -> i32 {
    socket::connect::<AsV4>(SockAddr::new(&ctx))
}

#[cgroup_sock_addr(connect6)]
pub fn connect_v6(ctx: SockAddrContext) -> i32 {
    match SockAddr::new(&ctx) {
        ctx if ctx.is_mapped() => socket::connect::<AsMapped>(ctx),
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

/// The kernel hands datagrams to IPv4-mapped addresses to `send_v4`.
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

#[cgroup_sock_addr(bind4)]
pub fn bind_v4(ctx: SockAddrContext) -> i32 {
    socket::bind::<AsV4>(SockAddr::new(&ctx))
}

#[cgroup_sock_addr(bind6)]
pub fn bind_v6(ctx: SockAddrContext) -> i32 {
    socket::bind::<AsV6>(SockAddr::new(&ctx))
}

#[cgroup_sock(sock_release)]
pub fn release(ctx: SockContext) -> i32 {
    socket::release(ctx)
}

// A packet that cannot be read is no service's: every program fails open until it has changed a packet, and drops one that
// it has half changed.
#[inline(always)]
fn at_ingress(skb: Skb, link_layer: bool) -> i32 {
    match network_offset(skb, link_layer) {
        Some((ETHERTYPE_IPV4, l3)) => ingress_of::<Ipv4>(skb, l3, link_layer),
        Some((ETHERTYPE_IPV6, l3)) => ingress_of::<Ipv6>(skb, l3, link_layer),
        _ => Outcome::pass(Counter::Untouched),
    }
    .conclude()
}

#[inline(always)]
fn ingress_of<F: Family>(skb: Skb, l3: u32, link_layer: bool) -> Outcome {
    match filter::at_ingress::<F>(skb, l3) {
        FilterVerdict::Pass => Outcome::pass(Counter::Untouched),
        verdict => {
            let outcome = log::outcome::<F>(skb, ingress::ingress::<F>(skb, l3, verdict));
            if link_layer {
                redirect::forward::<F>(skb, outcome)
            } else {
                outcome
            }
        }
    }
}

#[inline(always)]
fn at_egress(skb: Skb, link_layer: bool) -> i32 {
    match network_offset(skb, link_layer) {
        Some((ETHERTYPE_IPV4, l3)) => egress_of::<Ipv4>(skb, l3),
        Some((ETHERTYPE_IPV6, l3)) => egress_of::<Ipv6>(skb, l3),
        _ => Outcome::pass(Counter::Untouched),
    }
    .conclude()
}

#[inline(always)]
fn egress_of<F: Family>(skb: Skb, l3: u32) -> Outcome {
    match filter::at_egress::<F>(skb, l3) {
        FilterVerdict::Pass => Outcome::pass(Counter::Untouched),
        verdict => log::outcome::<F>(skb, egress::egress::<F>(skb, l3, verdict)),
    }
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}

#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
