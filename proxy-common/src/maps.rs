// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Map names and default capacities. A map is pinned under its name.

/// Version of all map layouts in this crate; part of the pin path. A change of any shared type, or
/// of a map's type or flags, increments it. An agent with another version copies flows, sockets and
/// affinity by the names of maps and fields, so a map or field whose meaning changes gets a new
/// name.
pub const LAYOUT_VERSION: u32 = 5 + cfg!(feature = "next-layout") as u32;

macro_rules! names {
    ($($constant:ident = $name:literal,)*) => {
        $(pub const $constant: &str = $name;)*
        /// Every map's name.
        pub const ALL: &[&str] = &[$($name,)*];
    };
}

names! {
    FRONTENDS_V4 = "frontends_v4",
    FRONTENDS_V6 = "frontends_v6",
    RECORDS_V4 = "records_v4",
    RECORDS_V6 = "records_v6",
    SLOTS = "slots",
    BACKENDS_V4 = "backends_v4",
    BACKENDS_V6 = "backends_v6",
    NODE_ADDRESSES_V4 = "addresses_v4",
    NODE_ADDRESSES_V6 = "addresses_v6",
    PORTS = "ports",
    SOURCE_RANGES_V4 = "sources_v4",
    SOURCE_RANGES_V6 = "sources_v6",
    AFFINITY_V4 = "affinity_v4",
    AFFINITY_V6 = "affinity_v6",
    AFFINITY_PODS = "affinity_pods",
    FLOW_SLOTS_V4 = "flow_slots_v4",
    FLOW_SLOTS_V6 = "flow_slots_v6",
    FLOW_TAGS_V4 = "flow_tags_v4",
    FLOW_TAGS_V6 = "flow_tags_v6",
    FLOW_SECRET = "flow_secret",
    SOCKETS_V4 = "sockets_v4",
    SOCKETS_V6 = "sockets_v6",
    SOCKET_BUCKETS_V4 = "sock_buckets_v4",
    SOCKET_BUCKETS_V6 = "sock_buckets_v6",
    EXCEPTIONS = "exceptions",
    FRAGMENTS_V4 = "fragments_v4",
    FRAGMENTS_V6 = "fragments_v6",
    PODS_V4 = "pods_v4",
    PODS_V6 = "pods_v6",
    INTERFACES = "interfaces",
    DIRECT = "direct",
    BETWEEN_PODS = "between_pods",
    SHARED_INTERFACES = "shared_ifaces",
    MASQUERADE_SOURCES = "masq_addresses",
    SETTINGS = "settings",
    NAMES = "names",
    COUNTERS = "counters",
    TRAFFIC_V4 = "traffic_v4",
    TRAFFIC_V6 = "traffic_v6",
    REFUSED = "refused",
    REJECT_BUDGET = "reject_budget",
    DRAINED = "drained",
    UPLINKS = "uplinks",
    MACS = "macs",
    ROUTE_EPOCH = "route_epoch",
    HEADER_KEYS = "header_keys",
}

/// The flow tables of versions before this one, hash maps: a succession reads them.
pub const HASHED_FLOWS: [&str; 2] = ["flows_v4", "flows_v6"];

/// The word in the map [`DRAINED`]: two bits, while programs with new maps take over from those
/// with old maps, and above them until when the programs serve without an agent.
pub mod generation {
    use crate::flow::offload::clock;

    /// The programs with new maps have taken over: the programs of this map begin no flows.
    pub const DRAINED: u32 = 1;
    /// The programs of this map run after the programs with other maps, and see the packets that
    /// these pass on, even translated ones.
    pub const BEHIND: u32 = 2;
    /// The lowest bit of the time, which is 0 if the programs serve for ever.
    const TIME: u32 = 2;

    /// Returns the word with these bits of `word` for programs that serve until `time`, in
    /// nanoseconds of the monotonic clock; without one, for ever.
    pub fn serving_until(word: u32, time: Option<u64>) -> u32 {
        let units = time.map_or(0, |time| clock(time) + 1);
        word & (DRAINED | BEHIND) | units << TIME
    }

    /// Whether no agent has run for so long that the programs leave what begins to others.
    #[inline(always)]
    pub fn is_abandoned(word: u32, now: impl FnOnce() -> u64) -> bool {
        word >> TIME != 0 && clock(now()) >= word >> TIME
    }
}

/// Number of slots of the map `direct`: direct conversations with a backend, not through a service.
pub const DIRECT_SLOTS: u32 = 65_536;
/// Number of slots of the map `between_pods`: conversations between two pods of this node.
pub const BETWEEN_PODS_SLOTS: u32 = 65_536;

/// Names of the maps of next hops that each CPU caches at XDP: IPv4's, then IPv6's. Not pinned.
pub const NEXT_HOPS: [&str; 2] = ["next_hops_v4", "next_hops_v6"];
/// Number of slots of a map of next hops: the hash of a next hop's destination, modulo this number,
/// is its slot.
pub const NEXT_HOP_SLOTS: u32 = 1024;

/// Number of slots of the map `shared_ifaces`: an interface's index, modulo this number, is its
/// slot.
pub const SHARED_INTERFACE_SLOTS: u32 = 4096;
/// Value of a slot of `shared_ifaces` into which several shared interfaces fall: the interface's
/// bit [`interface::SHARED`] must be looked up then. No interface has this index.
pub const SEVERAL_SHARED: u32 = u32::MAX;

