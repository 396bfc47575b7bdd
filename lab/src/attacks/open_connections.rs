// SPDX-License-Identifier: Apache-2.0 OR MIT
//! TCP connections without sockets: both ends send the packets of a handshake from raw sockets, and
//! each end's kernel only counts the packets that arrive. So there can be far more connections than
//! a process may have open files.

use std::{net::SocketAddrV4, ops::Range, thread, time::Duration};

use anyhow::{Context, Result, ensure};

use super::{
    packets::{BATCH, Kind, Raw, forge},
    proxies::Served,
    world::{CLIENTS, Call, World},
};
use crate::node::netns::NetNs;

/// nftables rules of both ends: count the packets of connections without sockets, and drop them,
/// because the kernel would answer with resets. 8084 is the pod's port, 82 the service's.
const RULES: &str = "table ip held {
  counter got { }
  chain input {
    type filter hook input priority filter
    tcp dport 8084 counter name got drop
    tcp sport { 82, 8084 } counter name got drop
  }
}
";
/// The first source port of each client.
const FIRST_PORT: u32 = 2_000;
/// At most this many connections of each client are half-open at once: a proxy may evict more, as a
/// flood.
const PORTION: u32 = 256;
/// Sequence numbers of the SYNs of the client and of the server.
const OF_CLIENT: u32 = 1;
const OF_SERVER: u32 = 1_000;
/// Time for packets that are still on the network.
const UNDERWAY: Duration = Duration::from_millis(200);

pub(super) struct OpenConnections<'a> {
    world: &'a World,
    to: SocketAddrV4,
    each: u32,
    /// The number of connections that carried a packet both ways at the beginning.
    pub(super) open: u32,
}

impl<'a> OpenConnections<'a> {
    /// Makes `count` connections from the six pods to a cluster IP.
    pub(super) fn make(served: &Served<'a>, count: u32) -> Result<Self> {
        let mut held = Self {
            world: served.world,
            to: served.address(Call::OpenConnections),
            each: count / CLIENTS as u32,
            open: 0,
        };
        ensure!(held.each <= 60_000, "a pod has no more ports");
        for host in held.hosts() {
            host.feed("nft", &["-f", "-"], RULES)?;
        }
        for portion in held.portions() {
            held.clients_send(&portion, Kind::Syn, OF_CLIENT)?;
            held.server_sends(&portion, Kind::SynAck(OF_CLIENT + 1), OF_SERVER)?;
            held.clients_send(&portion, Kind::Ack(OF_SERVER + 1), OF_CLIENT + 1)?;
        }
        held.open = held.carry()?;
        ensure!(
            held.open >= held.each * CLIENTS as u32 / 100 * 99,
            "{} of {count} connections were made",
            held.open
        );
        Ok(held)
    }

    /// Returns how many connections carry a packet both ways.
    pub(super) fn carry(&self) -> Result<u32> {
        thread::sleep(UNDERWAY);
        self.counts()?;
        let all = self.ports();
        self.clients_send(&all, Kind::Ack(OF_SERVER + 1), OF_CLIENT + 1)?;
        self.server_sends(&all, Kind::Ack(OF_CLIENT + 1), OF_SERVER + 1)?;
        thread::sleep(UNDERWAY);
        let counts = self.counts()?;
        let (server, clients) = counts.split_first().context("a server")?;
        Ok((*server).min(clients.iter().sum()))
    }

    /// Returns the server's pod first, then the client pods.
    fn hosts(&self) -> impl Iterator<Item = &'a NetNs> {
        std::iter::once(self.world.first_server()).chain(self.world.clients())
    }

    /// Returns how many packets each of [`Self::hosts`] has received since the last call.
    fn counts(&self) -> Result<Vec<u32>> {
        let count = |host: &NetNs| {
            let said = host.feed("nft", &["reset", "counter", "ip", "held", "got"], "")?;
            let mut words = said.split_whitespace();
            words.find(|word| *word == "packets");
            let count = words.next().and_then(|word| word.parse().ok());
            count.with_context(|| format!("read a counter: {said}"))
        };
        self.hosts().map(count).collect()
    }

    fn clients_send(&self, ports: &Range<u32>, kind: Kind, sequence: u32) -> Result<()> {
        for (number, client) in self.world.clients().iter().enumerate() {
            let raw = Raw::open(client, *self.to.ip())?;
            let packets = ports
                .clone()
                .map(|port| SocketAddrV4::new(World::address_of(number), port as u16))
                .map(|from| forge(kind, from, self.to, sequence));
            send(&raw, packets)?;
        }
        Ok(())
    }

    fn server_sends(&self, ports: &Range<u32>, kind: Kind, sequence: u32) -> Result<()> {
        for client in (0..CLIENTS).map(World::address_of) {
            let raw = Raw::open(self.world.first_server(), client)?;
            let packets = ports
                .clone()
                .map(|port| SocketAddrV4::new(client, port as u16))
                .map(|to| forge(kind, Call::OpenConnections.pod(), to, sequence));
            send(&raw, packets)?;
        }
        Ok(())
    }

    /// Returns the source ports that every client uses.
    fn ports(&self) -> Range<u32> {
        FIRST_PORT..FIRST_PORT + self.each
    }

    fn portions(&self) -> impl Iterator<Item = Range<u32>> + use<> {
        let Range { start, end } = self.ports();
        let portion = move |from| from..end.min(from + PORTION);
        (start..end).step_by(PORTION as usize).map(portion)
    }
}

fn send(raw: &Raw, packets: impl Iterator<Item = Vec<u8>>) -> Result<()> {
    let packets: Vec<_> = packets.collect();
    for batch in packets.chunks(BATCH) {
        raw.send(batch).context("send a handshake")?;
    }
    Ok(())
}
