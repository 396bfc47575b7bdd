// SPDX-License-Identifier: (Apache-2.0 OR MIT) AND GPL-2.0-only
//! The memory that a packet program works in: an element of a per-CPU map. An entry point takes it
//! once and passes it down.

use core::mem::MaybeUninit;

use aya_ebpf::bindings::bpf_fib_lookup;
use proxy_common::{BackendId, FlowEntry, FlowKey, LocalPod, Port, ServiceId, carried::Source};

use crate::{helpers, packet::Packet};

/// Index of the workspace of programs attached to tc. They do not interrupt each other.
pub const ATTACHED: u32 = 0;
/// Index of the workspace of the `expire` programs, which the agent runs as test runs. Below Linux
/// 6.3 a packet's program can interrupt a test run.
pub const EXPIRE: u32 = 1;
/// Index of the workspace of the program at XDP.
pub const UPLINK: u32 = 2;
const _: () = assert!(EXPIRE != ATTACHED, "neither works in the other's");
pub const COUNT: u32 = 3;

/// The packet and the scratch space of the running program. It is this CPU's own, and programs at
/// one hook do not interrupt each other.
// VERIFIER: the stack is too short for this. Besides, the verifier knows nothing about values in
// maps: with the packet here it follows each path once, not once for every protocol and offset that
// led to it.
#[repr(C)]
pub struct Workspace<A> {
    pub packet: Packet<A>,
    pub clock: Clock,
    pub scratch: Scratch<A>,
}

/// The parts of a [`Workspace`].
pub type Parts<A> = (
    &'static mut Packet<A>,
    &'static mut Clock,
    &'static mut Scratch<A>,
);

/// The time that this CPU last read from the coarse clock. It is read again when the kernel's tick
/// has moved on.
#[repr(C)]
pub struct Clock {
    tick: u64,
    now: u64,
}

impl Clock {
    /// Like [`helpers::now`], without a call for most packets.
    #[inline(always)]
    pub fn now(&mut self) -> u64 {
        let tick = helpers::tick();
        if tick != self.tick {
            self.tick = tick;
            self.now = helpers::now();
        }
        self.now
    }
}

/// A buffer for a copy of one flow entry.
pub type EntryBuffer<A> = MaybeUninit<FlowEntry<A>>;

/// What is known about a flow that begins, before the decision about its first packet.
#[repr(C)]
pub struct Beginning {
    /// Id of the backend that did not answer, and that the new flow avoids; else 0.
    pub avoided: BackendId,
    /// Not 0: the packet is in the middle of a connection, and its flow is picked up.
    pub picks_up: u32,
    /// The masquerade port of the previous flow with the same tuple; else 0.
    pub port_before: Port,
    /// What becomes of its packets' source.
    pub source: Source,
    _pad: u8,
}

impl Beginning {
    #[inline(always)]
    pub const fn new(avoided: BackendId, port_before: Port) -> Self {
        Self {
            avoided,
            picks_up: 0,
            port_before,
            source: Source::Stays,
            _pad: 0,
        }
    }
}

/// Buffers for flow entries and keys.
#[repr(C)]
pub struct Scratch<A> {
    /// The entry that was found by the packet's own tuple.
    pub found: EntryBuffer<A>,
    /// Any other entry that is read.
    pub other: EntryBuffer<A>,
    /// An entry that is being made; the next field is its key.
    pub entry: FlowEntry<A>,
    pub key: FlowKey<A>,
    /// Any other key that is needed.
    pub holder: FlowKey<A>,
    /// The keys of the reply and the original entry of a flow that may give way or hand its port
    /// over.
    pub reply: FlowKey<A>,
    pub original: FlowKey<A>,
    /// What ingress has found out for `begin` about the flow that begins.
    pub beginning: Beginning,
    /// Not 0: this is the last tuple that is tried for the flow that is being made.
    pub insists: u32,
    /// With `forwarding: auto`: the route that is looked up; the next field is the pod that the
    /// packet goes to.
    pub route: bpf_fib_lookup,
    pub pod: LocalPod,
    /// Not 0: the packet is a reply that may leave past the stack, see `tc::offload::is_bound`.
    pub bound: u32,
    /// The service port that the packet is for, once a record has been found; needed to count
    /// refused packets.
    pub service: ServiceId,
}
