// SPDX-License-Identifier: (Apache-2.0 OR MIT) AND GPL-2.0-only
//! Reading the kernel's memory by addresses, and numbers that the verifier shall not follow.

use core::{ffi::c_void, mem::MaybeUninit, ptr};

use aya_ebpf::helpers::generated as helpers;

/// The value at an offset from an address. Zero if there is none.
#[inline(always)]
pub fn read<T: Copy>(address: u64, offset: u32) -> T {
    let mut value = MaybeUninit::<T>::zeroed();
    let from = address.wrapping_add(offset as u64) as *const c_void;
    // SAFETY: the helper checks the address, writes as many bytes as the value has, and zeroes them where it fails; all types that
    // are read here are plain numbers.
    unsafe {
        helpers::bpf_probe_read_kernel(value.as_mut_ptr().cast(), size_of::<T>() as u32, from);
        value.assume_init()
    }
}

/// Copies up to all of `to` from an address; returns how many bytes.
#[inline(always)]
pub fn copy<const N: usize>(to: *mut [u8; N], address: u64, len: u32) -> u32 {
    let len = if len > N as u32 { N as u32 } else { len };
    // SAFETY: `to` has as many bytes.
    let failed =
        unsafe { helpers::bpf_probe_read_kernel(to.cast(), len, address as *const c_void) };
    if failed != 0 { 0 } else { len }
}

/// The first argument of the traced program.
// VERIFIER: read as memory, so that it is a plain number: offsets of members are not known until the command runs.
#[inline(always)]
pub fn argument(ctx: *mut c_void) -> u64 {
    read(ctx as u64, 0)
}

/// What the traced program returns.
#[inline(always)]
pub fn returned(ctx: *mut c_void) -> i32 {
    let mut value = 0_u64;
    // SAFETY: the context of a program that runs at an end.
    unsafe { helpers::bpf_get_func_ret(ctx, &raw mut value) };
    value as i32
}

/// The precise monotonic time.
#[inline(always)]
pub fn now() -> u64 {
    // SAFETY: no arguments.
    unsafe { helpers::bpf_ktime_get_ns() }
}

// VERIFIER: in memory, so that different values do not multiply its states.

#[inline(always)]
pub fn keep(place: &mut u64, value: u64) {
    // SAFETY: an exclusive reference.
    unsafe { ptr::write_volatile(place, value) };
}

#[inline(always)]
pub fn kept(place: &u64) -> u64 {
    // SAFETY: a reference.
    unsafe { ptr::read_volatile(place) }
}
