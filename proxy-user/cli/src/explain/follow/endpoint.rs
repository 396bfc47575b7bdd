// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the network namespace that the packet reached says about its own sockets: who listens, and
//! whether queues of connections are full.

use std::{
    fs,
    net::{IpAddr, SocketAddr},
};

use proxy_common::Protocol;

use crate::explain::listeners;

/// The receiving namespace's own view.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct EndpointFacts {
    pub(super) address: SocketAddr,
    /// The addresses at which a process listens at the port, if this one is not among them.
    pub(super) only_at: Vec<String>,
    /// The ports at which processes listen at this address, a few of them.
    pub(super) ports: Vec<u16>,
    /// Whether a process receives at this address and port.
    pub(super) listens: bool,
    /// Whether connections were dropped for a full queue while the packet was followed.
    pub(super) full_queue: bool,
}

/// Reads the facts of the calling thread's network namespace. `dropped_before`: [`dropped`] when
/// the packet was sent.
pub(super) fn read(
    protocol: Protocol,
    address: SocketAddr,
    dropped_before: Option<u64>,
) -> EndpointFacts {
    const SHOWN: usize = 8;
    let listening = listeners::all(protocol);
    let at_port = listening.iter().filter(|at| at.port() == address.port());
    let takes = |at: &IpAddr| at.is_unspecified() || *at == address.ip();
    let others: Vec<_> = at_port.map(SocketAddr::ip).collect();
    let mut ports: Vec<_> = listening
        .iter()
        .filter(|at| takes(&at.ip()))
        .map(SocketAddr::port)
        .collect();
    ports.sort_unstable();
    ports.dedup();
    ports.truncate(SHOWN);
    EndpointFacts {
        address,
        only_at: if others.iter().any(takes) {
            Vec::new()
        } else {
            others.iter().map(IpAddr::to_string).collect()
        },
        ports,
        listens: others.iter().any(takes),
        full_queue: dropped_before.is_some_and(|before| dropped() > before),
    }
}

/// Returns how many connections the calling thread's network namespace has dropped for a full
/// queue.
pub(super) fn dropped() -> u64 {
    let text = fs::read_to_string("/proc/thread-self/net/netstat").unwrap_or_default();
    ["ListenOverflows", "ListenDrops", "TCPReqQFullDrop"]
        .into_iter()
        .filter_map(|name| value_in(&text, name))
        .sum()
}

/// Returns a value of /proc/net/netstat: lines come in pairs, names and values.
fn value_in(text: &str, name: &str) -> Option<u64> {
    let mut lines = text.lines();
    while let (Some(names), Some(values)) = (lines.next(), lines.next()) {
        let mut pairs = names.split(' ').zip(values.split(' '));
        if let Some((_, value)) = pairs.find(|(known, _)| *known == name) {
            return value.parse().ok();
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_of_netstat_is_found_by_its_name() {
        let text =
            "TcpExt: SyncookiesSent ListenOverflows\nTcpExt: 1 7\nIpExt: InOctets\nIpExt: 9\n";
        assert_eq!(value_in(text, "ListenOverflows"), Some(7));
        assert_eq!(value_in(text, "InOctets"), Some(9));
        assert_eq!(value_in(text, "other"), None);
    }
}
