// SPDX-License-Identifier: (Apache-2.0 OR MIT) AND GPL-2.0-only
//! Constants that the agent chooses when it loads the programs. The verifier knows their values and
//! removes the code that they switch off.

use aya_ebpf::Global;
use proxy_common::{Port, masquerade::Marks};

/// The bit of the packet mark by which ingress asks egress to give the packet the node's address.
#[unsafe(no_mangle)]
pub static MASQUERADE_MARK: Global<u32> = Global::new(Marks::DEFAULT.masquerade);
/// The bit of the packet mark by which a socket hook asks egress to drop the packet.
#[unsafe(no_mangle)]
pub static DROP_MARK: Global<u32> = Global::new(Marks::DEFAULT.drop);
/// Not 0 with `forwarding: auto`.
#[unsafe(no_mangle)]
static REDIRECT: Global<u32> = Global::new(0);
/// The UDP port of outer headers; 0: this node neither puts one on nor takes one off.
#[unsafe(no_mangle)]
static HEADER_PORT: Global<u32> = Global::new(0);

/// Number of sets of each family's flow table; the agent sets it to that of the maps.
#[unsafe(no_mangle)]
pub static FLOW_SETS_V4: Global<u32> = Global::new(2);
#[unsafe(no_mangle)]
pub static FLOW_SETS_V6: Global<u32> = Global::new(1 << 21);

/// The secret of the hashes by which a flow's slot is found and conversations between pods are
/// named: that of the flow tables. Not 0 here: LLVM gives one
/// address to equal constants, so the 0 that a program writes into a map would become the key.
#[unsafe(no_mangle)]
pub static HASH_KEY: Global<u64> = Global::new(0x9e37_79b9_85eb_ca6b);

/// Returns both mark bits that may mean masquerading: the configured one, and the one used while
/// another proxy's rules masquerade with the former.
#[inline(always)]
pub fn masquerade_marks() -> u32 {
    let mark = MASQUERADE_MARK.load();
    mark | Marks::beside_rules(mark)
}

/// Whether translated packets are redirected past the node's stack.
#[inline(always)]
pub fn redirects() -> bool {
    REDIRECT.load() != 0
}

/// Returns the UDP port of outer headers; no port if this node has nothing to do with them.
#[inline(always)]
pub fn header_port() -> Port {
    Port::from_host(HEADER_PORT.load() as u16)
}
