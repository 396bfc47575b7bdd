// SPDX-License-Identifier: (Apache-2.0 OR MIT) AND GPL-2.0-only
//! The kernel's routes and neighbours: looks up a packet's next hop, and sends the packet there.
//! Called by `redirect`, `carry`, `restore` and `xdp`.

use core::{ffi::c_void, mem::MaybeUninit};

use aya_ebpf::{
    bindings::{bpf_fib_lookup, bpf_redir_neigh},
    helpers::generated as helpers,
};

use proxy_common::FlowKey;

use super::{Frame, Skb, Wire};

/// The result of a look-up in the kernel's routes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum FibResult {
    /// Interface and next hop are known, and also the next hop's link-layer address.
    Found,
    /// Interface and next hop are known, but not the next hop's link-layer address.
    NoNeighbour,
    /// There is no route, or the packet may not be forwarded by it.
    NotForwarded,
}

/// Looks up a route; `parameters` are filled in before, and have the result after.
#[inline(always)]
pub fn look_up(skb: Skb, parameters: &mut bpf_fib_lookup) -> FibResult {
    look_up_by(skb.raw.cast(), parameters)
}

/// Looks up the way between the addresses of `ends`, whatever the packet's length is.
#[inline(always)]
pub fn look_up_ends<F: Wire>(
    skb: Skb,
    ends: &FlowKey<F::Addr>,
    parameters: &mut bpf_fib_lookup,
) -> FibResult {
    clear(parameters);
    F::fib_of_ends(ends, parameters);
    parameters.ifindex = skb.interface();
    // A length that fits everywhere: without one, the kernel compares the packet's.
    parameters.__bindgen_anon_1.tot_len = 1;
    look_up(skb, parameters)
}

/// Like [`look_up`], for a frame at XDP.
#[inline(always)]
pub fn look_up_frame(frame: Frame, parameters: &mut bpf_fib_lookup) -> FibResult {
    look_up_by(frame.raw.cast(), parameters)
}

#[inline(always)]
fn look_up_by(context: *mut c_void, parameters: &mut bpf_fib_lookup) -> FibResult {
    // linux/bpf.h: BPF_FIB_LKUP_RET_SUCCESS, BPF_FIB_LKUP_RET_NO_NEIGH
    const FOUND: i64 = 0;
    const NO_NEIGHBOUR: i64 = 7;
    const LEN: i32 = size_of::<bpf_fib_lookup>() as i32;
    // SAFETY: `parameters` is valid and initialized.
    match unsafe { helpers::bpf_fib_lookup(context, parameters, LEN, 0) } {
        FOUND => FibResult::Found,
        NO_NEIGHBOUR => FibResult::NoNeighbour,
        _ => FibResult::NotForwarded,
    }
}

/// Whether a successful look-up has returned the next hop's link-layer address.
#[inline(always)]
pub fn has_address(route: &bpf_fib_lookup) -> bool {
    let [a, b, c, d, e, f] = route.dmac;
    a | b | c | d | e | f != 0
}

/// Returns the route's MTU, after a look-up that has found a neighbour and had no packet length, or
/// one that fits.
#[inline(always)]
pub fn mtu(route: &bpf_fib_lookup) -> u16 {
    // SAFETY: both halves of the union are this number, and every bit pattern is valid.
    unsafe { route.__bindgen_anon_1.tot_len }
}

/// Returns the link-layer addresses that a successful look-up has found, as they lie in a frame:
/// the receiver's, then the sender's.
#[inline(always)]
pub fn link_layer(route: &bpf_fib_lookup) -> [u32; 3] {
    let [a, b, c, d, e, f] = route.dmac;
    let [g, h, i, j, k, l] = route.smac;
    [[a, b, c, d], [e, f, g, h], [i, j, k, l]].map(u32::from_ne_bytes)
}

/// Sends the packet by the interface and to the next hop that a successful look-up has written into
/// `route`; returns the action for the kernel.
#[inline(always)]
pub fn redirect(route: &bpf_fib_lookup) -> i32 {
    const LEN: i32 = size_of::<bpf_redir_neigh>() as i32;
    // SAFETY: numbers and arrays of them.
    let mut hop = unsafe { zeroed::<bpf_redir_neigh>() };
    hop.nh_family = route.family as u32;
    // SAFETY: both are unions of one word and four, and every bit pattern is valid.
    unsafe { hop.__bindgen_anon_1.ipv6_nh = route.__bindgen_anon_4.ipv6_dst };
    // SAFETY: `hop` is valid and initialized.
    unsafe { helpers::bpf_redirect_neigh(route.ifindex, &raw mut hop, LEN, 0) as i32 }
}

/// Whether an interface with this index exists. The agent's data may name a removed interface, and
/// packets that are redirected to a removed interface are lost.
#[inline(always)]
pub fn is_there(skb: Skb, interface: u32) -> bool {
    mtu_of(skb, interface) != 0
}

/// Returns the MTU of an interface; 0 if none has this index.
#[inline(always)]
pub fn mtu_of(skb: Skb, interface: u32) -> u32 {
    let mut mtu = 0_u32;
    // SAFETY: the context is valid, `mtu` is writable.
    unsafe { helpers::bpf_check_mtu(skb.raw.cast(), interface, &raw mut mtu, 0, 0) };
    mtu
}

/// Hands the packet over to the interface at the other end of a pod's link, as if the packet had
/// come in there; returns the action for the kernel.
#[inline(always)]
pub fn redirect_to_peer(interface: u32) -> i32 {
    // SAFETY: no pointers.
    unsafe { helpers::bpf_redirect_peer(interface, 0) as i32 }
}

/// Sets the parameters of a look-up to zero.
#[inline(always)]
pub fn clear(parameters: &mut bpf_fib_lookup) {
    // SAFETY: numbers and arrays of them.
    unsafe { zero(parameters) };
}

/// Returns a zeroed struct of the kernel.
///
/// # Safety
/// All of its fields are numbers, and its size is a multiple of a word's.
#[inline(always)]
pub unsafe fn zeroed<T>() -> T {
    let mut value = MaybeUninit::<T>::uninit();
    // SAFETY: the caller's promise; all of it is written.
    unsafe {
        zero(value.as_mut_ptr());
        value.assume_init()
    }
}

/// # Safety
/// As for [`zeroed`]; `value` must be valid for writes.
// VERIFIER: by words; of a zeroed literal the compiler makes a loop of single bytes.
#[inline(always)]
unsafe fn zero<T>(value: *mut T) {
    let words = value.cast::<u32>();
    let mut n = 0;
    while n < size_of::<T>() / size_of::<u32>() {
        // SAFETY: within the value.
        unsafe { words.add(n).write_volatile(0) };
        n += 1;
    }
}
