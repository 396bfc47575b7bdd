// SPDX-License-Identifier: (Apache-2.0 OR MIT) AND GPL-2.0-only
//! The programs' own log lines: faults are always logged, every packet of a service only if the
//! agent has asked for it at load time.

use aya_log_ebpf::{
    log,
    macro_support::{Level, level_enabled},
};
use proxy_common::Counter;

use crate::{count::Outcome, family::Family, maps::workspace, packet::Skb};

/// Logs the outcome of the packet in the workspace if it must be logged; returns the same outcome.
#[inline(always)]
pub fn outcome<F: Family>(skb: Skb, outcome: Outcome) -> Outcome {
    // The programs, or the contents of the maps, are at fault for it.
    if outcome.is_of(Counter::DroppedInconsistent) {
        say::<F>(skb, outcome.counter(), 1);
    } else if level_enabled(Level::Debug) && !outcome.is_untouched() {
        say::<F>(skb, outcome.counter(), 0);
    }
    outcome
}

by_family! {
    /// Logs a line about the packet in the workspace; `fault` is not 0 for a fault.
    fn say(skb, counter, fault) = portolan_say_v4 portolan_say_v6 of line
}
/// Writes the counter as a number, which the agent replaces by the counter's name: text costs the
/// verifier too much.
#[inline(always)]
fn line<F: Family>(skb: Skb, counter: u32, fault: u32) -> u32 {
    let Some(workspace) = F::workspaces().get_ptr(workspace::ATTACHED) else {
        return 0;
    };
    // SAFETY: this CPU's own element, which the program no longer uses.
    let key = unsafe { &(*workspace).packet.key };
    let (src, dst) = (F::octets(&key.src), F::octets(&key.dst));
    let level = if fault != 0 {
        Level::Error
    } else {
        Level::Debug
    };
    log!(
        skb,
        level,
        "interface {} protocol {} from {:i} {} to {:i} {} outcome {}",
        skb.interface(),
        key.protocol.0,
        src,
        key.src_port.host(),
        dst,
        key.dst_port.host(),
        counter
    );
    0
}
