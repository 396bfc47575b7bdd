// SPDX-License-Identifier: (Apache-2.0 OR MIT) AND GPL-2.0-only
//! Constants that the agent chooses when it loads the programs. The verifier knows their values and
//! removes the code that they switch off.

use aya_ebpf::Global;
use proxy_common::masquerade::Marks;

#[unsafe(no_mangle)]
static MASQUERADE_MARK: Global<u32> = Global::new(Marks::DEFAULT.masquerade);
#[unsafe(no_mangle)]
static DROP_MARK: Global<u32> = Global::new(Marks::DEFAULT.drop);
/// Not 0 with `forwarding: auto`.
#[unsafe(no_mangle)]
static REDIRECT: Global<u32> = Global::new(0);

/// Number of slots of one ring of flow keys; the agent sets it to
/// `proxy_common::flow::ring::ring_size`.
#[unsafe(no_mangle)]
static RING_SIZE: Global<u32> = Global::new(1);

/// See [`hash_key`]. Not 0 here: LLVM gives one address to equal constants, so the 0 that a program
/// writes into a map would become the key.
#[unsafe(no_mangle)]
static HASH_KEY: Global<u64> = Global::new(0x9e37_79b9_85eb_ca6b);

/// Returns the bit of the packet mark by which ingress asks egress to give the packet the node's
/// address.
#[inline(always)]
pub fn masquerade_mark() -> u32 {
    MASQUERADE_MARK.load()
}

/// Returns both mark bits that may mean masquerading: the configured one, and the one used while
/// another proxy's rules masquerade with the former.
#[inline(always)]
pub fn masquerade_marks() -> u32 {
    masquerade_mark() | Marks::beside_rules(masquerade_mark())
}

/// Returns the bit of the packet mark by which a socket hook asks egress to drop the packet.
#[inline(always)]
pub fn drop_mark() -> u32 {
    DROP_MARK.load()
}

/// Whether translated packets are redirected past the node's stack.
#[inline(always)]
pub fn redirects() -> bool {
    REDIRECT.load() != 0
}

/// Returns the number of slots of one ring of flow keys.
#[inline(always)]
pub fn ring_size() -> u32 {
    RING_SIZE.load()
}

/// Returns the secret key of the hash that names conversations between pods. Each agent chooses
/// its own; records made with another key are not found, and are made again.
#[inline(always)]
pub fn hash_key() -> u64 {
    HASH_KEY.load()
}
