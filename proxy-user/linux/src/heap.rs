// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The heap of this process. Called by `agent` after rare work that uses much memory: a start, a
//! great change.

/// Returns unused heap memory to the kernel. Does nothing with C libraries other than glibc,
/// because they keep no unused memory.
pub fn trim_heap() {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes and returns plain integers; any thread may call it.
    unsafe {
        libc::malloc_trim(0);
    }
}
