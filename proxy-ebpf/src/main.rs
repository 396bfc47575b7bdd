// SPDX-License-Identifier: (Apache-2.0 OR MIT) AND GPL-2.0-only
//! The kernel programs' entry points: hook, parse, decide, act, count.
#![no_std]
#![no_main]

mod maps;

use aya_ebpf::{bindings::TC_ACT_OK, macros::classifier, programs::TcContext};

#[classifier]
pub fn ingress(_ctx: TcContext) -> i32 {
    TC_ACT_OK
}

#[classifier]
pub fn egress(_ctx: TcContext) -> i32 {
    TC_ACT_OK
}

#[classifier]
pub fn ingress_l3(_ctx: TcContext) -> i32 {
    TC_ACT_OK
}

#[classifier]
pub fn egress_l3(_ctx: TcContext) -> i32 {
    TC_ACT_OK
}

#[classifier]
pub fn expire_v4(_ctx: TcContext) -> i32 {
    0
}

#[classifier]
pub fn expire_v6(_ctx: TcContext) -> i32 {
    0
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}

#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
