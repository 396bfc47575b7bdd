// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests with programs that the kernel refuses: portolan reports the reason, and only features that
//! need them are missing. The kernel really refuses them, because their first instruction calls a
//! function that no kernel has.

use std::{collections::BTreeSet, fs, path::Path};

use datapath::{Datapath, OBJECT, Options};
use lab::broken::break_program;

use crate::{
    attach::{add_veth, pinned},
    open::expect_refusal,
    support::{PinDir, in_netns},
};

/// Returns options with an object in which these programs are broken.
fn options(pins: &PinDir, folder: &Path, broken: &[&str]) -> Options {
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
    let options = options(&pins, folder.path(), &["ingress"]);
    let page = "docs/dev/kernels.md";
    let parts = ["the program ingress", "9999", "processed ", page];
    expect_refusal(&options, &parts);
}

#[test]
fn programs_that_do_not_need_a_refused_one_are_attached() {
    in_netns(|pins| {
        let folder = tempfile::tempdir().expect("a folder");
        let broken = ["expire_v6", "ingress_l3", "receive_v6"];
        let options = options(&pins, folder.path(), &broken);
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

        // Hooks that need the refused program are not attached either: their effects could not be
        // undone.
        let cgroup = lab::node::cgroup::Cgroup::new().expect("a cgroup");
        let hooks = datapath.attach_hooks(cgroup.path());
        hooks.expect("the other hooks");
        let links = pinned(&pins);
        let attached = links.keys().filter_map(|name| name.strip_prefix("cgroup-"));
        let expected = "release receive_v4 peer_name_v4 peer_name_v6 bind_v4 bind_v6 connect_v4";
        let expected = BTreeSet::from_iter(expected.split(' '));
        assert_eq!(BTreeSet::from_iter(attached), expected);
    });
}
