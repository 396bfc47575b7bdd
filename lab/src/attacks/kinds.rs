// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The attacks: a flood, and short connections that use up ports. Each returns what clients got.

use std::{
    io::{Read, Write},
    net::{SocketAddrV4, TcpStream},
    sync::atomic::{AtomicU32, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};

use super::{
    clients::{Made, Open, PATIENCE},
    flood::{ANYONE, Flood, NEIGHBOURS},
    world::{CLIENTS, CLUSTER_IP, NODE_PORT, NODE_PORT_SERVER_CLOSES, Served},
};
use crate::interrupt::INTERRUPTED;

/// New connections a second, during and after a SYN flood.
const RATE: u32 = 100;

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
    /// Packets of the flood.
    pub sent: u64,
    pub open: u32,
    /// How many of the `open` connections were lost.
    pub lost: u32,
    pub during: Made,
    /// New connections in the second after the flood's end.
    pub after: Made,
}

/// A SYN flood with forged sources, from outside to a node port, or from a pod to a cluster IP, for
/// `length`, while `open` connections are open: these must survive, and new ones must succeed.
pub fn syn_flood(served: &Served<'_>, from: From, open: u32, length: Duration) -> Result<Syn> {
    let (pods, outside) = (served.world.clients(), &served.world.topology.outside);
    let (attacker, client, to, sources) = match from {
        From::Outside => (outside, outside, NODE_PORT, ANYONE),
        From::Pod => (&pods[CLIENTS - 1], &pods[0], CLUSTER_IP, NEIGHBOURS),
    };
    let mut open = Open::make(client, to, open)?;
    let made = |seconds: u32| Made::at_a_rate(client, RATE, RATE * seconds, to);
    let flood = Flood {
        attacker,
        sources,
        to,
    };
    let (sent, during) = flood.during(|| made(length.as_secs() as u32))?;
    let after = made(1)?;
    Ok(Syn {
        sent,
        open: open.count(),
        lost: open.lost(),
        during,
        after,
    })
}

/// The short connections of all clients, counted in time windows of equal length.
#[derive(Debug)]
pub struct Short {
    /// Successful connections per second in each time window, earliest window first.
    pub rates: Vec<f64>,
    pub failed: u32,
    /// How many of the connections were lost that were open all the time.
    pub lost: u32,
}

impl Short {
    /// Returns the slowest window's rate as a share of the first window's.
    pub fn kept(&self) -> f64 {
        let slowest = self.rates.iter().copied().fold(f64::INFINITY, f64::min);
        slowest / self.rates[0]
    }
}

/// Which side closes each connection first. It keeps its addresses and ports for a minute.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Closes {
    Client,
    Server,
}

/// Short connections to a node port of a service with one endpoint, masqueraded, from six pods as
/// fast as possible, for `windows` time windows of `length`. Every connection needs its own
/// masquerade port: the rate must not decrease. Other connections stay open meanwhile.
pub fn short(served: &Served<'_>, closes: Closes, windows: u32, length: Duration) -> Result<Short> {
    let to = match closes {
        Closes::Client => NODE_PORT,
        Closes::Server => NODE_PORT_SERVER_CLOSES,
    };
    let mut open = Open::make(&served.world.clients()[0], NODE_PORT, 100)?;
    let made: Vec<_> = (0..windows).map(|_| AtomicU32::new(0)).collect();
    let failed = AtomicU32::new(0);
    let begin = Instant::now();
    // Returns the counter of the current time window; None after the last window.
    let window = || {
        let number = begin.elapsed().as_nanos() / length.as_nanos();
        made.get(number as usize)
    };
    let work = || {
        while window().is_some() && !INTERRUPTED.load(Ordering::Relaxed) {
            let done = connect(to, closes);
            // A connection counts for the window in which it ended. A connection that ends after
            // the last window does not count.
            let Some(made) = window() else { break };
            let counter = if done.is_ok() { made } else { &failed };
            counter.fetch_add(1, Ordering::Relaxed);
        }
    };
    thread::scope(|scope| {
        let clients = served.world.clients().iter();
        let clients = clients.map(|client| scope.spawn(move || client.enter(work)));
        let clients: Vec<_> = clients.collect();
        let mut ended = clients.into_iter().map(thread::ScopedJoinHandle::join);
        ended.try_for_each(|ended| ended.ok().context("a client broke down")?)
    })?;
    let rate = |made: AtomicU32| f64::from(made.into_inner()) / length.as_secs_f64();
    Ok(Short {
        rates: made.into_iter().map(rate).collect(),
        failed: failed.into_inner(),
        lost: open.lost(),
    })
}

fn connect(to: SocketAddrV4, closes: Closes) -> std::io::Result<()> {
    let mut stream = TcpStream::connect_timeout(&to.into(), PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(&[7])?;
    stream.read_exact(&mut [0])?;
    if closes == Closes::Server {
        // Reads the end of the server's stream.
        _ = stream.read(&mut [0])?;
    }
    Ok(())
}
