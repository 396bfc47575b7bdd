// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests with connections as ctnetlink encodes them.

use std::net::Ipv6Addr;

use super::*;
use crate::netlink::{encode, tests::damaged};

/// Returns a connection from 10.0.0.1:40000 to a service at port 443, served by 10.0.0.2:8443.
fn connection(status: u32, protocol: u8, v4: bool) -> Vec<u8> {
    let (client, service, server): (Vec<u8>, Vec<u8>, Vec<u8>) = if v4 {
        (vec![10, 0, 0, 1], vec![172, 30, 0, 1], vec![10, 0, 0, 2])
    } else {
        let octets = |text: &str| {
            let address: Ipv6Addr = text.parse().expect("an address");
            address.octets().to_vec()
        };
        (octets("fd00::1"), octets("fd00:30::1"), octets("fd00::2"))
    };
    let tuple = |src: &[u8], src_port: u16, dst: &[u8], dst_port: u16| {
        let (from, to) = if v4 { (1, 2) } else { (3, 4) };
        let transport = [
            encode(1, &[protocol]),
            encode(2, &src_port.to_be_bytes()),
            encode(3, &dst_port.to_be_bytes()),
        ];
        [
            encode(1, &[encode(from, src), encode(to, dst)].concat()),
            encode(2, &transport.concat()),
        ]
        .concat()
    };
    [
        encode(1, &tuple(&client, 40_000, &service, 443)),
        encode(2, &tuple(&server, 8443, &client, 40_000)),
        encode(3, &status.to_be_bytes()),
    ]
    .concat()
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

#[test]
fn conntrack_entries_can_be_listed() {
    tracked(drop).expect("the kernel answers");
}

proptest::proptest! {
    #[test]
    fn the_conntrack_parser_never_panics(
        bytes: Vec<u8>, edits: Vec<(u16, u8)>, length in 0_usize..300,
    ) {
        _ = read(&bytes);
        _ = read(&damaged(connection(0x1ae, 6, true), &edits, length));
    }
}
