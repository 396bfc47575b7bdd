// SPDX-License-Identifier: (Apache-2.0 OR MIT) AND GPL-2.0-only
//! The `ports` map: which ports may have entries in the other maps. Layout and meaning of the bits
//! are in `proxy_common::ports`.

use proxy_common::{Port, ports};

use crate::maps::PORTS;

/// Returns a port's bits in the `ports` map.
#[inline(always)]
pub fn bits(port: Port) -> u64 {
    let port = port.host();
    PORTS
        .get(ports::word_of(port))
        .map_or(0, |word| ports::bits(*word, port))
}

/// Sets a bit of a port in the `ports` map, before the flow that the bit announces can be found.
#[inline(always)]
pub fn announce(port: Port, bit: u64) {
    if bits(port) & bit == 0 {
        portolan_announce(port.host() as u32, bit);
    }
}

/// Sets a bit of a port (host order) in the `ports` map. The returned 0 has no meaning.
// VERIFIER: exported, so that it is verified once and not on every path that leads here.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn portolan_announce(port: u32, bit: u64) -> u32 {
    let port = port as u16;
    if let Some(word) = PORTS.get_ptr_mut(ports::word_of(port)) {
        let bit = ports::in_word(bit, port);
        // SAFETY: a live element; other programs and the agent also change its bits by atomic
        // instructions.
        unsafe {
            core::arch::asm!("lock *(u64 *)({word} + 0) |= {bit}", word = in(reg) word, bit = in(reg) bit)
        };
    }
    0
}
