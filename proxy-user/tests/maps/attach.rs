// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests for attachments to interfaces of a network namespace, and their adoption later.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, DirEntry},
};

use datapath::maps::pins::links_dir;
use linux::interfaces::{Interface, InterfaceKind};
use proxy_common::maps;

use crate::support::{PinDir, detach_all, in_netns, run};

/// Adds an interface; `how` is its name, and perhaps "index NUMBER".
pub(crate) fn add_veth(how: &str) -> Interface {
    let name = how.split(' ').next().expect("a name");
    run(&format!(
        "ip link add {how} type veth peer name {name}-peer"
    ));
    let index = nix::net::if_::if_nametoindex(name).expect("the interface exists");
    Interface {
        driver: "veth".into(),
        ..linux::testing::interface(index, name, InterfaceKind::PodSide)
    }
}

/// Returns the ids of the links and of their programs, at ingress and egress.
fn links(interface: &Interface) -> Vec<u32> {
    let both = [false, true].map(|egress| linux::tcx(interface.index, egress));
    let both = both.map(|all| all.expect("the kernel has tcx"));
    both.into_iter().flatten().map(|(_, link)| link).collect()
}

/// Returns the programs of the pinned links, by the links' names.
pub(crate) fn pinned(pins: &PinDir) -> BTreeMap<String, u32> {
    let entries = fs::read_dir(links_dir(pins.path())).expect("readable");
    let of_link = |entry: DirEntry| {
        let link = linux::get_pinned(&entry.path(), false).expect("pinned");
        let program = linux::link_info(&link).expect("a link").program;
        (entry.file_name().into_string().expect("UTF-8"), program)
    };
    entries.flatten().map(of_link).collect()
}

fn programs(pins: &PinDir) -> BTreeSet<u32> {
    pinned(pins).into_values().collect()
}

#[test]
fn attachments_outlive_the_agent_and_get_the_new_agents_programs_in_place() {
    in_netns(|pins| {
        let mut datapath = pins.open();
        let veth = add_veth("v0");
        datapath.attach(&veth).expect("attaches");
        let before = links(&veth);
        assert_eq!(before.len(), 2);
        datapath.attach(&veth).expect("attaches again");
        assert_eq!(links(&veth), before);
        let old = programs(&pins);
        drop(datapath);
        assert_eq!(links(&veth), before);

        let mut datapath = pins.open();
        datapath.attach(&veth).expect("attaches");
        assert_eq!(links(&veth), before, "the links are the same");
        assert!(programs(&pins).is_disjoint(&old), "the programs are new");
        datapath.detach(veth.index).expect("detaches");
        // The kernel removes a link some time after its last reference.
        for _ in 0..100 {
            if links(&veth).is_empty() {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        assert_eq!(links(&veth).len(), 0);
        datapath.detach(veth.index).expect("detaches from nothing");
    });
}

#[test]
fn pins_of_a_removed_interface_go_and_its_index_can_be_reused() {
    in_netns(|pins| {
        let mut datapath = pins.open();
        let gone = add_veth("v0");
        datapath.attach(&gone).expect("attaches");
        run("ip link del v0");
        let reused = add_veth(&format!("v1 index {}", gone.index));
        datapath.attach(&reused).expect("attaches");
        assert_eq!(links(&reused).len(), 2);
        run("ip link del v1");
        drop(datapath);
        let mut datapath = pins.open();
        detach_all(&mut datapath);
        assert_eq!(pinned(&pins), BTreeMap::new());
    });
}

#[test]
fn a_link_of_the_same_index_in_another_namespace_is_not_reused() {
    // The open file keeps the other namespace alive, and with it the interface of the link.
    let (pins, namespace) = in_netns(|pins| {
        let veth = add_veth("v0 index 77");
        pins.open().attach(&veth).expect("attaches");
        let namespace = fs::File::open("/proc/thread-self/ns/net").expect("the namespace");
        (pins, namespace)
    });
    in_netns(move |_| {
        let veth = add_veth("v0 index 77");
        pins.open().attach(&veth).expect("attaches");
        assert_eq!(links(&veth).len(), 2);
        drop(namespace);
    });
}

#[test]
fn attaching_to_a_removed_interface_reports_it_gone_and_stores_nothing() {
    in_netns(|pins| {
        let mut datapath = pins.open();
        let veth = add_veth("v0");
        run("ip link delete v0");
        let error = datapath.attach(&veth).expect_err("it is gone");
        assert!(error.is_gone(), "{error}");
        let known = pins.table::<u32, u64>(maps::INTERFACES).entries();
        assert_eq!(known.expect("the map"), []);
    });
}
