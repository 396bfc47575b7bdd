// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Waits for grace periods. When one has passed since an element became unreachable, no program can
//! still be reading it. A thread does the waiting, so that no apply has to. Used by `garbage`.

use std::{
    io,
    os::fd::{AsFd, AsRawFd},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread::{self, JoinHandle},
};

use linux::{MapKind, create_map, tables::Table};

#[derive(Default)]
struct Epochs {
    requested: u64,
    completed: u64,
    failed: bool,
    stop: bool,
}

#[derive(Default)]
struct Shared {
    epochs: Mutex<Epochs>,
    changed: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Epochs> {
        self.epochs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Numbered grace periods. Ids that became unreachable before a call of [`Grace::request`], which
/// returned `n`, may be reused once [`Grace::completed`] returns at least `n`.
pub(super) struct Grace {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Grace {
    /// Starts the thread that waits.
    pub(super) fn new() -> io::Result<Self> {
        // An update of a map of maps returns only after every running program has ended
        // (maybe_wait_bpf_programs in kernel/bpf/syscall.c).
        let inner = create_map(MapKind::Array, 4, 4, 1, 0, None)?;
        let outer = create_map(MapKind::ArrayOfMaps, 4, 4, 1, 0, Some(inner.as_fd()))?;
        let outer: Table<u32, u32> = Table::new(outer)?;
        let wait = move || outer.update(&0, &(inner.as_raw_fd() as u32));
        wait()?;
        let shared = Arc::new(Shared::default());
        let theirs = Arc::clone(&shared);
        let thread = thread::Builder::new()
            .name("grace".into())
            .stack_size(64 * 1024)
            .spawn(move || run(&theirs, wait))?;
        Ok(Self {
            shared,
            thread: Some(thread),
        })
    }
    /// Requests a grace period that begins now or later, and returns its number.
    pub(super) fn request(&self) -> u64 {
        let mut epochs = self.shared.lock();
        epochs.requested += 1;
        self.shared.changed.notify_all();
        epochs.requested
    }
    /// Returns the number of the newest grace period that has passed.
    pub(super) fn completed(&self) -> u64 {
        self.shared.lock().completed
    }
    /// Waits until the grace period with this number has passed; false if the kernel cannot wait.
    pub(super) fn wait(&self, number: u64) -> bool {
        let mut epochs = self.shared.lock();
        while epochs.completed < number && !epochs.failed {
            epochs = self
                .shared
                .changed
                .wait(epochs)
                .unwrap_or_else(PoisonError::into_inner);
        }
        epochs.completed >= number
    }
}

fn run(shared: &Shared, wait: impl Fn() -> io::Result<()>) {
    let mut epochs = shared.lock();
    loop {
        if epochs.completed < epochs.requested {
            let number = epochs.requested;
            drop(epochs);
            let waited = wait();
            epochs = shared.lock();
            match waited {
                Ok(()) => epochs.completed = number,
                // From now on no id is reused. That costs capacity, but causes no errors.
                Err(error) => {
                    tracing::error!(
                        "cannot wait for the kernel programs to end: {error}; ids are not reused any more, restart the agent"
                    );
                    epochs.failed = true;
                }
            }
            shared.changed.notify_all();
            if epochs.failed {
                return;
            }
        } else if epochs.stop {
            return;
        } else {
            epochs = shared
                .changed
                .wait(epochs)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Drop for Grace {
    fn drop(&mut self) {
        self.shared.lock().stop = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
