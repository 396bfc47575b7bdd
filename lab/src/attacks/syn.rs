// SPDX-License-Identifier: Apache-2.0 OR MIT
//! An attack: a SYN flood with forged sources, from outside to a node port, or from a pod to a
//! cluster IP. Open connections must survive, and new ones must succeed.

use std::time::Duration;

use anyhow::Result;

use super::{
    clients::{Made, Open, PATIENCE, at_a_rate},
    flood::{ANYONE, Flood, NEIGHBOURS, Sent},
    packets::Kind,
    proxies::Served,
    world::{CLIENTS, Call},
};

/// New connections a second, before, during and after the flood.
const RATE: u32 = 100;
/// The most seconds for which new connections are measured before the flood.
const QUIET: u32 = 3;

/// Where the flood comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum From {
    /// A host outside attacks the node port; the clients are outside as well.
    Outside,
    /// A pod attacks the cluster IP; another pod is the client.
    Pod,
}

#[derive(Debug)]
pub struct Syn {
    pub sent: Sent,
    pub open: u32,
    /// How many of the `open` connections were lost.
    pub lost: u32,
    pub quiet: Made,
    pub during: Made,
    /// New connections in the second after the flood's end.
    pub after: Made,
}

/// Floods for `length`, while `open` connections are open.
pub fn run(served: &Served<'_>, from: From, open: u32, length: Duration) -> Result<Syn> {
    let world = served.world;
    let clients = world.clients();
    let (attacker, client, call, sources) = match from {
        From::Outside => (world.outside(), world.outside(), Call::NodePort, ANYONE),
        From::Pod => (
            &clients[CLIENTS - 1],
            &clients[0],
            Call::ClusterIp,
            NEIGHBOURS,
        ),
    };
    let to = served.address(call);
    let mut open = Open::make(client, to, open)?;
    let made = |seconds: u32| at_a_rate(client, to, RATE, RATE * seconds, PATIENCE);
    let seconds = length.as_secs() as u32;
    let quiet = made(QUIET.min(seconds))?;
    let flood = Flood::start(attacker, Kind::Syn, sources, to, None)?;
    let during = made(seconds)?;
    let sent = flood.stop()?;
    let after = made(1)?;
    Ok(Syn {
        sent,
        open: open.count(),
        lost: open.lost(),
        quiet,
        during,
        after,
    })
}
