// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Lists all clients: what each does, from where, to which service, and how often.

use std::time::Duration;

use super::{
    Client,
    datagrams::{Queries, Question, Simplex, Socket},
    persistent::Holder,
    short::{Associations, Crowd, Ftp, Short, Sticky},
    streams::{Idle, KeepAlive, Pool, Stream},
};
use crate::{
    cluster::{Frontend, Service},
    world::Origin,
};

/// A function that makes a client.
type Make = fn() -> Box<dyn Client>;

/// One client: what it does and where.
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

fn make<C: Client + Default + 'static>() -> Box<dyn Client> {
    Box::new(C::default())
}

pub(super) const SHORT_CONNECTIONS: &str = "short connections";
pub(crate) const AT_ONCE: &str = "200 connections at once";

/// The names of clients end with this if they call an endpoint directly. Their times show how fast
/// the machine itself is.
pub(super) const DIRECT: &str = "direct";

/// The name of clients that hold connections to pods of which one goes.
pub(crate) const HELD: &str = "connections that are held";
/// The number of the pod with such a client. A process in it lets the agent find its sockets.
pub(crate) const HOLDER: u8 = 4;

/// All clients of one kind: the origin of each, and the service that it calls.
type Who = &'static [(Origin, Service)];

const SHORT: Who = &[
    (Origin::Pod(0), Service::Two),
    (Origin::Sandbox(1), Service::Two),
    (Origin::Outside, Service::Two),
];
const SOMETIMES: Who = &[
    (Origin::Pod(4), Service::One),
    (Origin::Pod(4), Service::Many),
    (Origin::Pod(4), Service::RollingA),
    (Origin::Sandbox(5), Service::Many),
    (Origin::Sandbox(5), Service::RollingB),
    (Origin::Server(1), Service::Two),
    (Origin::Node, Service::Ten),
    (Origin::Node, Service::RollingA),
    (Origin::HostPod, Service::Two),
    (Origin::Remote, Service::Ten),
    (Origin::Outside, Service::RollingB),
];
const BALANCED: Who = &[(Origin::Outside, Service::Ten)];
const CROWD: Who = &[
    (Origin::Pod(2), Service::Two),
    (Origin::Sandbox(3), Service::Ten),
];
const KEEP_ALIVE: Who = &[
    (Origin::Pod(4), Service::Ten),
    (Origin::Pod(4), Service::RollingB),
    (Origin::Sandbox(5), Service::Two),
    (Origin::Sandbox(5), Service::RollingA),
    (Origin::Node, Service::Two),
    (Origin::Remote, Service::RollingA),
    (Origin::Outside, Service::RollingA),
];
const POOL: Who = &[
    (Origin::Pod(4), Service::Shared),
    (Origin::Sandbox(5), Service::Shared),
    (Origin::Node, Service::Ten),
    (Origin::Outside, Service::Two),
];
/// Services for clients that do not react to endpoints that come and go.
const STEADY: Who = &[
    (Origin::Pod(4), Service::Two),
    (Origin::Sandbox(5), Service::Two),
    (Origin::Node, Service::Two),
    (Origin::Remote, Service::Ten),
    (Origin::Outside, Service::Ten),
];
const STICKY: Who = &[
    (Origin::Pod(4), Service::Sticky),
    (Origin::Sandbox(5), Service::Sticky),
    (Origin::Outside, Service::Sticky),
];
/// For FTP, and for clients that call an endpoint directly.
const TRANSFERS: Who = &[
    (Origin::Pod(4), Service::One),
    (Origin::Sandbox(5), Service::One),
    (Origin::Outside, Service::One),
];
const QUERIES: Who = &[
    (Origin::Pod(0), Service::Two),
    (Origin::Pod(4), Service::RollingB),
    (Origin::Sandbox(1), Service::Two),
    (Origin::Sandbox(5), Service::RollingA),
    (Origin::Node, Service::Ten),
    (Origin::Remote, Service::Two),
    (Origin::Outside, Service::Ten),
];
const SOCKET: Who = &[
    (Origin::Pod(4), Service::Two),
    (Origin::Pod(4), Service::RollingA),
    (Origin::Sandbox(5), Service::RollingB),
    (Origin::Node, Service::RollingB),
    (Origin::Remote, Service::RollingB),
    (Origin::Outside, Service::RollingA),
];
const HOLDERS: Who = &[
    (Origin::Pod(HOLDER), Service::Leaving),
    (Origin::Sandbox(5), Service::Leaving),
    (Origin::Node, Service::Leaving),
    (Origin::HostPod, Service::Leaving),
    (Origin::Remote, Service::Leaving),
    (Origin::Outside, Service::Leaving),
];
const ASSOCIATIONS: Who = &[
    (Origin::Sandbox(5), Service::Two),
    (Origin::Outside, Service::Two),
];

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
        ("short connections, affinity", 50, STICKY, make::<Sticky>),
        ("short connections, direct", 25, TRANSFERS, make::<Short>),
        ("UDP questions, direct", 25, TRANSFERS, || {
            Box::new(Socket::unconnected())
        }),
        (AT_ONCE, 1000, CROWD, make::<Crowd>),
        ("keep-alive", 20, KEEP_ALIVE, make::<KeepAlive>),
        ("pool that reuses ports", 5, POOL, make::<Pool>),
        ("long stream", 0, STEADY, make::<Stream>),
        ("idle connections", 1000, STEADY, make::<Idle>),
        ("FTP, passive", 250, TRANSFERS, make::<Ftp>),
        ("UDP questions, a socket each", 20, QUERIES, make::<Queries>),
        ("UDP questions, one socket", 50, SOCKET, || {
            Box::new(Socket::unconnected())
        }),
        ("UDP questions, one connected", 50, SOCKET, || {
            Box::new(Socket::connected())
        }),
        ("UDP one-way", 100, STEADY, make::<Simplex>),
        ("UDP question and stream", 0, STEADY, make::<Question>),
        ("UDP answers in fragments", 100, STEADY, || {
            Box::new(Socket::fragments())
        }),
        ("UDP answers by GSO", 100, STEADY, || {
            Box::new(Socket::segments())
        }),
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
