// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The lab: simulated nodes, servers, clients and load for tests, benchmarks and the demo. It uses
//! portolan as an operator does: by its program, its settings and its pinned maps.
//!
//! The module `node` builds a node and runs the agent on it. `traffic` sends connections through
//! it. `cases` runs the cases of conformance/FORMAT.md. `load` measures. `attacks` tests what a
//! node under attack still serves.

pub mod attacks;
pub mod bpf;
pub mod broken;
pub mod cases;
pub mod interrupt;
pub mod load;
pub mod node;
pub mod random;
pub mod traffic;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex, whatever became of the threads that locked it before.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
