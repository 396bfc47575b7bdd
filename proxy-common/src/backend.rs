// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Backends: the endpoints of a service port as the kernel programs see them.

use crate::{Addr, Port, ServiceId};

/// Index into the array `backends_v4` or `backends_v6`. No backend has index 0.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
#[repr(transparent)]
pub struct BackendId(pub u32);

/// The sets of endpoints that a backend belongs to, as bits: kube-proxy's cluster and local
/// endpoints. A serving endpoint that is not selected (one in another zone, for example) belongs to
/// neither set.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
#[repr(transparent)]
pub struct EndpointSet(pub u16);

impl EndpointSet {
    pub const NONE: Self = Self(0);
    pub const CLUSTER: Self = Self(1);
    pub const LOCAL: Self = Self(2);
    /// No set: the endpoint is on this node, whatever the policies are.
    pub const HERE: Self = Self(4);
    /// No set: the endpoint is on another node, whose agent takes outer headers off
    /// ([`crate::carried`]).
    pub const TAKES_HEADERS: Self = Self(8);

    /// Returns the bits that are no sets.
    #[must_use]
    pub const fn location(self) -> Self {
        Self(self.0 & (Self::HERE.0 | Self::TAKES_HEADERS.0))
    }
    #[inline(always)]
    pub const fn intersects(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }
    #[inline(always)]
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// Element of the arrays of backends: one for each service port and serving endpoint. Address, port
/// and service stay the same while the id is in use; `sets` and `generation` may change at any
/// time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct Backend<A> {
    pub address: A,
    pub port: Port,
    pub sets: EndpointSet,
    /// Incremented when the endpoint stops serving or its service port is removed, at no other
    /// time. A UDP flow or affinity entry with another generation refers to a backend that no
    /// longer serves. Goes on counting when the id is reused.
    pub generation: u32,
    pub service: ServiceId,
}

impl<A: Addr> Backend<A> {
    /// Whether a flow or affinity entry with this service and generation still refers to this
    /// backend.
    #[inline(always)]
    pub fn is_current(&self, service: ServiceId, generation: u32) -> bool {
        self.generation == generation && self.service == service
    }
}
