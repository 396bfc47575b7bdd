// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The allocator's hold on memory.

/// Gives memory that is free back to the kernel: loading the programs and reading a cluster's objects leave megabytes
/// that glibc would keep. Other allocators do as they please.
pub fn give_back_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes no pointer and is safe to call from any thread at any time.
    unsafe {
        libc::malloc_trim(0);
    }
}
