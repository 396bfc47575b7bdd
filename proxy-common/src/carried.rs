// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `portolan.clientAddress: keep`: the endpoint's node puts the client's address back into packets
//! that another node has masqueraded. It learns the address from the flow's first packets, which
//! leave the other node as they are, behind an outer header: from the masquerade address and port,
//! to the endpoint. Between its IP header and the packet are a UDP header and a token, which only
//! the cluster's agents can make. Once the endpoint has answered, no packet has a header any more.

use crate::{EndpointSet, FlowEntry, ServiceFlags};

/// The bytes behind the outer IP header: UDP's, and the token's.
pub const HEADER_LEN: u32 = 8 + 8;

/// A secret of all agents of the cluster, by which tokens are made; 0 is none.
pub type Key = [u64; 2];

/// Number of keys that a node believes; it makes tokens by the first. While the cluster changes its
/// secret there are two.
pub const KEYS: u32 = 2;

/// The token's lowest byte, which is the first one on the wire: this version of the header.
const VERSION: u64 = 0xc1;

/// Whether a token is of this version.
#[inline(always)]
pub const fn is_token(token: u64) -> bool {
    token & 0xff == VERSION
}

/// Returns the token of a header with these outer addresses. It is good for no others, so one that
/// is read somewhere opens no other door.
#[inline(always)]
pub fn token(key: Key, src: [u32; 4], dst: [u32; 4]) -> u64 {
    let join = |words: [u32; 4], n: usize| words[n] as u64 | (words[n + 1] as u64) << 32;
    let mut hash = Sip::new(key);
    // IPv4 addresses are the last of four words, the rest is 0.
    if src[0] | src[1] | src[2] | dst[0] | dst[1] | dst[2] == 0 {
        hash.write(src[3] as u64 | (dst[3] as u64) << 32);
    } else {
        hash.write(join(src, 0));
        hash.write(join(src, 2));
        hash.write(join(dst, 0));
        hash.write(join(dst, 2));
    }
    hash.finish() & !0xff | VERSION
}

/// Whether a key is one.
#[inline(always)]
pub const fn is_key(key: Key) -> bool {
    key[0] | key[1] != 0
}

/// What becomes of the source address of a flow's packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Source {
    /// It stays.
    Stays,
    /// The node's address takes its place.
    Masqueraded,
    /// As `Masqueraded`, unless the endpoint is here; its node puts the client's address back if it
    /// takes headers off.
    Kept,
}

impl Source {
    /// Decides about a new flow by its record's flags; `masquerade`: the policy masquerades it.
    /// `may_keep`: other nodes can answer to the client's address, and no endpoint has failed to
    /// answer this client just now.
    #[inline(always)]
    pub fn of(flags: ServiceFlags, masquerade: bool, may_keep: impl FnOnce() -> bool) -> Self {
        if !masquerade {
            Self::Stays
        } else if flags.has(ServiceFlags::KEEP_CLIENT) && may_keep() {
            Self::Kept
        } else {
            Self::Masqueraded
        }
    }

    /// Returns the flags of the flow's entries. `sets` are those of the backend; a client that
    /// reaches itself is always masqueraded.
    #[inline(always)]
    pub const fn flags(self, sets: EndpointSet, is_hairpin: bool) -> u8 {
        const MASQUERADE: u8 = FlowEntry::<crate::V4>::MASQUERADE;
        const CARRIED: u8 = MASQUERADE | FlowEntry::<crate::V4>::CARRIED;
        match self {
            _ if is_hairpin => MASQUERADE,
            Self::Stays => 0,
            Self::Kept if sets.intersects(EndpointSet::HERE) => 0,
            Self::Kept if sets.intersects(EndpointSet::TAKES_HEADERS) => CARRIED,
            Self::Kept | Self::Masqueraded => MASQUERADE,
        }
    }
}

/// SipHash-1-3 of whole words.
#[derive(Clone, Copy)]
struct Sip {
    state: [u64; 4],
    words: u64,
}

