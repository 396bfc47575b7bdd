// SPDX-License-Identifier: (Apache-2.0 OR MIT) AND GPL-2.0-only
//! The bits of the packet mark that are ours, chosen when the programs are loaded. The verifier knows them
//! as constants.

use aya_ebpf::Global;
use proxy_common::masquerade::Marks;

#[unsafe(no_mangle)]
static MASQUERADE_MARK: Global<u32> = Global::new(Marks::DEFAULT.masquerade);
#[unsafe(no_mangle)]
static DROP_MARK: Global<u32> = Global::new(Marks::DEFAULT.drop);

/// Of what is to leave with the node's address.
#[inline(always)]
pub fn masquerade() -> u32 {
    MASQUERADE_MARK.load()
}

/// Of what egress drops.
#[inline(always)]
pub fn drop() -> u32 {
    DROP_MARK.load()
}
