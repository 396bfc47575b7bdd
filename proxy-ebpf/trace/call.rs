// SPDX-License-Identifier: (Apache-2.0 OR MIT) AND GPL-2.0-only
//! A socket call before and after one of the socket hooks. Another task may run on the same CPU meanwhile, and packets interrupt it: what
//! is noted belongs to the task, and of several counters that have changed, the one that fits is taken.

use core::ffi::c_void;

use aya_ebpf::{
    bindings::BPF_ANY,
    helpers::{bpf_get_current_comm, bpf_get_current_pid_tgid, generated as helpers},
};
use proxy_common::{
    Port, Protocol, V6,
    trace::{Event, Hook, Target, Tuple, lost, outcome_of_call},
};

use crate::{
    compare_counters, hand_over, lose,
    maps::{BEGUN, CALLS, EVENT, target},
    memory, note_counters,
    packet::copy_tuple,
    wants_outcome,
};

const AF_INET6: u16 = 10;

/// The ends of the socket: its own address, and the address that the call names.
#[inline(always)]
fn read_ends(call: u64, sock: u64, target: &Target, tuple: &mut Tuple) {
    *tuple = Tuple::NONE;
    let named: u64 = memory::read(call, target.call_uaddr);
    let (address, port) = named_address(named);
    let family: u16 = memory::read(sock, target.sock_family);
    let own: V6 = if family == AF_INET6 {
        V6::from_words(memory::read(sock, target.sock_source_v6))
    } else {
        V6::mapped(memory::read(sock, target.sock_source_v4))
    };
    let own_port = Port::from_host(memory::read(sock, target.sock_port));
    let protocol: u16 = memory::read(sock, target.sock_protocol);
    tuple.protocol = Protocol(protocol as u8);
    tuple.family = if is_mapped(address) { 4 } else { 6 };
    if target.hook == Hook::Receive as u32 {
        (tuple.src, tuple.src_port, tuple.dst, tuple.dst_port) = (address, port, own, own_port);
    } else if target.hook == Hook::Bind as u32 {
        (tuple.src, tuple.src_port) = (address, port);
    } else {
        (tuple.src, tuple.src_port, tuple.dst, tuple.dst_port) = (own, own_port, address, port);
    }
}

/// The address and port of a `struct sockaddr`.
#[inline(always)]
fn named_address(named: u64) -> (V6, Port) {
    const PORT: u32 = 2;
    const V4_ADDRESS: u32 = 4;
    const V6_ADDRESS: u32 = 8;
    let family: u16 = memory::read(named, 0);
    let port = Port(memory::read(named, PORT));
    if family == AF_INET6 {
        (V6::from_words(memory::read(named, V6_ADDRESS)), port)
    } else {
        (V6::mapped(memory::read(named, V4_ADDRESS)), port)
    }
}

#[inline(always)]
fn is_mapped(address: V6) -> bool {
    let words = address.words();
    words[0] | words[1] == 0 && words[2] == 0xffff_u32.to_be()
}

#[inline(always)]
pub fn begins(ctx: *mut c_void) {
    let (Some(begun), Some(target)) = (BEGUN.get_ptr_mut(0), target()) else {
        return;
    };
    // SAFETY: this CPU's element; the kernel does not start this program on a CPU while it runs there.
    let begun = unsafe { &mut *begun };
    let call = memory::argument(ctx);
    let sock: u64 = memory::read(call, target.call_sock);
    read_ends(call, sock, target, &mut begun.before);
    note_counters(begun);
    let task = bpf_get_current_pid_tgid();
    if CALLS.insert(&task, &*begun, BPF_ANY as u64).is_err() {
        lose(lost::CALLS);
    }
}

#[inline(always)]
pub fn ends(ctx: *mut c_void) {
    let task = bpf_get_current_pid_tgid();
    let (Some(begun), Some(event), Some(target)) =
        (CALLS.get_ptr_mut(&task), EVENT.get_ptr_mut(0), target())
    else {
        return;
    };
    // SAFETY: this task's element, and this CPU's.
    let (begun, event) = unsafe { (&mut *begun, &mut *event) };
    fill(ctx, begun, event, target);
    // SAFETY: the helper reads the key.
    _ = CALLS.remove(&task);
    if wants_outcome(event) {
        hand_over(event);
    }
}

#[inline(always)]
fn fill(ctx: *mut c_void, begun: &mut crate::maps::Begun, event: &mut Event, target: &Target) {
    let call = memory::argument(ctx);
    let sock: u64 = memory::read(call, target.call_sock);
    event.hook = target.hook as u8;
    event.action = memory::returned(ctx);
    copy_tuple(&mut event.before, &begun.before);
    read_ends(call, sock, target, &mut event.after);
    compare_counters(begun);
    let translated = !event.before.leads_as(&event.after);
    let changed = memory::kept(&begun.changed);
    let (outcome, ambiguous) = outcome_of_call(changed, event.action == 0, translated);
    event.outcome = outcome;
    event.flags = if ambiguous { Event::AMBIGUOUS } else { 0 };
    event.process = (bpf_get_current_pid_tgid() >> 32) as u32;
    event.command = bpf_get_current_comm().unwrap_or([0; 16]);
    // SAFETY: no arguments.
    event.cgroup = unsafe { helpers::bpf_get_current_cgroup_id() };
    event.cookie = memory::read(sock, target.sock_cookie);
    (event.interface, event.mark_before, event.mark_after) = (0, 0, 0);
    (event.length_before, event.length_after) = (0, 0);
    (event.head_before, event.head_after) = (0, 0);
}
