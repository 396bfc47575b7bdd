// SPDX-License-Identifier: (Apache-2.0 OR MIT) AND GPL-2.0-only
//! The programs of `portolan explain --follow` and `portolan trace --drops`, at the kernel's
//! tracepoints of packets. They change nothing. A further program puts a packet into an interface
//! as if the interface had received it; only a test run runs it.
#![no_std]
#![no_main]

#[path = "../src/object.rs"]
mod object;

use core::ptr;

use aya_ebpf::{
    EbpfContext,
    bindings::BPF_F_INGRESS,
    btf_maps::{Array, HashMap, PerCpuArray, PerfEventArray},
    helpers::generated as helpers,
    macros::{btf_map, classifier, raw_tracepoint},
    programs::{RawTracePointContext, TcContext},
};
use proxy_common::trace::{
    HEAD,
    follow::{Config, Direction, End, Followed, Seen, Sighting, token},
    head,
};

/// Memory for one packet; the kernel runs no program of this object inside itself, but one inside
/// another.
#[repr(C)]
struct Workspace {
    sighting: Sighting,
    work: u32,
    transport: [u8; 16],
    bytes: [u8; HEAD],
}

#[btf_map(name = "follow_config")]
static CONFIG: Array<Config, 1> = Array::new();
#[btf_map(name = "followed")]
static FOLLOWED: Array<Followed, 1> = Array::new();
#[btf_map(name = "follow_ends")]
static ENDS: HashMap<End, u32, 65_536> = HashMap::new();
#[btf_map(name = "follow_work")]
static WORK: PerCpuArray<Workspace, { Seen::ALL.len() }> = PerCpuArray::new();
#[btf_map(name = "follow_out")]
static OUT: PerfEventArray = PerfEventArray::new();
#[btf_map(name = "follow_lost")]
static LOST: PerCpuArray<u64, 1> = PerCpuArray::new();

#[raw_tracepoint]
pub fn received(ctx: RawTracePointContext) -> i32 {
    see(&ctx, Seen::Received, 0, 0)
}

#[raw_tracepoint]
pub fn sent(ctx: RawTracePointContext) -> i32 {
    see(&ctx, Seen::Sent, 0, 0)
}

#[raw_tracepoint]
pub fn freed(ctx: RawTracePointContext) -> i32 {
    let (location, reason) = (ctx.arg::<u64>(1), ctx.arg::<u32>(2));
    see(&ctx, Seen::Freed, location, reason)
}

/// Gives the packet to the interface whose index is the packet's mark, as received there.
#[classifier]
pub fn inject(ctx: TcContext) -> i32 {
    const SHOT: i32 = 2;
    // SAFETY: the context is valid for the program's run.
    let interface = unsafe { (*ctx.skb.skb).mark };
    ctx.skb.set_mark(0);
    // SAFETY: the context is valid for the program's run.
    let failed = unsafe {
        helpers::bpf_clone_redirect(ctx.as_ptr().cast(), interface, BPF_F_INGRESS as u64)
    };
    if failed == 0 { 0 } else { SHOT }
}

/// Reads a value from the kernel's memory; a value of zeros if that is not possible.
#[inline(always)]
fn read<T: Copy + Default>(at: u64) -> T {
    let mut value = T::default();
    // SAFETY: the helper checks the address; the destination is as long as it says.
    unsafe {
        helpers::bpf_probe_read_kernel(
            ptr::from_mut(&mut value).cast(),
            size_of::<T>() as u32,
            at as *const _,
        )
    };
    value
}

#[inline(always)]
fn see(ctx: &RawTracePointContext, seen: Seen, location: u64, reason: u32) -> i32 {
    let Some(config) = CONFIG.get_ptr(0) else {
        return 0;
    };
    let Some(workspace) = WORK.get_ptr_mut(seen as u32) else {
        return 0;
    };
    // SAFETY: written before the programs are attached, and never later; this CPU's own element of
    // this program, which does not run inside itself.
    let (config, workspace) = unsafe { (&*config, &mut *workspace) };
    let offsets = &config.offsets;
    let skb = ctx.arg::<u64>(0);
    let head = read::<u64>(skb + offsets.head as u64);
    let data = read::<u64>(skb + offsets.data as u64);
    let network = if seen as u8 == Seen::Received as u8 {
        // The network header's position is not set yet.
        data
    } else {
        head + read::<u16>(skb + offsets.network_header as u64) as u64
    };
    // SAFETY: the helper checks the address; the destination is as long as it says.
    let failed = unsafe {
        helpers::bpf_probe_read_kernel(
            workspace.bytes.as_mut_ptr().cast(),
            HEAD as u32,
            network as *const _,
        )
    };
    if failed != 0 {
        return 0;
    }
    let Workspace {
        sighting,
        work,
        transport,
        bytes,
    } = workspace;
    head::parse(bytes, HEAD as u32, false, &mut sighting.tuple, work);
    let tuple = &sighting.tuple;
    if tuple.family == 0 {
        return 0;
    }
    let direction = if config.all_ends != 0 {
        if is_end(tuple.dst_end()) {
            Direction::Request
        } else if is_end(tuple.src_end()) {
            Direction::Answer
        } else {
            return 0;
        }
    } else {
        let Some(followed) = FOLLOWED.get_ptr_mut(0) else {
            return 0;
        };
        // SAFETY: plain numbers; two packets that are the first at once may both be followed.
        let followed = unsafe { &mut *followed };
        let length = if tuple.family == 4 {
            (bytes[0] & 15) as u64 * 4
        } else {
            40
        };
        // SAFETY: as above.
        unsafe {
            helpers::bpf_probe_read_kernel(
                transport.as_mut_ptr().cast(),
                16,
                (network + length) as *const _,
            )
        };
        let token = token(tuple, transport);
        let Some(direction) = followed.direction(tuple, token, is_end(tuple.dst_end())) else {
            return 0;
        };
        direction
    };
    // SAFETY: no arguments.
    sighting.time = unsafe { helpers::bpf_ktime_get_ns() };
    sighting.location = location;
    sighting.reason = reason;
    sighting.length = read(skb + offsets.len as u64);
    sighting.mark = read(skb + offsets.mark as u64);
    (sighting.seen, sighting.direction) = (seen as u8, direction as u8);
    let device = read::<u64>(skb + offsets.dev as u64);
    let net = if device == 0 {
        sighting.interface = 0;
        read::<u64>(read::<u64>(skb + offsets.sk as u64) + offsets.sock_net as u64)
    } else {
        sighting.interface = read(device + offsets.dev_index as u64);
        read::<u64>(device + offsets.dev_net as u64)
    };
    sighting.namespace = read(net + offsets.net_inode as u64);
    sighting.receiver = if seen as u8 == Seen::Sent as u8 {
        read(data)
    } else {
        [0; 6]
    };
    // SAFETY: the context is valid.
    unsafe { object::hand_over(ctx.as_ptr(), sighting, &OUT, &LOST, 0) };
    0
}

#[inline(always)]
fn is_end(end: End) -> bool {
    ENDS.get_ptr(end).is_some()
}