impl Sip {
    #[inline(always)]
    const fn new([a, b]: Key) -> Self {
        let state = [
            a ^ 0x736f_6d65_7073_6575,
            b ^ 0x646f_7261_6e64_6f6d,
            a ^ 0x6c79_6765_6e65_7261,
            b ^ 0x7465_6462_7974_6573,
        ];
        Self { state, words: 0 }
    }
    #[inline(always)]
    const fn round(&mut self) {
        let [mut a, mut b, mut c, mut d] = self.state;
        a = a.wrapping_add(b);
        b = b.rotate_left(13) ^ a;
        a = a.rotate_left(32);
        c = c.wrapping_add(d);
        d = d.rotate_left(16) ^ c;
        a = a.wrapping_add(d);
        d = d.rotate_left(21) ^ a;
        c = c.wrapping_add(b);
        b = b.rotate_left(17) ^ c;
        c = c.rotate_left(32);
        self.state = [a, b, c, d];
    }
    #[inline(always)]
    const fn block(&mut self, word: u64) {
        self.state[3] ^= word;
        self.round();
        self.state[0] ^= word;
    }
    #[inline(always)]
    const fn write(&mut self, word: u64) {
        self.words += 1;
        self.block(word);
    }
    #[inline(always)]
    const fn finish(mut self) -> u64 {
        self.block((self.words * 8) << 56);
        self.state[2] ^= 0xff;
        self.round();
        self.round();
        self.round();
        let [a, b, c, d] = self.state;
        a ^ b ^ c ^ d
    }
}

#[cfg(test)]
mod tests {
    use std::hash::{DefaultHasher, Hasher};

    use super::*;
    use crate::FrontendKind;

    #[test]
    fn the_hash_is_the_standard_librarys() {
        for count in 0..5_u64 {
            let (mut own, mut standard) = (Sip::new([0; 2]), DefaultHasher::new());
            for word in (0..count).map(|n| (n + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)) {
                own.write(word);
                standard.write(&word.to_le_bytes());
            }
            assert_eq!(own.finish(), standard.finish(), "{count} words");
        }
    }

    #[test]
    fn a_token_is_good_for_one_key_and_two_addresses() {
        let (a, b, long) = ([0, 0, 0, 7], [0, 0, 0, 9], [1, 0, 0, 7]);
        let made = token([1, 2], a, b);
        assert!(is_token(made) && !is_token(made ^ 1));
        for (key, src, dst) in [
            ([1, 3], a, b),
            ([3, 2], a, b),
            ([1, 2], b, a),
            ([1, 2], a, long),
            ([1, 2], long, b),
        ] {
            assert_ne!(token(key, src, dst), made);
        }
    }

    #[test]
    fn a_flow_is_carried_where_it_would_be_masqueraded_and_the_endpoints_node_can() {
        type Entry = FlowEntry<crate::V4>;
        let plain = ServiceFlags::new(FrontendKind::NodePort);
        let keep = plain.with(ServiceFlags::KEEP_CLIENT, true);
        let (here, able) = (EndpointSet::HERE, EndpointSet::TAKES_HEADERS);
        let none = EndpointSet::CLUSTER;
        let carried = Entry::CARRIED | Entry::MASQUERADE;
        for (flags, masquerade, may_keep, sets, expected) in [
            (plain, true, true, able, Entry::MASQUERADE),
            (plain, true, true, here, Entry::MASQUERADE),
            (plain, false, true, able, 0),
            (keep, false, true, able, 0),
            (keep, true, true, none, Entry::MASQUERADE),
            (keep, true, true, none.union(able), carried),
            (keep, true, true, none.union(here), 0),
            (keep, true, false, able, Entry::MASQUERADE),
            (keep, true, false, here, Entry::MASQUERADE),
        ] {
            let source = Source::of(flags, masquerade, || may_keep);
            assert_eq!(source.flags(sets, false), expected, "{flags:?} {sets:?}");
            assert_eq!(source.flags(sets, true), Entry::MASQUERADE, "hairpin");
        }
    }
}
