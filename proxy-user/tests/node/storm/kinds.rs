// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The kinds of requests, the paths that they take, and what a disturbance may break by design.

/// The kind of a client's requests.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Kind {
    /// One new TCP connection for each request.
    New,
    /// One new UDP socket for each request.
    Datagram,
    /// Open TCP connections that carry several requests a second.
    Open,
    /// Open TCP connections that carry a request every ten seconds.
    Idle,
    /// Open UDP sockets that carry several requests a second.
    Talk,
    /// One new TCP connection for each request, to a service with session affinity.
    Sticky,
    /// `New`, to a service whose endpoints change.
    MovingNew,
    /// `Open`, to a service whose endpoints change.
    MovingOpen,
    /// `Talk`, to a service whose endpoints change.
    MovingTalk,
}

impl Kind {
    pub(crate) const ALL: [Self; 9] = [
        Self::New,
        Self::Datagram,
        Self::Open,
        Self::Idle,
        Self::Talk,
        Self::Sticky,
        Self::MovingNew,
        Self::MovingOpen,
        Self::MovingTalk,
    ];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::New => "new TCP",
            Self::Datagram => "new UDP",
            Self::Open => "open TCP",
            Self::Idle => "idle TCP",
            Self::Talk => "long UDP",
            Self::Sticky => "affinity",
            Self::MovingNew => "new TCP, endpoints change",
            Self::MovingOpen => "open TCP, endpoints change",
            Self::MovingTalk => "long UDP, endpoints change",
        }
    }

    pub(crate) const fn service(self) -> Service {
        match self {
            Self::Sticky => Service::Sticky,
            Self::MovingNew | Self::MovingOpen | Self::MovingTalk => Service::Moving,
            _ => Service::Steady,
        }
    }

    const fn is_tcp_that_stays(self) -> bool {
        matches!(self, Self::Open | Self::Idle | Self::MovingOpen)
    }
}

/// The requested service. Each has both families, TCP and UDP.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Service {
    /// A service whose endpoints stay.
    Steady,
    /// A service with `sessionAffinity: ClientIP`.
    Sticky,
    /// A service whose endpoints change.
    Moving,
}

impl Service {
    pub(crate) const ALL: [Self; 3] = [Self::Steady, Self::Sticky, Self::Moving];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Steady => "steady",
            Self::Sticky => "sticky",
            Self::Moving => "moving",
        }
    }
}

/// The place of a client and the path on which it reaches a service.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum ClientKind {
    /// A pod that no socket hook reaches.
    Packet4,
    Packet6,
    /// A pod whose sockets the hooks translate.
    Socket4,
    Socket6,
    /// A process of the node.
    Node4,
    /// A client outside, through a node port.
    Outside4,
    Outside6,
}

impl ClientKind {
    pub(crate) const ALL: [Self; 7] = [
        Self::Packet4,
        Self::Packet6,
        Self::Socket4,
        Self::Socket6,
        Self::Node4,
        Self::Outside4,
        Self::Outside6,
    ];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Packet4 => "pod, packet path, IPv4",
            Self::Packet6 => "pod, packet path, IPv6",
            Self::Socket4 => "pod, socket hooks, IPv4",
            Self::Socket6 => "pod, socket hooks, IPv6",
            Self::Node4 => "process of the node, IPv4",
            Self::Outside4 => "outside, node port, IPv4",
            Self::Outside6 => "outside, node port, IPv6",
        }
    }

    pub(crate) const fn is_v6(self) -> bool {
        matches!(self, Self::Packet6 | Self::Socket6 | Self::Outside6)
    }

    pub(crate) const fn is_at_sockets(self) -> bool {
        matches!(self, Self::Socket4 | Self::Socket6 | Self::Node4)
    }
}

/// The requests that a disturbance may break by design, until it is repaired.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Harm {
    Nothing,
    /// All requests on the packet path.
    Packets,
    /// All requests that the socket hooks translate.
    Sockets,
    /// New connections and sockets, but no open ones.
    New,
    /// All requests that select a backend: all except those on open TCP connections.
    Selection,
    /// All requests.
    All,
}

impl Harm {
    /// Whether this request may fail during the disturbance.
    pub(crate) const fn includes(self, kind: Kind, way: ClientKind, is_new: bool) -> bool {
        match self {
            Self::Nothing => false,
            Self::Packets => !way.is_at_sockets(),
            Self::Sockets => way.is_at_sockets() && (is_new || !kind.is_tcp_that_stays()),
            Self::New => is_new,
            Self::Selection => is_new || !kind.is_tcp_that_stays(),
            Self::All => true,
        }
    }
}
