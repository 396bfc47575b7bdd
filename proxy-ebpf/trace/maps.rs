// SPDX-License-Identifier: (Apache-2.0 OR MIT) AND GPL-2.0-only
//! The maps of the tracing programs. `counters` is replaced by that of the traced program; `events`, `lost`, `rate`, `filter` and
//! `sets` are the command's, for all traced programs; the others are each pair's own.

use aya_ebpf::{
    btf_maps::{Array, HashMap, PerCpuArray, RingBuf},
    macros::btf_map,
};
use proxy_common::{
    Counter, Port, V6,
    trace::{Counts, Event, Filter, HEAD, Named, Target, Tuple, lost, rate::Rate},
};

/// What is noted before a program runs.
#[repr(C)]
pub struct Begun {
    pub counts: Counts,
    pub changed: u64,
    pub before: Tuple,
    pub mark: u32,
    pub length: u32,
    pub head: u32,
    /// 1 until the end has seen it.
    pub valid: u32,
}

/// Calls that may be under way at one hook at the same moment: a task is in one at most, and only while the hook runs.
const CALLS_AT_ONCE: usize = 1024;
/// Bytes of events that wait for the reader.
const WAITING: usize = 1 << 22;
/// Endpoints that a filter may name; the command makes it as large as it needs.
const NAMED: usize = 65_536;

#[btf_map(name = "counters")]
pub static COUNTERS: PerCpuArray<u64, { Counter::CAPACITY as usize }> = PerCpuArray::new();
#[btf_map(name = "events")]
pub static EVENTS: RingBuf<Event, WAITING> = RingBuf::new();
#[btf_map(name = "lost")]
pub static LOST: PerCpuArray<u64, { lost::COUNT as usize }> = PerCpuArray::new();
#[btf_map(name = "rate")]
pub static RATE: Array<Rate, 1> = Array::new();
#[btf_map(name = "filter")]
pub static FILTER: Array<Filter, 1> = Array::new();
#[btf_map(name = "sets")]
pub static SETS: HashMap<Named, u32, NAMED> = HashMap::new();

#[btf_map(name = "target")]
pub static TARGET: Array<Target, 1> = Array::new();
#[btf_map(name = "begun")]
pub static BEGUN: PerCpuArray<Begun, 1> = PerCpuArray::new();
#[btf_map(name = "head")]
pub static HEADS: PerCpuArray<[u8; HEAD], 1> = PerCpuArray::new();
#[btf_map(name = "calls")]
pub static CALLS: HashMap<u64, Begun, CALLS_AT_ONCE> = HashMap::new();
#[btf_map(name = "event")]
pub static EVENT: PerCpuArray<Event, 1> = PerCpuArray::new();

/// What the traced program is.
#[inline(always)]
pub fn target() -> Option<&'static Target> {
    // SAFETY: written once, before the program is attached.
    TARGET.get_ptr(0).map(|target| unsafe { &*target })
}

/// The named sets that one end of a packet or call is in, as bits.
#[inline(always)]
pub fn sets_of(tuple: &Tuple, source: bool) -> u32 {
    let (address, port) = if source {
        (tuple.src, tuple.src_port)
    } else {
        (tuple.dst, tuple.dst_port)
    };
    let mut key = Named {
        address,
        port,
        protocol: tuple.protocol.0,
        _pad: 0,
    };
    let with_port = bits(&key);
    (key.port, key.protocol) = (Port::ANY, 0);
    let mut all = with_port | bits(&key);
    if !port.is_any() {
        // A node port, which many addresses have.
        key.address = V6::from_words([0; 4]);
        (key.port, key.protocol) = (port, tuple.protocol.0);
        all |= bits(&key);
    }
    all
}

#[inline(always)]
fn bits(key: &Named) -> u32 {
    // SAFETY: one word, which the command replaces as a whole.
    SETS.get_ptr(key)
        .map_or(0, |bits| unsafe { bits.read_volatile() })
}
