// SPDX-License-Identifier: Apache-2.0 OR MIT
//! An attack: a flood of datagrams with forged sources to a node port. Meanwhile a pod queries the
//! same service at its cluster IP, like a DNS resolver: each query from a new port.

use std::time::Duration;

use anyhow::Result;

use super::{
    clients::{Made, queries_at_a_rate},
    flood::{ANYONE, Flood, Sent},
    packets::Kind,
    proxies::Served,
    world::Call,
};

/// How long the pod waits for an answer.
const PATIENCE: Duration = Duration::from_secs(1);
/// Queries a second: so few that hardly any query reuses a port whose earlier flow still exists.
const RATE: u32 = 50;
/// Datagrams of the flood a second. The server answers all of them and must not be the limit.
const LIMIT: u32 = 15_000;

#[derive(Debug)]
pub struct Udp {
    pub sent: Sent,
    pub queries: Made,
}

/// Floods for `length`.
pub fn run(served: &Served<'_>, length: Duration) -> Result<Udp> {
    let to = served.address(Call::ClusterIpUdp);
    let node_port = served.address(Call::NodePortUdp);
    let (outside, limit) = (served.world.outside(), Some(LIMIT));
    let flood = Flood::start(outside, Kind::Udp, ANYONE, node_port, limit)?;
    let (client, count) = (&served.world.clients()[0], RATE * length.as_secs() as u32);
    let queries = queries_at_a_rate(client, to, RATE, count, PATIENCE)?;
    Ok(Udp {
        sent: flood.stop()?,
        queries,
    })
}
