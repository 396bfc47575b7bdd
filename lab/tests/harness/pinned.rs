// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests that values of pinned maps can be changed.

use std::{fs, os::fd::AsFd, path::PathBuf};

use lab::{
    bpf::{Element, pin},
    node::bpffs,
    pinned,
};

#[test]
fn a_pinned_map_value_is_written_only_if_the_closure_returns_true() {
    bpffs::prepare().expect("run as root");
    let element = Element::<u64>::new().expect("a map");
    element.write(7).expect("written");
    let path = PathBuf::from(format!("/sys/fs/bpf/pinned-{}", std::process::id()));
    pin(element.map().as_fd(), &path).expect("pinned");
    for (has_to_change, wanted) in [(false, 7), (true, 8)] {
        let mut seen = Vec::new();
        let changed = pinned::change(&path, [4, 8], |key, value| {
            seen.push((key.to_vec(), value.to_vec()));
            value[0] = 8;
            has_to_change
        });
        changed.expect("changed");
        assert_eq!(seen, [(vec![0; 4], 7_u64.to_ne_bytes().to_vec())]);
        assert_eq!(element.read().expect("read"), wanted);
    }
    fs::remove_file(&path).expect("removed");
}
