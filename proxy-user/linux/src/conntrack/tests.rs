// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests with connections as ctnetlink encodes them.

use std::net::Ipv6Addr;

use super::*;
use crate::netlink::{encode, family_and_octets, tests::cut_off_anywhere};

/// Returns a connection from 10.0.0.1:40000 to a service at port 443, served by 10.0.0.2:8443.
fn connection(status: u32, protocol: u8, v4: bool) -> Vec<u8> {
    let [client, service, server] = if v4 {
        ["10.0.0.1:40000", "172.30.0.1:443", "10.0.0.2:8443"]
    } else {
        ["[fd00::1]:40000", "[fd00:30::1]:443", "[fd00::2]:8443"]
    };
    let tuple = |kind, src: &str, dst: &str| {
        let [src, dst] = [src, dst].map(|end| end.parse::<SocketAddr>().expect("an address"));
        let octets = |end: SocketAddr| family_and_octets(end.ip()).1;
        let (from, to) = if v4 { (1, 2) } else { (3, 4) };
        let addresses = [encode(from, &octets(src)), encode(to, &octets(dst))];
        let [from, to] = [src, dst].map(|end| end.port().to_be_bytes());
        let transport = [encode(1, &[protocol]), encode(2, &from), encode(3, &to)];
        let both = [
            encode(1, &addresses.concat()),
            encode(2, &transport.concat()),
        ];
        encode(kind, &both.concat())
    };
    let tuples = [tuple(1, client, service), tuple(2, server, client)];
    [tuples.concat(), encode(3, &status.to_be_bytes())].concat()
}

#[test]
fn a_conntrack_entry_is_parsed_with_all_its_fields() {
    let found = read(&connection(0x1ae, 6, true)).expect("a connection");
    assert_eq!(found.protocol, Protocol::TCP);
    assert_eq!(found.original.src, ([10, 0, 0, 1], 40_000).into());
    assert_eq!(found.original.dst, ([172, 30, 0, 1], 443).into());
    assert_eq!(found.reply.src, ([10, 0, 0, 2], 8443).into());
    assert_eq!(found.reply.dst, found.original.src);
    assert_eq!((found.status, found.zone), (0x1ae, 0));
    assert!(found.is_by_nat() && found.is_sent_elsewhere());
    let found = read(&connection(0x1ae, 17, false)).expect("an exchange");
    assert_eq!(found.protocol, Protocol::UDP);
    let service: Ipv6Addr = "fd00:30::1".parse().expect("an address");
    assert_eq!(found.original.dst, (service, 443).into());
    cut_off_anywhere(&connection(0x1ae, 6, true), |bytes| _ = read(bytes));
}

#[test]
fn tuples_and_not_status_bits_tell_if_a_connection_is_translated() {
    // With IPVS no status bit is set.
    for status in [0x1ae, 0x18e] {
        let found = read(&connection(status, 6, true)).expect("a connection");
        assert!(found.is_sent_elsewhere());
        let mut plain = found.clone();
        plain.reply = Tuple {
            src: plain.original.dst,
            dst: plain.original.src,
        };
        assert!(!plain.is_sent_elsewhere() && !plain.has_another_port());
        let mut renamed = plain.clone();
        renamed.reply.dst.set_port(1);
        assert!(renamed.has_another_port());
        renamed.reply.dst.set_ip([10, 0, 0, 9].into());
        assert!(!renamed.has_another_port(), "a masquerade");
        // A redirect changes only the port.
        plain.reply.src.set_port(1);
        assert!(plain.is_sent_elsewhere());
    }
}
