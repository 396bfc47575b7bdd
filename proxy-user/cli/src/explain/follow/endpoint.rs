// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the network namespace that the packet reached says in /proc/net about its own sockets: who
//! listens, and whether queues of connections are full.

use std::{
    collections::BTreeSet,
    fs,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

use proxy_common::Protocol;

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

/// Reads the facts of the thread's network namespace. `dropped_before`: [`dropped`] at the sending.
pub(super) fn read(
    protocol: Protocol,
    address: SocketAddr,
    dropped_before: Option<u64>,
) -> EndpointFacts {
    const SHOWN: usize = 8;
    let listening = listeners(protocol);
    let at_port = listening.iter().filter(|at| at.port() == address.port());
    let takes = |at: &IpAddr| at.is_unspecified() || *at == address.ip();
    let others: Vec<_> = at_port.map(SocketAddr::ip).collect();
    let here = listening.iter().filter(|at| takes(&at.ip()));
    let ports: BTreeSet<_> = here.map(SocketAddr::port).collect();
    let listens = others.iter().any(takes);
    let elsewhere = others.iter().filter(|_| !listens);
    EndpointFacts {
        address,
        only_at: elsewhere.map(IpAddr::to_string).collect(),
        ports: ports.into_iter().take(SHOWN).collect(),
        listens,
        full_queue: dropped_before.is_some_and(|before| dropped() > before),
    }
}

/// Returns how many connections the thread's namespace has dropped for a full queue.
pub(super) fn dropped() -> u64 {
    let text = fs::read_to_string("/proc/thread-self/net/netstat").unwrap_or_default();
    let names = ["ListenOverflows", "ListenDrops", "TCPReqQFullDrop"].into_iter();
    names.filter_map(|name| value_in(&text, name)).sum()
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

/// Returns where processes of the calling thread's network namespace receive from anybody.
fn listeners(protocol: Protocol) -> Vec<SocketAddr> {
    let (files, state) = match protocol {
        Protocol::TCP => (["tcp", "tcp6"], LISTEN),
        // Only unconnected UDP sockets count: a connected one receives only from its peer.
        _ => (["udp", "udp6"], CLOSE),
    };
    let read = |file: &&str| fs::read_to_string(format!("/proc/thread-self/net/{file}"));
    let texts = files.iter().flat_map(read);
    texts.flat_map(|text| listed(&text, state)).collect()
}

const LISTEN: &str = "0A";
const CLOSE: &str = "07";

/// Returns the own ends of the sockets in this state that a file of /proc/net lists.
fn listed(text: &str, state: &str) -> Vec<SocketAddr> {
    let sockets = text.lines().skip(1).filter_map(|line| {
        let mut words = line.split_whitespace();
        let (local, is_state) = (words.nth(1)?, words.nth(1)? == state);
        let (address, port) = local.split_once(':')?;
        let port = u16::from_str_radix(port, 16).ok()?;
        is_state.then_some(SocketAddr::new(proc_address(address)?, port))
    });
    sockets.collect()
}

/// Parses an IP address of /proc/net: words in the machine's byte order, each as eight hex digits.
fn proc_address(address: &str) -> Option<IpAddr> {
    let word = |at: usize| {
        let digits = address.get(at * 8..at * 8 + 8)?;
        Some(u32::from_str_radix(digits, 16).ok()?.to_ne_bytes())
    };
    if address.len() == 8 {
        return Some(Ipv4Addr::from(word(0)?).into());
    }
    let words = [word(0)?, word(1)?, word(2)?, word(3)?];
    let octets: [u8; 16] = words.as_flattened().try_into().ok()?;
    Some(Ipv6Addr::from(octets).into())
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

    const TCP: &str = include_str!("tcp.txt");
    const TCP6: &str = include_str!("tcp6.txt");

    #[cfg(target_endian = "little")]
    #[test]
    fn listeners_are_read_with_their_addresses_and_connections_are_left_out() {
        let of = |text: &str| {
            let all = listed(text, LISTEN).into_iter();
            all.map(|at| at.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(of(TCP), ["127.0.0.1:8080", "0.0.0.0:80"]);
        assert_eq!(of(TCP6), ["[::]:443", "[::1]:8080"]);
        assert!(of("").is_empty());
    }
}
