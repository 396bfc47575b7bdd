// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One of two endpoints is deaf: it is ready in the cluster's objects, but its packets are dropped.
//! A client's next SYN may try the other endpoint.

use std::time::Duration;

use anyhow::Result;

use super::{
    Outcome,
    clients::{Made, at_a_rate},
    proxies::Served,
    unless,
    world::Call,
};

/// How long each connection may take: enough for four SYNs.
pub const PATIENCE: Duration = Duration::from_secs(8);
/// Rules of the deaf pod: drop packets for the service.
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

/// Makes this many connections within a second, and waits for each.
pub fn run(served: &Served<'_>, count: u32) -> Result<Deaf> {
    let (client, to) = (&served.world.clients()[0], served.address(Call::Two));
    served
        .world
        .second_server()
        .feed("nft", &["-f", "-"], DROP)?;
    let made = at_a_rate(client, to, count, count, PATIENCE)?;
    Ok(Deaf { made })
}

impl Outcome for Deaf {
    fn figures(&self) -> Vec<(&'static str, String)> {
        let slowest = self.made.took(1.0);
        vec![
            (
                "made within 8 s",
                format!("{} of {}", self.made.made, self.made.asked),
            ),
            (
                "connect(), median",
                format!("{:.1} ms", self.made.took(0.5)),
            ),
            ("slowest", format!("{slowest:.1} ms")),
        ]
    }

    fn missed(&self) -> Vec<String> {
        let failed = self.made.asked - self.made.made;
        let all = unless(failed == 0, || format!("{failed} not made"));
        all.into_iter().collect()
    }
}
