// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Lists all clients: what each does, from where, to which service, and how often.

use std::{fmt, time::Duration};

use super::{
    Client,
    datagrams::{Queries, Question, Simplex, Socket},
    persistent::Holder,
    short::{self, Associations, Crowd, Ftp, Short},
    streams::{Idle, KeepAlive, Pool, Stream},
};
use crate::{
    cluster::{
        Frontend,
        Service::{self, Leaving, Many, One, RollingA, RollingB, Shared, Sticky, Ten, Two},
    },
    world::Origin::{self, HostPod, Node, Outside, Pod, Remote, Sandbox, Server},
};

/// A function that makes a client.
type Make = fn() -> Box<dyn Client>;

/// One client: what it does and where.
#[derive(Clone, Copy)]
pub(crate) struct Plan {
    pub(crate) kind: &'static str,
    pub(crate) origin: Origin,
    pub(crate) service: Service,
    /// The kind of address by which the client reaches the service. None: it calls an endpoint
    /// directly.
    pub(crate) by: Option<Frontend>,
    /// Time from the beginning of one exchange to the next.
    pub(crate) pace: Duration,
    pub(crate) make: Make,
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {}, {}", self.kind, self.origin, self.service.name())
    }
}

impl Plan {
    /// Returns whether the client has few source ports and opens many connections.
    pub(crate) fn must_reuse_ports(&self) -> bool {
        /// Such a client pauses less than this between two short connections.
        const OFTEN: Duration = Duration::from_millis(10);
        let is_often = self.is_crowd() || self.kind == SHORT_CONNECTIONS && self.pace < OFTEN;
        is_often && self.origin.ports().is_some()
    }

    /// Returns whether the client opens many connections at the same time. Their durations depend
    /// on the order in which threads run: the median is 1 ms on a busy machine and 10 ms on an idle
    /// one.
    pub(crate) fn is_crowd(&self) -> bool {
        self.kind == AT_ONCE
    }
}

fn make<C: Client + Default + 'static>() -> Box<dyn Client> {
    Box::new(C::default())
}

const SHORT_CONNECTIONS: &str = "short connections";
const AT_ONCE: &str = "200 connections at once";

/// The names of clients end with this if they call an endpoint directly. Their times show how fast
/// the machine itself is.
const DIRECT: &str = "direct";

/// The name of clients that hold connections to pods of which one goes.
pub(crate) const HELD: &str = "connections that are held";
/// The number of the pod with such a client. A process in it lets the agent find its sockets.
pub(crate) const HOLDER: u8 = 4;

/// All clients of one kind: the origin of each, and the service that it calls.
type Who = &'static [(Origin, Service)];

const SHORT: Who = &[(Pod(0), Two), (Sandbox(1), Two), (Outside, Two)];
const SOMETIMES: Who = &[
    (Pod(4), One),
    (Pod(4), Many),
    (Pod(4), RollingA),
    (Sandbox(5), Many),
    (Sandbox(5), RollingB),
    (Server(1), Two),
    (Node, Ten),
    (Node, RollingA),
    (HostPod, Two),
    (Remote, Ten),
    (Outside, RollingB),
];
const BALANCED: Who = &[(Outside, Ten)];
const CROWD: Who = &[(Pod(2), Two), (Sandbox(3), Ten)];
const KEEP_ALIVE: Who = &[
    (Pod(4), Ten),
    (Pod(4), RollingB),
    (Sandbox(5), Two),
    (Sandbox(5), RollingA),
    (Node, Two),
    (Remote, RollingA),
    (Outside, RollingA),
];
const POOL: Who = &[
    (Pod(4), Shared),
    (Sandbox(5), Shared),
    (Node, Ten),
    (Outside, Two),
];
/// Services for clients that do not react to endpoints that come and go.
const STEADY: Who = &[
    (Pod(4), Two),
    (Sandbox(5), Two),
    (Node, Two),
    (Remote, Ten),
    (Outside, Ten),
];
const STICKY: Who = &[(Pod(4), Sticky), (Sandbox(5), Sticky), (Outside, Sticky)];
/// For FTP, and for clients that call an endpoint directly.
const TRANSFERS: Who = &[(Pod(4), One), (Sandbox(5), One), (Outside, One)];
const QUERIES: Who = &[
    (Pod(0), Two),
    (Pod(4), RollingB),
    (Sandbox(1), Two),
    (Sandbox(5), RollingA),
    (Node, Ten),
    (Remote, Two),
    (Outside, Ten),
];
const SOCKET: Who = &[
    (Pod(4), Two),
    (Pod(4), RollingA),
    (Sandbox(5), RollingB),
    (Node, RollingB),
    (Remote, RollingB),
    (Outside, RollingA),
];
const HOLDERS: Who = &[
    (Pod(HOLDER), Leaving),
    (Sandbox(5), Leaving),
    (Node, Leaving),
    (HostPod, Leaving),
    (Remote, Leaving),
    (Outside, Leaving),
];
const ASSOCIATIONS: Who = &[(Sandbox(5), Two), (Outside, Two)];

/// Returns all clients of a run.
pub(crate) fn plans() -> Vec<Plan> {
    let kinds: [(&'static str, u64, Who, Make); 21] = [
        (SHORT_CONNECTIONS, 8, SHORT, make::<Short>),
        (SHORT_CONNECTIONS, 25, SOMETIMES, make::<Short>),
        (
            "short connections, load balancer",
            25,
            BALANCED,
            make::<Short>,
        ),
        (
            "short connections, affinity",
            50,
            STICKY,
            make::<short::Sticky>,
        ),
        ("short connections, direct", 25, TRANSFERS, make::<Short>),
        ("UDP questions, direct", 25, TRANSFERS, Socket::unconnected),
        (AT_ONCE, 1000, CROWD, make::<Crowd>),
        ("keep-alive", 20, KEEP_ALIVE, make::<KeepAlive>),
        ("pool that reuses ports", 5, POOL, make::<Pool>),
        ("long stream", 0, STEADY, make::<Stream>),
        ("idle connections", 1000, STEADY, make::<Idle>),
        ("FTP, passive", 250, TRANSFERS, make::<Ftp>),
        ("UDP questions, a socket each", 20, QUERIES, make::<Queries>),
        ("UDP questions, one socket", 50, SOCKET, Socket::unconnected),
        (
            "UDP questions, one connected",
            50,
            SOCKET,
            Socket::connected,
        ),
        ("UDP one-way", 100, STEADY, make::<Simplex>),
        ("UDP question and stream", 0, STEADY, make::<Question>),
        ("UDP answers in fragments", 100, STEADY, Socket::fragments),
        ("UDP answers by GSO", 100, STEADY, Socket::segments),
        (HELD, 50, HOLDERS, make::<Holder>),
        ("SCTP", 250, ASSOCIATIONS, make::<Associations>),
    ];
    let mut plans = Vec::new();
    for (kind, pace, who, make) in kinds {
        for (origin, service) in who.iter().copied() {
            let by = match origin {
                _ if kind.ends_with(DIRECT) => None,
                Origin::Outside if kind.ends_with("load balancer") => Some(Frontend::LoadBalancer),
                Origin::Outside | Origin::Remote => Some(Frontend::NodePort),
                _ => Some(Frontend::ClusterIp),
            };
            plans.push(Plan {
                kind,
                origin,
                service,
                by,
                pace: Duration::from_millis(pace),
                make,
            });
        }
    }
    plans
}
