// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `xdp` on a node: connections and datagrams through it, its next hops, and when its programs come
//! and go.

mod world;

use std::{
    io::{Read, Write},
    thread,
    time::{Duration, Instant},
};

use lab::{
    bpf::PASS,
    node::{
        foreign::{ChainPosition, Foreign},
        settings::Xdp,
    },
};
use rstest::rstest;

use crate::repair::pins;
use world::{UPLINKS, World, ping, send};

#[rstest]
#[case::v4_native(false, Xdp::Native)]
#[case::v6_generic(true, Xdp::Generic)]
fn xdp_forwards_large_transfers_and_datagrams_with_an_agent_and_without(
    #[case] v6: bool,
    #[case] xdp: Xdp,
) {
    let mut world = World::new(v6, xdp);
    world.wait_for_programs();
    let (mut near, mut far) = world.connect();
    send(&mut near, &mut far, 300_000);
    send(&mut far, &mut near, 300_000);
    let [there, back] = world.taken();
    // 300,000 bytes in segments of at most 1500 bytes, and their acknowledgements; XDP leaves some
    // packets to the stack on purpose.
    assert!(there > 190 && back > 190, "{there} {back}");

    let (asking, answering) = world.datagrams();
    let mut buffer = [0; 2048];
    for n in 0..50_usize {
        let sent = vec![n as u8; 1 + n * 28];
        asking.send(&sent).expect("sent");
        let (length, from) = answering.recv_from(&mut buffer).expect("received");
        assert_eq!(buffer[..length], sent);
        answering.send_to(&sent, from).expect("sent");
        let length = asking.recv(&mut buffer).expect("received");
        assert_eq!(buffer[..length], sent);
    }
    let after = world.taken();
    assert!(after[0] >= there + 40 && after[1] >= back + 40, "{after:?}");

    world.end();
    let before = world.taken();
    for _ in 0..30 {
        ping(&mut near, &mut far);
        thread::sleep(Duration::from_millis(100));
    }
    let after = world.taken();
    assert!(
        after[0] > before[0] + 20 && after[1] > before[1] + 20,
        "without an agent: {before:?} {after:?}"
    );
    // tc still serves a connection that begins now.
    let (mut other, mut end) = world.connect();
    ping(&mut other, &mut end);
}

#[test]
fn with_firewall_rules_xdp_takes_only_what_the_stack_accepted() {
    let world = World::prepared(false, Xdp::Native, |node| {
        let policy = "table ip cni {\n\
            chain forward { type filter hook forward priority 0; policy drop;\n\
              ct state invalid drop\n ct state established,new accept\n }\n}\n";
        node.nft(policy);
        node.node().suit_conntrack().expect("conntrack");
    });
    world.wait_for_programs();
    let (mut near, mut far) = world.connect();
    world.eventually("XDP takes both directions", || {
        world
            .taken_of_20(&mut near, &mut far)
            .iter()
            .all(|taken| *taken > 10)
    });
    let drops = "table ip later {\n\
        chain forward { type filter hook forward priority -10; policy drop;\n }\n}\n";
    world.node.nft(drops);
    far.set_nonblocking(true).expect("set");
    let (begun, mut last) = (Instant::now(), Instant::now());
    // Half a second without a byte: the retransmissions are dropped, too.
    while last.elapsed() < Duration::from_millis(500) {
        assert!(begun.elapsed() < Duration::from_secs(20));
        near.write_all(b"12345").expect("sent");
        thread::sleep(Duration::from_millis(50));
        if far.read(&mut [0; 4096]).is_ok() {
            last = Instant::now();
        }
    }
}

#[test]
fn xdp_programs_are_attached_as_the_setting_says_after_each_restart() {
    let mut world = World::new(false, Xdp::Native);
    world.wait_for_programs();
    let (mut near, mut far) = world.connect();
    let links = |world: &World| {
        let pins = pins(&world.node).into_iter();
        let names = pins.filter_map(|pin| pin.file_name()?.to_str().map(str::to_owned));
        names
            .filter(|name| name.starts_with("xdp-"))
            .collect::<Vec<_>>()
    };
    // A link is pinned after it is attached.
    world.eventually("both links are pinned", || links(&world).len() == 2);
    for (xdp, count) in [
        (Xdp::Generic, 2),
        (Xdp::Off, 0),
        (Xdp::Native, 2),
        (Xdp::Native, 2),
    ] {
        world.restart(xdp);
        world.eventually("as the setting says", || {
            let there = UPLINKS
                .iter()
                .filter(|uplink| world.has_program(uplink))
                .count();
            let named = links(&world);
            there == count
                && named.len() == count
                && named.iter().all(|name| name.ends_with(xdp.name()))
        });
        ping(&mut near, &mut far);
        let [taken, _] = world.taken_of_20(&mut near, &mut far);
        assert_eq!(taken > 10, count > 0, "{}: {taken}", xdp.name());
    }
    let status = world.node.told(&["status"]);
    assert!(
        status.contains("clients (native), backends (native)"),
        "{status}"
    );
    world.end();
    world.node.told(&["cleanup"]);
    for uplink in UPLINKS {
        assert!(!world.has_program(uplink), "cleanup removes all");
    }
}

#[test]
fn xdp_is_detached_and_the_reason_logged_if_others_must_see_packets() {
    let world = World::new(false, Xdp::Native);
    world.wait_for_programs();
    let (mut near, mut far) = world.connect();
    let backends = UPLINKS[1];
    let police = Foreign::new(
        world.node.node(),
        backends,
        false,
        ChainPosition::Last,
        PASS,
    );
    let police = police.expect("a program");
    world.says(&["interface backends", "at ingress would not see them"]);
    world.eventually("none at one", || !world.has_program(backends));
    assert!(world.has_program(UPLINKS[0]), "the other has it still");
    let taken = world.taken_of_20(&mut near, &mut far);
    assert_eq!(taken, [0, 0], "the ways out are not permitted");
    let before = world.taken();
    drop(police);
    world.wait_for_programs();
    world.eventually("XDP takes packets", || {
        ping(&mut near, &mut far);
        world.taken()[0] > before[0] + 5
    });
    // A rule that XDP cannot follow makes the agent detach XDP again.
    world.node.ip("rule add priority 900 fwmark 7 lookup main");
    world.says(&["interface clients", "priority 900"]);
    world.eventually("no program", || {
        UPLINKS.iter().all(|uplink| !world.has_program(uplink))
    });
    ping(&mut near, &mut far);
}

#[test]
fn a_foreign_xdp_program_is_logged_and_kept() {
    let mut foreign = None;
    let mut world = World::prepared(false, Xdp::Native, |node| {
        let link = Foreign::at_xdp(node.node(), UPLINKS[0]);
        foreign = Some(link.expect("a program"));
    });
    world.says(&["interface clients", "is at its XDP hook"]);
    world.eventually("the other has ours", || world.has_program(UPLINKS[1]));
    let (mut near, mut far) = world.connect();
    ping(&mut near, &mut far);
    world.end();
    world.node.told(&["cleanup"]);
    assert!(!world.has_program(UPLINKS[1]));
    assert!(world.has_program(UPLINKS[0]), "it is not ours");
    drop(foreign);
}
