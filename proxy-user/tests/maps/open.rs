// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reasons why the datapath does not open; each message says what to do.

use std::{fs, thread};

use portolan::datapath::{Datapath, DatapathError, Options, maps::pins::map_path, sys};

use crate::support::PinDir;

fn refusal(options: &Options) -> DatapathError {
    match Datapath::open(options) {
        Ok(_) => panic!("opened {}", options.pin_dir.display()),
        Err(error) => error,
    }
}

#[test]
fn a_second_agent_is_refused_with_the_directory_and_the_holder() {
    let pins = PinDir::new();
    let first = pins.open();
    let error = refusal(&pins.options()).to_string();
    assert!(error.contains(&*pins.0.to_string_lossy()), "{error}");
    let pid = format!("pid {}", std::process::id());
    assert!(error.contains(&pid), "{error}");
    drop(first);
    pins.open();
}

#[test]
fn a_directory_outside_a_bpf_file_system_is_refused_with_the_command_that_mounts_one() {
    let elsewhere = tempfile::tempdir().expect("a directory");
    let pin_dir = elsewhere.path().join("portolan");
    let error = refusal(&Options {
        pin_dir: pin_dir.clone(),
        ..Options::default()
    });
    let command = format!("mount -t bpf bpf {}", pin_dir.display());
    assert!(error.to_string().contains(&command), "{error}");
    assert!(!pin_dir.exists(), "nothing is left behind");
}

#[test]
fn without_privilege_the_message_names_the_capabilities() {
    let pins = PinDir::new();
    let options = pins.options();
    // Each thread has its own capabilities.
    let error = thread::spawn(move || {
        drop_user();
        refusal(&options)
    });
    let error = error.join().expect("the thread ends").to_string();
    assert!(
        error.contains("CAP_BPF") && error.contains("root"),
        "{error}"
    );
}

#[expect(
    unsafe_code,
    reason = "libc's wrapper would change the user of all threads"
)]
fn drop_user() {
    // SAFETY: takes three plain numbers.
    let result = unsafe { libc::syscall(libc::SYS_setresuid, 65_534, 65_534, 65_534) };
    assert_eq!(result, 0, "become nobody");
}

#[test]
fn maps_of_other_capacities_are_refused_with_the_remedy_and_left_alone() {
    let pins = PinDir::new();
    drop(pins.open());
    let mut options = pins.options();
    options.capacities.backends *= 2;
    let error = refusal(&options).to_string();
    assert!(error.contains("backends_v4"), "{error}");
    assert!(error.contains("portolan cleanup"), "{error}");
    drop(pins.open());
}

#[test]
fn a_foreign_map_under_one_of_our_names_is_refused() {
    let pins = PinDir::new();
    drop(pins.open());
    let path = map_path(&pins.0, "frontends_v6");
    fs::remove_file(&path).expect("removed");
    let foreign = sys::create_map(sys::MapKind::Hash, 4, 4, 64, 0, None).expect("a map");
    sys::pin(&foreign, &path).expect("pinned");
    let error = refusal(&pins.options()).to_string();
    assert!(
        error.contains("frontends_v6") && error.contains("key size"),
        "{error}"
    );
}
