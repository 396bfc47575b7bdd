// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Frontends and their records: the service that a packet's destination leads to. Written by the
//! agent, read by the kernel programs.

use crate::{Addr, EndpointSet, Port, Protocol};

/// Identifies a service port in the maps of both families. No service port has id 0.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
#[repr(transparent)]
pub struct ServiceId(pub u32);

impl ServiceId {
    /// No service: the id in a flow that belongs to no service.
    pub const NONE: Self = Self(0);
}

/// Index into the array `records_v4` or `records_v6`. No record has index 0.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
#[repr(transparent)]
pub struct RecordId(pub u32);

/// Key of the maps `frontends_v4` and `frontends_v6`: an address, port and protocol that clients
/// connect to. The value is a [`RecordId`].
///
/// The key of a node port has the unspecified address; it is looked up for destinations that node
/// ports are served on. [`Port::ANY`] with [`Protocol::ANY`] stands for every port of a cluster IP
/// that no other key serves, and with [`Protocol::ICMP`] (in both families) for echo requests to an
/// external or load balancer IP.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(C)]
pub struct FrontendKey<A> {
    pub address: A,
    pub port: Port,
    pub protocol: Protocol,
    pub _pad: u8,
}

impl<A: Addr> FrontendKey<A> {
    #[inline(always)]
    pub const fn new(address: A, port: Port, protocol: Protocol) -> Self {
        Self {
            address,
            port,
            protocol,
            _pad: 0,
        }
    }
    /// Returns the key of a node port.
    #[inline(always)]
    pub const fn node_port(port: Port, protocol: Protocol) -> Self {
        Self::new(A::UNSPECIFIED, port, protocol)
    }
    /// Returns the key for every unserved port of a cluster IP.
    #[inline(always)]
    pub const fn unserved(address: A) -> Self {
        Self::new(address, Port::ANY, Protocol::ANY)
    }
    /// Returns the key of echo requests to an external or load balancer IP.
    #[inline(always)]
    pub const fn echo(address: A) -> Self {
        Self::new(address, Port::ANY, Protocol::ICMP)
    }
}

/// The kinds of frontend, which have different policies.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum FrontendKind {
    ClusterIp = 0,
    ExternalIp = 1,
    LoadBalancer = 2,
    NodePort = 3,
    /// All ports of a cluster IP that no service port has: always rejected.
    Unserved = 4,
    /// Echo requests to an external or load balancer IP (`answerPing`).
    Echo = 5,
}

/// A record's kind, policies and options in one word.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(transparent)]
pub struct ServiceFlags(pub u32);

impl ServiceFlags {
    const KIND_MASK: u32 = 0x7;
    /// The service has a usable endpoint somewhere: packets that find no backend here are dropped,
    /// not rejected.
    pub const HAS_ENDPOINTS: u32 = 1 << 3;
    /// `externalTrafficPolicy: Local`.
    pub const EXTERNAL_LOCAL: u32 = 1 << 4;
    /// Only sources in the maps `sources_v4` and `sources_v6` may use this frontend.
    pub const SOURCE_RANGES: u32 = 1 << 5;
    /// `sessionAffinity: ClientIP`.
    pub const AFFINITY: u32 = 1 << 6;
    /// The internal block holds backends of the local set ([`EndpointSet::LOCAL`]), else of the
    /// cluster set.
    pub const INTERNAL_BLOCK_LOCAL: u32 = 1 << 7;
    /// The external block holds backends of the local set, else of the cluster set.
    pub const EXTERNAL_BLOCK_LOCAL: u32 = 1 << 8;
    /// `selection: maglev`: the blocks hold tables, and a hash of client and frontend selects the
    /// slot, the same on every node.
    pub const MAGLEV: u32 = 1 << 9;
    /// `clientAddress: keep`: flows are carried where they would be masqueraded.
    pub const KEEP_CLIENT: u32 = 1 << 10;

