// SPDX-License-Identifier: Apache-2.0 OR MIT
//! An attack: one of a service's two endpoints is deaf. The cluster's objects call it ready, but
//! its packets are dropped. A client's next SYN may try the other endpoint.

use std::time::Duration;

use anyhow::Result;

use super::{
    clients::{Made, at_a_rate},
    proxies::Served,
    world::Call,
};

/// How long each connection may take: enough for four SYNs.
pub const PATIENCE: Duration = Duration::from_secs(8);
/// nftables rules in the deaf pod: they drop the packets of the service's clients.
const DROP: &str = "table ip deaf {
  chain input {
    type filter hook input priority filter
    tcp dport 8082 drop
  }
}
";

#[derive(Debug)]
pub struct Deaf {
    pub made: Made,
}

/// Opens `count` connections within a second, and waits for the outcome of each.
pub fn run(served: &Served<'_>, count: u32) -> Result<Deaf> {
    let (client, to) = (&served.world.clients()[0], served.address(Call::Two));
    served
        .world
        .second_server()
        .feed("nft", &["-f", "-"], DROP)?;
    let made = at_a_rate(client, to, count, count, PATIENCE)?;
    Ok(Deaf { made })
}
