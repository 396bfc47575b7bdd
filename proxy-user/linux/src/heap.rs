// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The heap of this process. Called by `agent` after work that comes once or seldom: a start, a
//! great change.

/// Returns unused heap to the kernel. Does nothing with a C library other than glibc, which keeps
/// none.
pub fn trim_heap() {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes and returns plain integers; any thread may call it.
    unsafe {
        libc::malloc_trim(0);
    }
}
