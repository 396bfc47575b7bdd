// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests for reasons why the datapath does not open, each with a message that says what to do; and
//! for what works without a program that the kernel refuses. It really refuses it: the first
//! instruction calls a function that no kernel has.

use std::{collections::BTreeSet, fs, path::Path, time::Duration};

use datapath::{
    Datapath, OBJECT, Options,
    maps::pins::{generations, map_path},
};
use lab::broken::break_program;
use proxy_common::maps::{self, LAYOUT_VERSION};

use crate::{
    attach::{add_veth, pinned},
    support::{PinDir, in_netns},
};

/// Expects that the datapath does not open, with a message that has these parts.
#[track_caller]
fn expect_refusal(options: &Options, parts: &[&str]) {
    let there = || generations(&options.pin_dir).ok();
    let before = there();
    let Err(error) = Datapath::open(options) else {
        panic!("opened {}", options.pin_dir.display())
    };
    assert_eq!(there(), before, "no maps are left behind");
    let error = error.to_string();
    for part in parts {
        assert!(error.contains(part), "{part}: {error}");
    }
}

/// Makes new maps take over from the previous ones.
pub(crate) fn take_over(datapath: &mut Datapath) {
    datapath.carry_over(Duration::MAX).expect("carried over");
    datapath.take_over(Duration::MAX).expect("taken over");
}

#[test]
fn a_second_agent_is_refused_with_the_directory_and_the_holder() {
    let pins = PinDir::new();
    let first = pins.open();
    let pid = format!("pid {}", std::process::id());
    expect_refusal(&pins.options(), &[&*pins.path().to_string_lossy(), &pid]);
    drop(first);
    pins.open();
}

#[test]
fn a_directory_outside_a_bpf_file_system_is_refused_with_the_command_that_mounts_one() {
    let elsewhere = tempfile::tempdir().expect("a directory");
    let pin_dir = elsewhere.path().join("portolan");
    let options = Options {
        pin_dir: pin_dir.clone(),
        ..Options::default()
    };
    let command = format!("mount -t bpf bpf {}", pin_dir.display());
    expect_refusal(&options, &[&command]);
    assert!(!pin_dir.exists(), "nothing is left behind");
}

#[test]
fn a_start_that_fails_removes_the_maps_that_it_has_made_and_no_others() {
    let pins = PinDir::new();
    let mut broken = pins.options();
    broken.object = Some("/no/object".into());
    expect_refusal(&broken, &[]);
    let count = || generations(pins.path()).expect("pins").len();
    pins.open().give_up();
    assert_eq!(count(), 0);
    drop(pins.open());
    pins.open().give_up();
    assert_eq!(count(), 1);
}

#[test]
fn maps_of_another_size_or_drained_ones_are_kept_until_a_takeover() {
    let pins = PinDir::new();
    drop(pins.open());
    let first = generations(pins.path()).expect("pins");
    let larger = || pins.open_with(|options| options.capacities.backends *= 2);
    let begun = larger();
    assert_eq!(begun.predecessors(), Some(format!("v{LAYOUT_VERSION}")));
    assert!(!begun.may_attach(), "nothing is carried over yet");
    drop(begun);
    assert_eq!(generations(pins.path()).expect("pins").len(), 2);

    // With the first size again, the first maps are used: no other maps have taken over from them.
    let mut back = pins.open();
    take_over(&mut back);
    assert_eq!(generations(pins.path()).expect("pins"), first);
    drop(back);

    let mut again = larger();
    take_over(&mut again);
    assert_eq!(again.predecessors(), None);
    let left = generations(pins.path()).expect("pins");
    assert_eq!((left.len(), left[0].number), (1, 1));
    drop(again);

    // Drained maps do not serve, whatever their sizes.
    let drained = pins.table::<u32, u32>(maps::DRAINED);
    drained.update(&0, &1).expect("written");
    let mut datapath = larger();
    assert!(datapath.predecessors().is_some());
    take_over(&mut datapath);
    assert_eq!(generations(pins.path()).expect("pins").len(), 1);
}

#[test]
fn an_agent_renews_the_time_of_maps_that_still_serve_and_a_takeover_keeps_that_of_its_own() {
    let pins = PinDir::new();
    let first = pins.open();
    let table = || pins.table::<u32, u32>(maps::DRAINED);
    let old = table();
    let set = |word| old.update(&0, &word).expect("written");
    let read = || old.lookup(&0).expect("read").expect("an element");
    drop(first);
    let mut next = pins.open_with(|options| options.capacities.backends *= 2);
    let renewed = |word| {
        set(word);
        let hour = Some(Duration::from_hours(1));
        next.serve_for(hour, true).expect("written");
        read() != word
    };
    assert!(!renewed(0), "it serves for ever");
    let over = maps::generation::serving_until(0, Some(0));
    assert!(!renewed(over), "it has given way");
    let soon = linux::now() + 60_000_000_000;
    assert!(renewed(maps::generation::serving_until(0, Some(soon))));
    let until = read();
    take_over(&mut next);
    assert_eq!(table().lookup(&0).expect("read"), Some(until));
}

