// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests for foreign programs at the same hooks, by tcx and clsact: found, and not removed.

use std::os::fd::{AsFd, OwnedFd};

use datapath::{ChainPosition, Datapath};
use lab::bpf::{PASS, always, load};
use linux::interfaces::Interface;
use proxy_common::maps::{self, interface};

use crate::{
    attach::add_veth,
    support::{PinDir, filters, in_netns, run},
};

/// Returns a program that passes every packet, and its id.
fn foreign() -> (OwnedFd, u32) {
    let program = load(&always(PASS)).expect("loads");
    let id = linux::program_id(program.as_fd()).expect("an id");
    (program, id)
}

/// Returns the foreign programs at an interface: hook, position, id.
fn beside(datapath: &Datapath, interface: &Interface) -> Vec<(bool, ChainPosition, u32)> {
    let seen = datapath.foreign_programs([interface]);
    let seen = seen.expect("the kernel answers");
    let [(_, programs)] = &seen[..] else {
        panic!("one interface: {seen:?}")
    };
    let programs = programs.as_ref().expect("readable");
    let id = |name: &str| {
        let id = name.strip_prefix("program ")?.strip_suffix(" (foreign)")?;
        id.parse().ok()
    };
    let each = programs.iter().map(|program| {
        let id = id(&program.name).unwrap_or_else(|| panic!("{}", program.name));
        (program.egress, program.place, id)
    });
    each.collect()
}

/// Adds a filter with a program; `how` is its direction and priority in the syntax of tc.
fn add_filter(pins: &PinDir, program: &OwnedFd, how: &str) {
    let id = linux::program_id(program.as_fd()).expect("an id");
    let pin = pins.path().join(format!("foreign-{id}"));
    linux::pin(program.as_fd(), &pin).expect("pinned");
    let pin = pin.display();
    run(&format!("tc filter add dev v0 {how} bpf da pinned {pin}"));
}

#[test]
fn tcx_programs_go_before_earlier_foreign_programs_not_later_ones() {
    in_netns(|pins| {
        let mut datapath = pins.open();
        let veth = add_veth("v0");
        let index = veth.index;
        let [early, late, filter] = [(); 3].map(|()| foreign());
        let _early = [false, true].map(|egress| {
            linux::attach_tcx(early.0.as_fd(), index, egress, None).expect("attached")
        });
        assert_eq!(beside(&datapath, &veth), [], "ours are not there");
        datapath.attach(&veth).expect("attaches");
        let behind = [false, true].map(|egress| (egress, ChainPosition::Behind, early.1));
        assert_eq!(beside(&datapath, &veth), behind);
        let late_link = linux::attach_tcx(late.0.as_fd(), index, true, None).expect("attached");
        run("tc qdisc add dev v0 clsact");
        add_filter(&pins, &filter.0, "ingress");
        let all = [
            behind[0],
            (false, ChainPosition::Behind, filter.1),
            (true, ChainPosition::Before, late.1),
            behind[1],
        ];
        assert_eq!(beside(&datapath, &veth), all);
        drop(late_link);
        run("ip link del v0");
        assert_eq!(beside(&datapath, &veth), [], "the interface is gone");
    });
}

#[test]
fn a_foreign_program_at_ingress_of_the_bridge_is_found() {
    in_netns(|pins| {
        let mut datapath = pins.open();
        let mut veth = add_veth("v0");
        run("ip link add br0 type bridge");
        let bridge = nix::net::if_::if_nametoindex("br0").expect("the bridge");
        veth.bridge = Some(bridge);
        datapath.attach(&veth).expect("attaches");
        let (program, id) = foreign();
        let _both = [false, true].map(|egress| {
            linux::attach_tcx(program.as_fd(), bridge, egress, None).expect("attached")
        });
        let at_bridge = (false, ChainPosition::Bridge, id);
        assert_eq!(beside(&datapath, &veth), [at_bridge]);
        let words = pins.table::<u32, u64>(maps::INTERFACES);
        let word = words.lookup(&veth.index).expect("readable");
        assert_eq!(interface::bridge(word.expect("stored")), bridge);
    });
}

#[test]
fn clsact_filters_go_first_where_possible_and_keep_foreign_filters() {
    in_netns(|pins| {
        let mut datapath = pins.open_clsact();
        let veth = add_veth("v0");
        let [same, behind, other_kind, before] = [(); 4].map(|()| foreign());
        run("tc qdisc add dev v0 clsact");
        // Common tools choose these values.
        add_filter(&pins, &same.0, "ingress prio 1 handle 1");
        add_filter(&pins, &behind.0, "ingress prio 2 handle 1");
        // No filter for another protocol can have the same priority.
        add_filter(&pins, &other_kind.0, "egress prio 1 protocol ip");
        let foreign_ones = [
            (false, ChainPosition::Behind, same.1),
            (false, ChainPosition::Behind, behind.1),
            (true, ChainPosition::Before, other_kind.1),
        ];
        for _ in 0..2 {
            datapath.attach(&veth).expect("attaches, and again");
            assert_eq!(beside(&datapath, &veth), foreign_ones);
        }
        add_filter(&pins, &before.0, "ingress prio 1 handle 2");
        let now_before = (false, ChainPosition::Before, before.1);
        assert_eq!(beside(&datapath, &veth)[0], now_before);
        drop(datapath);

        let mut datapath = pins.open_clsact();
        datapath.attach(&veth).expect("attaches once more");
        assert_eq!(beside(&datapath, &veth).len(), 4);
        datapath.detach(veth.index).expect("detaches");
        let left = filters().concat();
        assert_eq!(left.matches(" id ").count(), 4, "{left}");
    });
}

#[test]
fn the_redirect_bit_of_an_interface_survives_restarts_but_not_a_detach() {
    in_netns(|pins| {
        let mut datapath = pins.open();
        let mut veth = add_veth("v0");
        let words = pins.table::<u32, u64>(maps::INTERFACES);
        let index = veth.index;
        let redirects = || {
            let word = words.lookup(&index).expect("readable").expect("stored");
            interface::bits(word) & interface::REDIRECTS != 0
        };
        datapath.attach(&veth).expect("attaches");
        assert!(!redirects(), "not before anybody has looked");
        datapath.set_redirects(index, true).expect("stored");
        assert!(redirects());
        drop(datapath);
        let mut datapath = pins.open();
        assert!(redirects(), "while no agent runs");
        datapath.attach(&veth).expect("attaches");
        assert!(redirects(), "until somebody has looked again");
        datapath.set_redirects(index, false).expect("stored");
        assert!(!redirects());
        datapath.detach(index).expect("detaches");
        let stored = datapath.set_redirects(index, true);
        stored.expect("nothing to store");
        veth.pods = true;
        datapath.attach(&veth).expect("attaches");
        assert!(!redirects());
    });
}
