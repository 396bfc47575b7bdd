// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reads plan.txt, the list of all clients: what each does, whence, to which service, how often.

use std::{fmt, time::Duration};

use anyhow::{Context, Error, Result};
use clap::ValueEnum;

use super::{
    Client,
    datagrams::{LARGE, LENGTH, Queries, Question, Simplex, Socket},
    short::{Associations, Crowd, Ftp, Inside, Short, Sticky},
    streams::{Holder, Idle, KeepAlive, Pool, Stream},
};
use crate::{
    cluster::{Frontend, Service},
    servers::SEGMENT,
    world::Origin,
};

/// A function that makes a client.
type Make = fn() -> Box<dyn Client>;

/// One client: what it does and where.
#[derive(Clone, Copy)]
pub(crate) struct Plan {
    pub(crate) kind: &'static str,
    /// Origin and service, as plan.txt has them.
    name: &'static str,
    pub(crate) origin: Origin,
    pub(crate) service: Service,
    /// The kind of address by which the client reaches the service. None: it calls an endpoint.
    pub(crate) by: Option<Frontend>,
    pub(crate) is_v6: bool,
    /// Time from the beginning of one exchange to the next.
    pub(crate) pace: Duration,
    pub(crate) make: Make,
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {}", self.kind, self.name)
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

/// The names of clients end with this if they call an endpoint directly, at the machine's speed.
const DIRECT: &str = "direct";

/// The name of clients that hold connections to pods of which one goes.
pub(crate) const HELD: &str = "connections that are held";
/// The number of the pod with such a client. A process in it lets the agent find its sockets.
pub(crate) const HOLDER: u8 = 4;

/// Returns the function that makes clients of a kind.
fn maker(kind: &str) -> Option<Make> {
    let make: Make = match kind {
        "short connections, affinity" => make::<Sticky>,
        "short connections, inside, load balancer" => make::<Inside>,
        AT_ONCE => make::<Crowd>,
        _ if kind.starts_with(SHORT_CONNECTIONS) => make::<Short>,
        "FTP, passive" => make::<Ftp>,
        "keep-alive" => make::<KeepAlive>,
        "pool that reuses ports" => make::<Pool>,
        "long stream" => make::<Stream>,
        "idle connections" => make::<Idle>,
        "UDP questions, a socket each" => make::<Queries>,
        "UDP questions, one socket" | "UDP questions, direct" => {
            || Socket::boxed(false, "ask", LENGTH)
        }
        "UDP questions, one connected" => || Socket::boxed(true, "ask", LENGTH),
        "UDP one-way" => make::<Simplex>,
        "UDP question and stream" => make::<Question>,
        // The server sends the segments of one buffer.
        "UDP answers by GSO" => || Socket::boxed(true, "segments", SEGMENT as u64),
        "UDP answers in fragments" => || Socket::boxed(false, "ask", LARGE),
        HELD => make::<Holder>,
        "SCTP" => make::<Associations>,
        _ => return None,
    };
    Some(make)
}

/// Returns all clients of a run.
pub(crate) fn plans() -> Result<Vec<Plan>> {
    let lines = include_str!("plan.txt").lines();
    let rows = lines.filter(|line| !line.starts_with('#'));
    let plans = rows.map(|row| of_kind(row).with_context(|| format!("plan.txt: {row}")));
    Ok(plans.collect::<Result<Vec<_>>>()?.concat())
}

/// Returns the clients of one kind.
fn of_kind(row: &'static str) -> Result<Vec<Plan>> {
    let (kind, rest) = row.split_once(": ").context("no kind")?;
    let (pace, clients) = rest.split_once(": ").context("no pace")?;
    let pace = Duration::from_millis(pace.parse()?);
    let make = maker(kind).context("a kind without a client")?;
    let client = |name: &'static str| -> Result<Plan> {
        let (origin, service) = name.split_once(' ').context("no service")?;
        let over_v6 = service.strip_suffix("/v6");
        let (service, is_v6) = (over_v6.unwrap_or(service), over_v6.is_some());
        let origin = origin.parse()?;
        let by = match origin {
            _ if kind.ends_with(DIRECT) => None,
            _ if kind.ends_with("load balancer") => Some(Frontend::LoadBalancer),
            Origin::Outside | Origin::OtherNode | Origin::Remote => Some(Frontend::NodePort),
            _ => Some(Frontend::ClusterIp),
        };
        Ok(Plan {
            kind,
            name,
            origin,
            service: Service::from_str(service, false).map_err(Error::msg)?,
            by,
            is_v6,
            pace,
            make,
        })
    };
    clients.split(", ").map(client).collect()
}
