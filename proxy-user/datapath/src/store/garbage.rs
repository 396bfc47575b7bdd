// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Keeps ids of removed elements that programs may still be reading. After a grace period, when no
//! program can be reading them, they go back to the free lists. A thread waits for it, so that no
//! apply has to. Filled by `publish`, emptied by `apply`.

use std::{
    collections::{HashSet, VecDeque},
    io,
    os::fd::{AsFd, AsRawFd},
    sync::mpsc,
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

/// Numbered grace periods. Ids that became unreachable before a call of [`Grace::request`], which
/// returned `n`, may be reused once [`Grace::completed`] returns at least `n`.
pub(super) struct Grace {
    requested: u64,
    completed: u64,
    /// The numbers of requested grace periods, to the thread that waits, which ends without it.
    requests: Option<mpsc::Sender<u64>>,
    /// The numbers of grace periods that have passed.
    passed: mpsc::Receiver<u64>,
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
        let (requests, requested) = mpsc::channel();
        let (passes, passed) = mpsc::channel();
        let thread = thread::Builder::new()
            .name("grace".into())
            .stack_size(64 * 1024)
            .spawn(move || run(&requested, &passes, wait))?;
        Ok(Self {
            requested: 0,
            completed: 0,
            requests: Some(requests),
            passed,
            thread: Some(thread),
        })
    }
    /// Requests a grace period that begins now or later, and returns its number.
    pub(super) fn request(&mut self) -> u64 {
        self.requested += 1;
        if let Some(requests) = &self.requests {
            // The thread has ended if the kernel cannot wait.
            _ = requests.send(self.requested);
        }
        self.requested
    }
    /// Returns the number of the newest grace period that has passed.
    pub(super) fn completed(&mut self) -> u64 {
        self.completed = self.passed.try_iter().last().unwrap_or(self.completed);
        self.completed
    }
    /// Waits until the grace period with this number has passed; false if the kernel cannot wait.
    pub(super) fn wait(&mut self, number: u64) -> bool {
        while self.completed < number {
            match self.passed.recv() {
                Ok(passed) => self.completed = passed,
                Err(_) => return false,
            }
        }
        true
    }
}

fn run(
    requested: &mpsc::Receiver<u64>,
    passes: &mpsc::Sender<u64>,
    wait: impl Fn() -> io::Result<()>,
) {
    while let Ok(first) = requested.recv() {
        // One grace period is enough for all that have been requested before it.
        let number = requested.try_iter().last().unwrap_or(first);
        if let Err(error) = wait() {
            // From now on no id is reused. That costs capacity, but causes no errors.
            tracing::error!(
                "cannot wait for the kernel programs to end: {error}; ids are not reused any more, restart the agent"
            );
            return;
        }
        // Nobody receives it while the agent ends.
        _ = passes.send(number);
    }
}

impl Drop for Grace {
    fn drop(&mut self) {
        self.requests = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
