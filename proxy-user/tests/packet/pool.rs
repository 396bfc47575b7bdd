// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Loaded programs that tests use in turn, each test with emptied maps: the kernel verifies them
//! for more than a second, and in a virtual machine for twelve. `world` uses this.

use std::{
    fs,
    path::Path,
    sync::{
        Mutex, Once, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    thread,
};

use datapath::{DEFAULT_PIN_DIR, Datapath, Options, cleanup::cleanup};

const BPFFS: &str = "/sys/fs/bpf";

static FREE: Mutex<Vec<(Datapath, Options)>> = Mutex::new(Vec::new());

/// A datapath with empty maps, and its options with its pin directory. Panics without privilege: a
/// test must not be skipped.
pub(crate) fn take(options: Options) -> (Datapath, Options) {
    let fits = |(_, held): &(Datapath, Options)| {
        let pin_dir = held.pin_dir.clone();
        let options = options.clone();
        *held == Options { pin_dir, ..options }
    };
    let found = {
        let mut free = FREE.lock().unwrap_or_else(PoisonError::into_inner);
        let place = free.iter().position(fits);
        place.map(|place| free.swap_remove(place))
    };
    if let Some((datapath, options)) = found {
        let datapath = datapath.start_over(&options).expect("maps are emptied");
        return (datapath, options);
    }
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    assert_eq!(options.pin_dir, Path::new(DEFAULT_PIN_DIR), "given here");
    let options = Options {
        pin_dir: Path::new(BPFFS).join(format!("portolan-packet-{}-{number}", std::process::id())),
        ..options
    };
    let datapath = Datapath::open(&options)
        .unwrap_or_else(|error| panic!("{error} (root and a mounted bpffs are needed)"));
    (datapath, options)
}

/// Keeps a datapath for the next test; after a failed test, removes it instead.
pub(crate) fn give_back(datapath: Datapath, options: &Options) {
    static AT_END: Once = Once::new();
    if thread::panicking() {
        drop(datapath);
        remove(options);
        return;
    }
    // SAFETY: the function lives as long as the process.
    AT_END.call_once(|| _ = unsafe { libc::atexit(at_end) });
    let mut free = FREE.lock().unwrap_or_else(PoisonError::into_inner);
    free.push((datapath, options.clone()));
}

/// Removes all datapaths: at the end of a test program no `Drop` runs.
extern "C" fn at_end() {
    let mut free = FREE.lock().unwrap_or_else(PoisonError::into_inner);
    for (datapath, options) in free.drain(..) {
        drop(datapath);
        remove(&options);
    }
}

fn remove(options: &Options) {
    // Only this process uses the lock.
    let _ = cleanup(&options.pin_dir, true);
    let _ = fs::remove_dir(&options.pin_dir);
}