#[test]
fn a_grown_map_keeps_its_size_in_every_later_takeover() {
    let pins = PinDir::new();
    let first = pins.open();
    let mut larger = pins.options();
    larger.capacities.frontends *= 2;
    let mut grown = first.growth()(&larger).expect("opens");
    drop(first);
    take_over(&mut grown);
    // The size survives even if all pins are removed; every pin comes back.
    let there = || {
        let home = &generations(pins.path()).expect("pins")[0].dir(pins.path());
        let entries = fs::read_dir(home).expect("a directory").flatten();
        BTreeSet::from_iter(entries.map(|entry| entry.file_name()))
    };
    let before = there();
    fs::remove_dir_all(pins.path()).expect("removed");
    let repaired = grown.repair_pins();
    assert!(repaired.iter().all(|repair| repair.failure.is_none()));
    assert_eq!(there(), before);
    drop(grown);
    // Now another map has another size, which the options set.
    let mut other = pins.options();
    other.capacities.affinity *= 2;
    for options in [&other, &pins.options()] {
        let mut next = Datapath::open(options).expect("opens");
        assert_eq!(next.capacities().frontends, larger.capacities.frontends);
        take_over(&mut next);
    }
}

#[test]
fn abandoned_larger_maps_leave_the_first_maps_in_use() {
    let pins = PinDir::new();
    let first = pins.open();
    let mut larger = pins.options();
    larger.capacities.frontends *= 2;
    let numbers = || {
        let left = generations(pins.path()).expect("pins");
        Vec::from_iter(left.iter().map(|generation| generation.number))
    };
    for _ in 0..2 {
        let grown = first.growth()(&larger).expect("opens");
        assert_eq!(numbers(), [0, 1]);
        grown.abandon().expect("removed");
        assert_eq!(numbers(), [0]);
    }
    drop(first);
    let next = pins.open();
    assert_eq!(next.predecessors(), None);
    let frontends = pins.options().capacities.frontends;
    assert_eq!(next.capacities().frontends, frontends);
}

#[test]
fn a_foreign_map_under_one_of_our_names_is_refused() {
    let pins = PinDir::new();
    drop(pins.open());
    let path = map_path(pins.path(), "frontends_v6");
    fs::remove_file(&path).expect("removed");
    let foreign = linux::create_map(linux::MapKind::Hash, 4, 4, 64, 0, None).expect("a map");
    linux::pin(&foreign, &path).expect("pinned");
    expect_refusal(&pins.options(), &["frontends_v6", "key size"]);
}

/// Returns options with an object in which these programs are broken.
fn with_broken(pins: &PinDir, folder: &Path, broken: &[&str]) -> Options {
    let mut object = OBJECT.to_vec();
    for program in broken {
        break_program(&mut object, program);
    }
    let file = folder.join("broken.o");
    fs::write(&file, object).expect("a file");
    let mut options = pins.options();
    options.object = Some(file);
    options
}

#[test]
fn a_refused_program_of_the_packet_path_is_shown_with_the_verifiers_last_lines() {
    let (pins, folder) = (PinDir::new(), tempfile::tempdir().expect("a folder"));
    let options = with_broken(&pins, folder.path(), &["ingress"]);
    let page = "docs/dev/kernels.md";
    let parts = ["the program ingress", "9999", "processed ", page];
    expect_refusal(&options, &parts);
}

#[test]
fn programs_that_do_not_need_a_refused_one_are_attached() {
    in_netns(|pins| {
        let folder = tempfile::tempdir().expect("a folder");
        let broken = ["expire_v6", "ingress_l3", "receive_v6"];
        let options = with_broken(&pins, folder.path(), &broken);
        let mut datapath = Datapath::open(&options).expect("opens");
        let refused: Vec<_> = datapath.refusals().to_vec();
        let names: Vec<_> = refused.iter().map(|refusal| &refusal.program).collect();
        assert_eq!(names, ["ingress_l3", "expire_v6", "receive_v6"]);
        let are_named = refused.iter().all(|one| one.reason.contains("9999"));
        assert!(are_named, "{refused:?}");

        let veth = add_veth("v0");
        datapath.attach(&veth).expect("the packet path");
        let mut tun = add_veth("v1");
        tun.link_layer = false;
        let error = datapath.attach(&tun).expect_err("its program is refused");
        assert!(error.to_string().contains("9999"), "{error}");
        datapath.sweep().expect("sweeps the rest");

        // Hooks that need the refused program are not attached: their effects could not be undone.
        let cgroup = lab::node::cgroup::Cgroup::new().expect("a cgroup");
        let hooks = datapath.attach_hooks(cgroup.path());
        hooks.expect("the other hooks");
        let links = pinned(&pins);
        let attached = links.keys().filter_map(|name| name.strip_prefix("cgroup-"));
        let expected = "release receive_v4 peer_name_v4 peer_name_v6 connect_v4";
        let expected = BTreeSet::from_iter(expected.split(' '));
        assert_eq!(BTreeSet::from_iter(attached), expected);
    });
}