    #[inline(always)]
    pub const fn new(kind: FrontendKind) -> Self {
        Self(kind as u32)
    }
    #[inline(always)]
    #[must_use]
    pub const fn with(self, flag: u32, set: bool) -> Self {
        if set { Self(self.0 | flag) } else { self }
    }
    #[inline(always)]
    pub const fn has(self, flag: u32) -> bool {
        self.0 & flag != 0
    }
    #[inline(always)]
    pub const fn kind(self) -> FrontendKind {
        match self.0 & Self::KIND_MASK {
            0 => FrontendKind::ClusterIp,
            1 => FrontendKind::ExternalIp,
            2 => FrontendKind::LoadBalancer,
            3 => FrontendKind::NodePort,
            5 => FrontendKind::Echo,
            _ => FrontendKind::Unserved,
        }
    }
    /// Returns the set of endpoints in the external block, or in the internal one if `external` is
    /// false.
    #[inline(always)]
    pub const fn set_of_block(self, external: bool) -> EndpointSet {
        let local = if external {
            Self::EXTERNAL_BLOCK_LOCAL
        } else {
            Self::INTERNAL_BLOCK_LOCAL
        };
        if self.has(local) {
            EndpointSet::LOCAL
        } else {
            EndpointSet::CLUSTER
        }
    }
}

/// A run of consecutive elements of the map `slots`: the first slot in the upper half, the count in
/// the lower. It is one word, so that it is loaded and stored at once.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(transparent)]
pub struct Block(pub u64);

impl Block {
    pub const EMPTY: Self = Self(0);
    #[inline(always)]
    pub const fn new(first: u32, count: u32) -> Self {
        Self((first as u64) << 32 | count as u64)
    }
    #[inline(always)]
    pub const fn first(self) -> u32 {
        (self.0 >> 32) as u32
    }
    #[inline(always)]
    pub const fn count(self) -> u32 {
        self.0 as u32
    }
}

/// Value of the maps `records_v4` and `records_v6`, to which a frontend's key leads. The blocks may
/// be replaced while readers use them (one store each). All other fields are fixed until no key
/// leads here and a grace period has passed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct Record<A: Addr> {
    /// Backends for clients inside the cluster: pods and the node's own processes.
    pub internal: Block,
    /// Backends for all other clients.
    pub external: Block,
    pub flags: ServiceFlags,
    pub service: ServiceId,
    /// Idle time, in seconds, after which the affinity of a client ends; 0 without affinity.
    pub affinity_timeout: u32,
    /// The key that leads here. If this is not the reader's key, the kernel has reused the element
    /// of `frontends`.
    pub key: FrontendKey<A>,
    pub _pad: A::RecordPad,
}

/// Key in the tries `sources_v4` and `sources_v6`: an allowed source range of a service. Its prefix
/// length includes the 32 bits of the service id.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(C)]
pub struct SourceRangeKey<A> {
    pub service: ServiceId,
    pub address: A,
}

/// Key of the maps `fragments_v4` and `fragments_v6`: the datagram that a fragment belongs to. The
/// value is one 32-bit word with both ports.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(C)]
pub struct FragmentKey<A> {
    pub src: A,
    pub dst: A,
    /// The identification field, as on the wire (16 bits for IPv4), and the time: see
    /// [`Self::id_at`].
    pub id: u32,
    pub protocol: Protocol,
    /// The client's interface as in a flow's key. So a pod that sends with another pod's address
    /// does not give its ports to the other pod's fragments.
    pub interface: [u8; 3],
}

impl<A> FragmentKey<A> {
    /// Returns the id of a datagram's key in this unit of time: identifications come again, and
    /// ports that were stored two units ago or earlier are not found.
    #[inline(always)]
    pub const fn id_at(id: u32, unit: u32) -> u32 {
        // An odd number, so that no two units have the same product; the units that follow each
        // other are far apart, because identifications mostly are not.
        id.wrapping_add(unit.wrapping_mul(0x9e37_79b1))
    }
    /// Converts a time of the kernel's monotonic clock, in nanoseconds, to the unit of
    /// [`Self::id_at`]: 17 s. So ports are found for 17 to 34 s; the kernel collects a datagram's
    /// fragments for 30 s.
    #[inline(always)]
    pub const fn unit(now: u64) -> u32 {
        (now >> 34) as u32
    }
}

/// Value of the map `names`: the names of the service port with a [`ServiceId`], so that commands
/// that read maps need no agent. Texts are UTF-8, padded with zero bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct ServiceName {
    /// RFC 1123 label: at most 63 bytes.
    pub namespace: [u8; 64],
    pub name: [u8; 64],
    /// A port's name has at most 15 bytes in a Service, 63 in an EndpointSlice.
    pub port_name: [u8; 64],
    pub port: Port,
    pub protocol: Protocol,
    pub _pad: u8,
}
