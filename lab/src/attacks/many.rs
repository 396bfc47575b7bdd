// SPDX-License-Identifier: Apache-2.0 OR MIT
//! An attack: very many connections are open at once, and new short ones are made at a rate for a
//! long time. The open connections must survive, and no new one may be refused because a table is
//! full.

use std::{thread, time::Duration};

use anyhow::{Context, Result};

use super::{
    clients::{Made, Open, PATIENCE, at_a_rate},
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

/// Opens `open` connections, then makes `per_second` new ones each second for
/// `length`. All go to a cluster IP from six pods.
pub fn run(served: &mut Served<'_>, open: u32, per_second: u32, length: Duration) -> Result<Many> {
    let to = served.address(Call::ClusterIp);
    let clients = served.world.clients();
    let of_each = |number: u32| number / CLIENTS as u32;
    let open = clients
        .iter()
        .map(|client| Open::make(client, to, of_each(open)));
    let mut open = open.collect::<Result<Vec<_>>>()?;
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
        open: open.iter().map(Open::count).sum(),
        lost: open.iter_mut().map(Open::lost).sum(),
        new: Made::of_all(new),
        dropped: served.dropped()?,
    })
}
