// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Keeps ids of removed elements that programs may still be reading. After a grace period, when no
//! program can be reading them, they go back to the free lists. A thread waits for it, so that no
//! apply has to. Filled by `publish`, emptied by `apply`.

use std::{
    collections::{HashSet, VecDeque},
    io,
    os::fd::{AsFd, AsRawFd},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread::{self, JoinHandle},
};

use linux::{MapKind, create_map, tables::Table};
use proxy_common::{BackendId, Block, RecordId, ServiceId, V4, V6};

use super::{maps::Maps, state::Stored};

/// The ids that one call of `Store::apply` has put out of use.
#[derive(Default)]
pub(super) struct Garbage {
    pub(super) records: [Vec<RecordId>; 2],
    pub(super) backends: [Vec<BackendId>; 2],
    pub(super) blocks: Vec<Block>,
    pub(super) services: Vec<ServiceId>,
}

impl Garbage {
    fn is_empty(&self) -> bool {
        self.records.iter().all(Vec::is_empty)
            && self.backends.iter().all(Vec::is_empty)
            && self.blocks.is_empty()
            && self.services.is_empty()
    }
}

/// The ids that several calls of `Store::apply` have put out of use. Each entry of `waiting` starts
/// with the number of the grace period that must pass first.
pub(super) struct Collector {
    grace: Grace,
    waiting: VecDeque<(u64, Garbage)>,
}

impl Collector {
    pub(super) fn new(grace: Grace) -> Self {
        Self {
            grace,
            waiting: VecDeque::new(),
        }
    }
    /// Adds ids that no element in the maps leads to any more.
    pub(super) fn add(&mut self, garbage: Garbage) {
        if !garbage.is_empty() {
            self.waiting.push_back((self.grace.request(), garbage));
        }
    }
    /// Frees the ids that no program can be reading any more.
    pub(super) fn collect(&mut self, maps: &mut Maps) {
        let completed = self.grace.completed();
        while let Some((_, garbage)) = self
            .waiting
            .pop_front_if(|(number, _)| *number <= completed)
        {
            free::<V4>(maps, &garbage);
            free::<V6>(maps, &garbage);
            for block in garbage.blocks {
                maps.blocks.release(block);
            }
            for id in &garbage.services {
                maps.service_ids.release(id.0);
            }
            if !garbage.services.is_empty() {
                // An element that could not be removed takes memory until the next agent starts.
                let services: HashSet<_> = garbage.services.into_iter().collect();
                let _ = maps.refused.forget(|id| services.contains(&id));
            }
        }
    }
    /// Waits until all waiting ids are free; false if there were none or the wait failed.
    pub(super) fn collect_all(&mut self, maps: &mut Maps) -> bool {
        let Some((number, _)) = self.waiting.back() else {
            return false;
        };
        let waited = self.grace.wait(*number);
        self.collect(maps);
        waited
    }
}

fn free<A: Stored>(maps: &mut Maps, garbage: &Garbage) {
    let maps = A::maps_mut(maps);
    for id in &garbage.records[A::AT] {
        maps.record_ids.release(id.0);
    }
    for id in &garbage.backends[A::AT] {
        maps.disown_backend(*id);
        maps.backend_ids.release(id.0);
    }
}

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
