// SPDX-License-Identifier: Apache-2.0 OR MIT
//! An attack: very many connections are open at once, and new short ones are made at a rate for a
//! long time. The open connections must survive, and no new one may be refused because a table is
//! full.

use std::{thread, time::Duration};

use anyhow::{Context, Result};

use super::{
    clients::{Made, PATIENCE, at_a_rate},
    open_connections::OpenConnections,
    proxies::{Dropped, Served},
    world::{CLIENTS, Call},
};

#[derive(Debug)]
pub struct Many {
    pub open: u32,
    pub lost: u32,
    pub new: Made,
    pub dropped: Dropped,
}

/// Opens `open` connections without sockets, then makes `per_second` new ones each second for
/// `length`. All go to a cluster IP from six pods.
pub fn run(served: &mut Served<'_>, open: u32, per_second: u32, length: Duration) -> Result<Many> {
    let to = served.address(Call::ClusterIp);
    let clients = served.world.clients();
    let of_each = |number: u32| number / CLIENTS as u32;
    let held = OpenConnections::make(served, open)?;
    let rate = of_each(per_second);
    let count = rate * length.as_secs() as u32;
    let new = thread::scope(|scope| {
        let threads: Vec<_> = clients
            .iter()
            .map(|client| scope.spawn(move || at_a_rate(client, to, rate, count, PATIENCE)))
            .collect();
        let ended = threads
            .into_iter()
            .map(|thread| thread.join().ok().context("a client broke down")?);
        ended.collect::<Result<Vec<_>>>()
    })?;
    Ok(Many {
        open: held.open,
        lost: held.open.saturating_sub(held.carry()?),
        new: Made::of_all(new),
        dropped: served.dropped()?,
    })
}