/// Bits of the values of the maps `addresses_v4` and `addresses_v6`.
pub mod node_address {
    /// Node ports are served on this address.
    pub const NODE_PORT: u32 = 1;
}

/// The value of the map `interfaces`: one 64-bit word. Its lower half has these bits, its upper
/// half the index of the bridge whose port the interface is, or 0.
pub mod interface {
    /// Returns the key of the map `macs` for a link-layer address: six octets, the first lowest.
    #[inline(always)]
    pub const fn mac([a, b, c, d, e, f]: [u8; 6]) -> u64 {
        u64::from_le_bytes([a, b, c, d, e, f, 0, 0])
    }

    /// Packets that come in by the interface come from pods.
    pub const PODS: u32 = 1 << 31;
    /// The interface is a veth and a port of a bridge: this node forwards every frame that comes in
    /// by it.
    pub const VETH_PORT: u32 = 1 << 30;
    /// Packets that leave by the interface have no link-layer header.
    pub const NO_LINK_LAYER: u32 = 1 << 29;
    /// The interface is a bridge port whose link-layer address differs from the bridge's: frames
    /// for this node are addressed to the bridge.
    pub const BRIDGE_PORT: u32 = 1 << 28;
    /// With `forwarding: auto`, packets that come in by the interface may be redirected past the
    /// stack: nothing in the stack waits for them.
    pub const REDIRECTS: u32 = 1 << 27;
    /// VLAN interfaces are on top of the interface: frames with such a VLAN's tag that come in by
    /// it go to the VLAN interface's own programs.
    pub const VLANS: u32 = 1 << 26;
    /// The interface is an isolated bridge port: no frame passes between two such ports. Set by `ip
    /// link set DEV type bridge_slave isolated on`.
    pub const ISOLATED: u32 = 1 << 25;
    /// Many clients come in by the interface, so flows do not tell clients apart by it.
    pub const SHARED: u32 = 1 << 24;
    /// Mask of the lower half's other bits: the index into the map `masq_addresses`.
    pub const SOURCE: u32 = SHARED - 1;

    /// Returns the map's value for these bits and for the index of the bridge, or 0.
    #[inline(always)]
    pub const fn word(bits: u32, bridge: u32) -> u64 {
        (bridge as u64) << 32 | bits as u64
    }
    /// Returns the bits in a value of the map.
    #[inline(always)]
    pub const fn bits(word: u64) -> u32 {
        word as u32
    }
    /// Returns the index of the bridge whose port the interface is; 0 if it is no bridge's port.
    #[inline(always)]
    pub const fn bridge(word: u64) -> u32 {
        (word >> 32) as u32
    }
}

/// Map capacities in the object file; the agent replaces them by its settings when it loads the
/// object.
pub mod capacity {
    pub const FRONTENDS: usize = 16_384;
    pub const RECORDS: usize = 16_384;
    pub const SLOTS: usize = 65_536;
    pub const BACKENDS: usize = 4_096;
    pub const NODE_ADDRESSES: usize = 1_024;
    pub const SOURCE_RANGES: usize = 16_384;
    pub const AFFINITY: usize = 4_096;
    /// Entries of the flow table of a family.
    pub const FLOWS: usize = 131_072;
    pub const SOCKETS: usize = 65_536;
    /// Cgroups excepted from socket balancing; each includes the cgroups below it.
    pub const EXCEPTIONS: usize = 4_096;
    pub const FRAGMENTS: usize = 2_048;
    /// Pods of this node, for each family.
    pub const PODS: usize = 4_096;
    pub const INTERFACES: usize = 4_096;
    pub const MASQUERADE_SOURCES: usize = 512;
    pub const NAMES: usize = 16_384;
    /// How many backends of a family have traffic counters; the agent lowers it where there are
    /// many CPUs.
    pub const TRAFFIC: usize = 4_096;
    /// Service ports with refused packets: one entry for each service port and counter.
    pub const REFUSED: usize = 4_096;
    /// Link-layer addresses of the node's interfaces, without those to pods.
    pub const MACS: usize = 4_096;
    /// Interfaces with an XDP program.
    pub const UPLINKS: usize = 256;
}

#[cfg(test)]
mod tests {
    use super::generation::{BEHIND, DRAINED, is_abandoned, serving_until};

    #[test]
    fn programs_give_way_once_no_agent_has_come_for_the_time_that_they_were_given() {
        const HOUR: u64 = 3_600_000_000_000;
        let word = serving_until(DRAINED | BEHIND, Some(6 * HOUR));
        assert!(!is_abandoned(word, || 6 * HOUR) && is_abandoned(word, || 6 * HOUR + HOUR / 60));
        assert_eq!(word & 3, DRAINED | BEHIND);
        // An agent that comes back changes the time only; without one nothing asks the clock.
        let word = serving_until(word, Some(13 * HOUR));
        assert!(!is_abandoned(word, || 7 * HOUR));
        let for_ever = serving_until(word, None);
        assert_eq!(for_ever, DRAINED | BEHIND);
        assert!(!is_abandoned(for_ever, || unreachable!()));
    }
}
