// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests that read and change nf_conntrack's table by ctnetlink.

use std::{io, net::SocketAddr};

use linux::{Editor, Tracked, Tuple, tracked};
use proxy_common::Protocol;

use crate::support::in_netns;

fn all() -> Vec<Tracked> {
    let mut found = Vec::new();
    tracked(|tracked| found.push(tracked)).expect("the kernel answers");
    found
}

/// Returns an open connection; `info` is the protocol's state of TCP or SCTP.
fn open(protocol: Protocol, src: &str, dst: &str, info: &[u8]) -> Tracked {
    let address = |text: &str| -> SocketAddr { text.parse().expect("an address") };
    let original = Tuple {
        src: address(src),
        dst: address(dst),
    };
    Tracked {
        protocol,
        original,
        reply: original.reversed(),
        status: Tracked::SEEN_REPLY | Tracked::ASSURED,
        id: 0,
        timeout: 600,
        mark: 0,
        zone: 0,
        protocol_info: info.to_vec(),
    }
}

/// Returns a netlink attribute of a protocol with its state in it.
fn state(nest: u8, state: u8) -> Vec<u8> {
    vec![12, 0, nest, 0x80, 5, 0, 1, 0, state, 0, 0, 0]
}

#[test]
fn conntrack_entries_can_be_created_found_replaced_and_removed() {
    in_netns(|| {
        let editor = Editor::open().expect("ctnetlink");
        for [src, dst, to] in [
            ["10.0.0.1:1", "10.0.0.7:80", "10.0.0.8:81"],
            ["[fd00::1]:1", "[fd00::7]:80", "[fd00::8]:81"],
        ] {
            let wanted = open(Protocol::TCP, src, dst, &state(1, 3));
            editor.create(&wanted).expect("run as root");
            let again = editor.create(&wanted).expect_err("it is there");
            assert_eq!(again.kind(), io::ErrorKind::AlreadyExists);
            let [found] = &all()[..] else {
                panic!("one: {:?}", all())
            };
            let tuples = |tracked: &Tracked| (tracked.original, tracked.reply);
            assert_eq!(tuples(found), tuples(&wanted));
            assert!(found.has(wanted.status) && !found.is_sent_elsewhere());
            assert_eq!((found.state(), found.protocol), (Some(3), Protocol::TCP));
            assert!((590..=600).contains(&found.timeout));

            let mut other = found.clone();
            other.id ^= 1;
            let again = editor.find(found).expect("an answer");
            assert_eq!(again.as_ref().map(tuples), Some(tuples(found)));
            assert_eq!(editor.find(&other).expect("an answer"), None);
            assert!(!editor.remove(&other).expect("an answer"), "another's id");
            let new = open(Protocol::TCP, src, to, &found.protocol_info);
            let (removed, created) = editor.replace(found, &new).expect("answers");
            assert!(removed.expect("removed"));
            created.expect("created");
            assert_eq!(editor.find(found).expect("an answer"), None, "another");
            let now = all();
            assert_eq!(now.len(), 1);
            assert_eq!(tuples(&now[0]), tuples(&new));
            let reply = now[0].reply;
            assert!(editor.remove_tuple(Protocol::TCP, reply).expect("removed"));
            assert!(!editor.remove_tuple(Protocol::TCP, reply).expect("gone"));
            assert_eq!(all(), []);
            assert_eq!(editor.find(found).expect("an answer"), None);
        }
    });
}

#[test]
fn the_verification_tags_of_an_sctp_association_are_parsed() {
    in_netns(|| {
        let tags = [
            28, 0, 3, 0x80, 5, 0, 1, 0, 4, 0, 0, 0, 8, 0, 2, 0, 1, 2, 3, 4, 8, 0, 3, 0, 5, 6, 7, 8,
        ];
        let wanted = open(Protocol::SCTP, "10.0.0.1:1", "10.0.0.7:80", &tags);
        let editor = Editor::open().expect("ctnetlink");
        editor.create(&wanted).expect("run as root");
        let found = all();
        let tags = ([1, 2, 3, 4], [5, 6, 7, 8]);
        let (original, reply) = found[0].tags();
        assert_eq!((original.to_ne_bytes(), reply.to_ne_bytes()), tags);
        assert_eq!(found[0].state(), Some(4));
    });
}

#[test]
fn removing_a_conntrack_entry_by_its_tuple_keeps_all_others() {
    in_netns(|| {
        let editor = Editor::open().expect("ctnetlink");
        let [one, two] =
            ["10.0.0.1:1", "10.0.0.1:2"].map(|src| open(Protocol::UDP, src, "10.0.0.7:53", &[]));
        for tracked in [&one, &two] {
            editor.create(tracked).expect("run as root");
        }
        let removed = editor.remove_tuple(Protocol::UDP, one.original);
        assert!(removed.expect("removed"));
        assert_eq!(
            all().len(),
            1,
            "a request without a tuple would empty the table"
        );
    });
}
