// SPDX-License-Identifier: Apache-2.0 OR MIT
//! An API server in one network namespace and the agents in another, joined by a veth: the counters
//! of its interface tell what agents receive, whatever they are.

use anyhow::{Context, Result};

use crate::node::{netns::NetNs, pod::plug};

/// The server's address.
pub(super) const SERVER: &str = "10.251.255.1";
const AGENTS: &str = "10.251.255.2";
/// The server's port as /proc/net/tcp shows it: 6443.
const PORT: &str = ":192B";
/// The state of an open connection in /proc/net/tcp.
const ESTABLISHED: &str = "01";

/// Both network namespaces.
pub struct World {
    server: NetNs,
    agents: NetNs,
}

impl World {
    pub fn new() -> Result<Self> {
        let (server, agents) = (NetNs::new("server")?, NetNs::new("agents")?);
        server.ip(&format!("link set lo up\naddress add {SERVER}/32 dev lo\n"))?;
        plug(&server, &agents, &[AGENTS])?;
        Ok(Self { server, agents })
    }

    pub(super) fn server(&self) -> &NetNs {
        &self.server
    }
    pub(super) fn agents(&self) -> &NetNs {
        &self.agents
    }

    /// Returns how many bytes the agents have received.
    pub(super) fn received(&self) -> Result<u64> {
        let devices = self.agents.feed("cat", &["/proc/net/dev"], "")?;
        received("eth0", &devices).context("read the counters of the agents' interface")
    }

    /// Returns how many connections to the server the agents have.
    pub(super) fn connections(&self) -> Result<usize> {
        // Go opens sockets of IPv6 also for addresses of IPv4 only if it listens.
        let sockets = self.agents.feed("cat", &["/proc/net/tcp"], "")?;
        Ok(connections(&sockets))
    }
}

/// Returns the bytes that an interface has received, from the text of /proc/net/dev.
fn received(interface: &str, devices: &str) -> Option<u64> {
    let own = |line: &str| {
        let (name, counters) = line.split_once(':')?;
        let first = counters.split_whitespace().next()?;
        (name.trim() == interface).then(|| first.parse().ok())?
    };
    devices.lines().find_map(own)
}

/// Counts the open connections to the server's port, in the text of /proc/net/tcp.
fn connections(sockets: &str) -> usize {
    let is_open = |line: &&str| {
        let mut words = line.split_whitespace().skip(2);
        words.next().is_some_and(|peer| peer.ends_with(PORT)) && words.next() == Some(ESTABLISHED)
    };
    sockets.lines().filter(is_open).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interfaces_received_bytes_are_read() {
        let text = "Inter-|   Receive  | Transmit\n face |bytes    packets\n    lo: 7 1 0 0\n  eth0:1234567 89 0 0 0 0 0 0 55 1\n";
        assert_eq!(received("eth0", text), Some(1_234_567));
        assert_eq!(received("lo", text), Some(7));
        assert_eq!(received("eth", text), None);
    }

    #[test]
    fn only_open_connections_to_the_server_are_counted() {
        let text = "  sl  local_address rem_address   st tx_queue\n\
            0: 02FFFB0A:C000 01FFFB0A:192B 01 00000000:00000000\n\
            1: 02FFFB0A:C001 01FFFB0A:192B 06 00000000:00000000\n\
            2: 02FFFB0A:192B 01FFFB0A:C002 01 00000000:00000000\n";
        assert_eq!(connections(text), 1);
    }
}
