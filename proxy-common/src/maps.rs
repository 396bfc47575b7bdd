// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Map names and default capacities. A map's file name below the pin directory is its name.

/// Version of every layout in this crate; part of the pin path. A change of any shared type
/// increments it. An agent with another version copies flows, sockets and affinity by the names of
/// maps and fields, so a map or field whose meaning changes gets a new name.
pub const LAYOUT_VERSION: u32 = 3 + cfg!(feature = "next-layout") as u32;

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
    FLOWS_V4 = "flows_v4",
    FLOWS_V6 = "flows_v6",
    SOCKETS_V4 = "sockets_v4",
    SOCKETS_V6 = "sockets_v6",
    SOCKET_BUCKETS_V4 = "sock_buckets_v4",
    SOCKET_BUCKETS_V6 = "sock_buckets_v6",
    EXCEPTIONS = "exceptions",
    RINGS_V4 = "rings_v4",
    RINGS_V6 = "rings_v6",
    RING_ENDS = "ring_ends",
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
    ROUTE_EPOCH = "route_epoch",
}

/// Bits of the word in [`DRAINED`], while one generation of maps takes over from another.
pub mod generation {
    /// The programs begin no flows: the programs over the next maps do.
    pub const DRAINED: u32 = 1;
    /// The programs run after those over other maps: they see the packets that those pass, also
    /// translated ones.
    pub const BEHIND: u32 = 2;
}

/// Slots of the map `direct`: direct conversations with a backend, not through a service.
pub const DIRECT_SLOTS: u32 = 65_536;
/// Slots of the map of connections between two pods of this node.
pub const BETWEEN_PODS_SLOTS: u32 = 65_536;

/// Maps of the next hops that each CPU caches at XDP, one map per family. Not pinned.
pub const NEXT_HOPS: [&str; 2] = ["next_hops_v4", "next_hops_v6"];
/// Slots of such a map: the hash of a next hop's destination, modulo this number, is its slot.
pub const NEXT_HOP_SLOTS: u32 = 1024;

/// Slots of the map of shared interfaces: an interface's index, modulo this number, is its slot.
pub const SHARED_INTERFACE_SLOTS: u32 = 4096;
/// Value of a slot that several shared interfaces have: [`interface::SHARED`] must be looked up
/// then. No interface has this index.
pub const SEVERAL_SHARED: u32 = u32::MAX;

/// Bits of the one-word value of the node address maps.
pub mod node_address {
    /// Node ports are served on this address.
    pub const NODE_PORT: u32 = 1;
}

/// The value of the map of interfaces: one 64-bit word. Its lower half has these bits, its upper
/// half the index of the bridge whose port the interface is, or 0.
pub mod interface {
    /// Packets that come in by it come from pods.
    pub const PODS: u32 = 1 << 31;
    /// A veth that is a port of a bridge: this node forwards every frame that comes in by it.
    pub const VETH_PORT: u32 = 1 << 30;
    /// Packets that leave by it have no link-layer header.
    pub const NO_LINK_LAYER: u32 = 1 << 29;
    /// A port of a bridge whose link-layer address is not the bridge's: frames for this node are
    /// addressed to the bridge.
    pub const BRIDGE_PORT: u32 = 1 << 28;
    /// With `forwarding: auto`, packets that come in by it may be redirected past the stack:
    /// nothing in the stack waits for them.
    pub const REDIRECTS: u32 = 1 << 27;
    /// VLAN interfaces are on top of it: frames with such a VLAN's tag that come in by it go to the
    /// VLAN interface's own programs.
    pub const VLANS: u32 = 1 << 26;
    /// A port of a bridge that forwards no frame from it to another port with this bit:
    /// `ip link set DEV type bridge_slave isolated on`.
    pub const ISOLATED: u32 = 1 << 25;
    /// Many clients come in by it, so flows do not tell clients apart by this interface.
    pub const SHARED: u32 = 1 << 24;
    /// The rest of the lower half: index into the masquerade sources.
    pub const SOURCE: u32 = SHARED - 1;

    /// The word of an interface.
    #[inline(always)]
    pub const fn word(bits: u32, bridge: u32) -> u64 {
        (bridge as u64) << 32 | bits as u64
    }
    /// The bits of an interface's word.
    #[inline(always)]
    pub const fn bits(word: u64) -> u32 {
        word as u32
    }
    /// Index of the bridge whose port the interface is; 0 if it is no bridge's port.
    #[inline(always)]
    pub const fn bridge(word: u64) -> u32 {
        (word >> 32) as u32
    }
}

/// Capacities in the object file; the agent replaces them by its settings when it loads the object.
pub mod capacity {
    pub const FRONTENDS: usize = 131_072;
    pub const RECORDS: usize = 131_072;
    pub const SLOTS: usize = 1_048_576;
    pub const BACKENDS: usize = 262_144;
    pub const NODE_ADDRESSES: usize = 1_024;
    pub const SOURCE_RANGES: usize = 16_384;
    pub const AFFINITY: usize = 65_536;
    pub const FLOWS: usize = 524_288;
    pub const SOCKETS: usize = 131_072;
    /// Excepted cgroups; each includes the cgroups below it.
    pub const EXCEPTIONS: usize = 4_096;
    pub const FRAGMENTS: usize = 8_192;
    /// Pods of this node, of each family.
    pub const PODS: usize = 4_096;
    pub const INTERFACES: usize = 4_096;
    pub const MASQUERADE_SOURCES: usize = 512;
    pub const NAMES: usize = 131_072;
    /// Backends of a family that are counted one by one; the agent makes it smaller where there are
    /// many CPUs.
    pub const TRAFFIC: usize = 131_072;
    /// Service ports with refused packets, one entry for each port and reason.
    pub const REFUSED: usize = 4_096;
    /// Interfaces with an XDP program.
    pub const UPLINKS: usize = 256;
}
