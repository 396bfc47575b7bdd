// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the kernel programs know about the node's configuration: the one element of the map
//! `settings`.

pub use crate::ranges::RANGES;
use crate::{Addr, Prefix, V4, V6, masquerade::PortRanges, ranges::Ranges, verdict::Policy};

/// The node's settings. The agent replaces them completely; a packet in flight may see some fields
/// old and some new.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct Settings {
    pub flags: u32,
    pub masquerade_ports: PortRanges,
    /// The node's InternalIP, for interfaces without an address of their own.
    pub internal_v4: V4,
    pub internal_v6: V6,
    /// The pods' ranges; unused entries are [`Prefix::NONE`].
    pub pods_v4: [Prefix<V4>; RANGES],
    pub pods_v6: [Prefix<V6>; RANGES],
    /// The ranges that cluster IPs are allocated from. Packets to an address in them that no
    /// service has are dropped. Unused entries are [`Prefix::NONE`].
    pub allocated_v4: [Prefix<V4>; RANGES],
    pub allocated_v6: [Prefix<V6>; RANGES],
    /// For the first, cheap check of a packet: an address outside these ranges is no cluster IP.
    /// They contain the `allocated` ranges and every cluster IP known so far, and never shrink.
    pub services_v4: Ranges<V4>,
    pub services_v6: Ranges<V6>,
    /// The same for external IPs and load balancer IPs.
    pub external_v4: Ranges<V4>,
    pub external_v6: Ranges<V6>,
    /// The kernel's cookie of the node's own network namespace. A process with a socket in it is a
    /// node process.
    pub node_netns: u64,
}

impl Settings {
    /// KUBE: `masqueradeAll`.
    pub const MASQUERADE_ALL: u32 = 1;
    /// Pods are detected by their IPv4 addresses: by their range (`pods_v4`) or by their interface.
    pub const DETECTS_PODS_V4: u32 = 1 << 1;
    /// `masquerade: mark`: egress keeps the mark for the node's own rules, which replace the
    /// source.
    pub const MARK_ONLY: u32 = 1 << 2;
    /// Answer TCP segments to a service's address that belong to no flow with RST.
    pub const RESET_UNKNOWN: u32 = 1 << 3;
    /// `socketBalancing: all`: pods' sockets are translated as well as the node's.
    pub const POD_SOCKETS: u32 = 1 << 4;
    /// There are cgroups excepted from socket balancing: see the `exceptions` map.
    pub const SOCKET_EXCEPTIONS: u32 = 1 << 5;
    /// Pods are detected by the interface that their packets come in by: see
    /// [`crate::maps::interface`].
    pub const PODS_BY_INTERFACE: u32 = 1 << 7;
    /// `answerPing`: answer ICMP echo requests to services' addresses.
    pub const ANSWER_PING: u32 = 1 << 8;
    /// Pods are detected by their IPv6 addresses: by their range (`pods_v6`) or by their interface.
    pub const DETECTS_PODS_V6: u32 = 1 << 9;
    /// Pods of both families are detected.
    pub const DETECTS_PODS: u32 = Self::DETECTS_PODS_V4 | Self::DETECTS_PODS_V6;
    /// Another proxy's rules masquerade packets with the masquerade mark: the programs use the bit
    /// [`crate::masquerade::Marks::beside_rules`] instead.
    pub const OTHERS_MASQUERADE: u32 = 1 << 11;

    /// Netfilter tracks forwarded connections, and would refuse or forget TCP connections of which
    /// it sees a part of the segments only (`nf_conntrack_tcp_be_liberal` is 0, or a timeout is
    /// short), or this is not known: with `forwarding: auto` every TCP segment takes the stack.
    pub const TCP_BY_STACK: u32 = 1 << 13;

    /// No connection of another proxy needs its rules: there is none, or nf_conntrack goes on
    /// translating it without them. For `portolan wait`.
    pub const RULES_MAY_GO: u32 = 1 << 14;

    pub const EMPTY: Self = Self {
        flags: Self::RESET_UNKNOWN,
        masquerade_ports: PortRanges::DEFAULT,
        internal_v4: V4::UNSPECIFIED,
        internal_v6: V6::UNSPECIFIED,
        pods_v4: [Prefix::NONE; RANGES],
        pods_v6: [Prefix::NONE; RANGES],
        allocated_v4: [Prefix::NONE; RANGES],
        allocated_v6: [Prefix::NONE; RANGES],
        services_v4: Ranges::NONE,
        services_v6: Ranges::NONE,
        external_v4: Ranges::NONE,
        external_v6: Ranges::NONE,
        node_netns: 0,
    };

    #[inline(always)]
    pub const fn has(&self, flag: u32) -> bool {
        self.flags & flag != 0
    }
    /// Whether pods are detected among the clients of a family. KUBE: ranges of one family say
    /// nothing about the other.
    #[inline(always)]
    pub const fn detects_pods<A: Addr>(&self) -> bool {
        self.has(if A::BITS == V4::BITS {
            Self::DETECTS_PODS_V4
        } else {
            Self::DETECTS_PODS_V6
        })
    }
    /// Returns the settings that the policy ([`crate::decide`]) needs for connections of one
    /// family.
    #[inline(always)]
    pub const fn policy<A: Addr>(&self) -> Policy {
        Policy {
            masquerade_all: self.has(Self::MASQUERADE_ALL),
            detects_pods: self.detects_pods::<A>(),
        }
    }
}

/// Whether the address lies in one of the ranges.
#[inline(always)]
pub fn any_contains<A: Addr>(ranges: &[Prefix<A>; RANGES], address: A) -> bool {
    let [a, b, c, d] = ranges;
    a.contains(address) || b.contains(address) || c.contains(address) || d.contains(address)
}
