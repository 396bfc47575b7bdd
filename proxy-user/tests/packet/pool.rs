// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Loaded programs that tests use in turn, each test with emptied maps: the kernel verifies them
//! for more than a second, and in a virtual machine for twelve. `world` uses this.

use std::{
    sync::{Mutex, Once, PoisonError},
    thread,
};

use datapath::{Datapath, Options};
use lab::node::bpffs::{self, PinDir};

static FREE: Mutex<Vec<Loaded>> = Mutex::new(Vec::new());

/// A datapath, its options, and its pin directory, which goes with it.
pub(crate) struct Loaded {
    pub(crate) datapath: Datapath,
    pub(crate) options: Options,
    _pins: PinDir,
}

/// A datapath with empty maps, and these options but for the pin directory. Panics without
/// privilege: a test must not be skipped.
pub(crate) fn take(options: Options) -> Loaded {
    let fits = |held: &Loaded| {
        let pin_dir = held.options.pin_dir.clone();
        let options = options.clone();
        held.options == Options { pin_dir, ..options }
    };
    let found = {
        let mut free = FREE.lock().unwrap_or_else(PoisonError::into_inner);
        let place = free.iter().position(fits);
        place.map(|place| free.swap_remove(place))
    };
    if let Some(found) = found {
        let emptied = found.datapath.start_over(&found.options);
        let datapath = emptied.expect("maps are emptied");
        return Loaded { datapath, ..found };
    }
    bpffs::prepare().expect("a BPF file system: the tests need root");
    let pins = PinDir::new();
    let options = Options {
        pin_dir: pins.path().to_owned(),
        ..options
    };
    let datapath = Datapath::open(&options).unwrap_or_else(|error| panic!("{error}: run as root"));
    Loaded {
        datapath,
        options,
        _pins: pins,
    }
}

/// Keeps a datapath for the next test; after a failed test, removes it instead.
pub(crate) fn give_back(loaded: Loaded) {
    static AT_END: Once = Once::new();
    if thread::panicking() {
        return;
    }
    // SAFETY: the function lives as long as the process.
    AT_END.call_once(|| _ = unsafe { libc::atexit(at_end) });
    let mut free = FREE.lock().unwrap_or_else(PoisonError::into_inner);
    free.push(loaded);
}

/// Removes all datapaths: at the end of a test program no `Drop` runs.
extern "C" fn at_end() {
    let mut free = FREE.lock().unwrap_or_else(PoisonError::into_inner);
    free.clear();
}
