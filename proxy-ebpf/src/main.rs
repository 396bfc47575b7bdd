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
mod flow;
mod fragment;
mod icmp;
mod ingress;
mod maps;
mod masquerade;
mod packet;
mod reject;
mod rewrite;
mod service;

use aya_ebpf::{macros::classifier, programs::TcContext};
use proxy_common::Counter;

use crate::{
    count::Outcome,
    family::{Ipv4, Ipv6},
    packet::{
        Skb,
        headers::{ETHERTYPE_IPV4, ETHERTYPE_IPV6},
        parse::network_offset,
    },
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

// What cannot be read is none of ours: every program fails open before it has changed a packet, and
// drops what it has half changed.
#[inline(always)]
fn at_ingress(skb: Skb, link_layer: bool) -> i32 {
    skb.pull_headers();
    match network_offset(skb, link_layer) {
        Some((ETHERTYPE_IPV4, l3)) => ingress::ingress::<Ipv4>(skb, l3),
        Some((ETHERTYPE_IPV6, l3)) => ingress::ingress::<Ipv6>(skb, l3),
        _ => Outcome::pass(Counter::Untouched),
    }
    .conclude()
}

#[inline(always)]
fn at_egress(skb: Skb, link_layer: bool) -> i32 {
    skb.pull_headers();
    match network_offset(skb, link_layer) {
        Some((ETHERTYPE_IPV4, l3)) => egress::egress::<Ipv4>(skb, l3),
        Some((ETHERTYPE_IPV6, l3)) => egress::egress::<Ipv6>(skb, l3),
        _ => Outcome::pass(Counter::Untouched),
    }
    .conclude()
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}

#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
