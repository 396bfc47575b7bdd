// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Finds out from /proc/net where processes of a network namespace listen. Called by `follow`.

use std::{
    fs,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

use proxy_common::Protocol;

/// Returns where processes of the calling thread's network namespace receive from anybody.
pub(super) fn all(protocol: Protocol) -> Vec<SocketAddr> {
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

/// Returns the own addresses and ports of the sockets in this state that a file of /proc/net (its
/// `text`) lists.
fn listed(text: &str, state: &str) -> Vec<SocketAddr> {
    let sockets = text.lines().skip(1).filter_map(|line| {
        let mut words = line.split_whitespace();
        let (local, is_state) = (words.nth(1)?, words.nth(1)? == state);
        let (address, port) = local.split_once(':')?;
        let port = u16::from_str_radix(port, 16).ok()?;
        is_state.then_some(SocketAddr::new(read(address)?, port))
    });
    sockets.collect()
}

/// Parses an IP address as /proc/net writes it: 32-bit words in the machine's byte order, each as
/// eight hex digits.
fn read(address: &str) -> Option<IpAddr> {
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

    const TCP: &str = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1 1
   1: 0100A8C0:0016 0200A8C0:C000 01 00000000:00000000 00:00000000 00000000     0        0 2 1
   2: 00000000:0050 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 3 1
";
    const TCP6: &str =
        "  sl  local_address                         remote_address                        st
   0: 00000000000000000000000000000000:01BB 00000000000000000000000000000000:0000 0A 0:0
   1: 00000000000000000000000001000000:1F90 00000000000000000000000000000000:0000 0A 0:0
";

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
