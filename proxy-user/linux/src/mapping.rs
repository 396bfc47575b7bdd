// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Array maps mapped into this process's memory, shared with the kernel programs. Used by
//! `datapath`.

use std::{
    io,
    os::fd::{AsFd, AsRawFd},
    ptr::NonNull,
    sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering},
};

use super::plain::Plain;

/// A part of an array map, mapped into memory and shared with the kernel. Every access is one whole
/// machine word, so neither side sees a half-written one.
pub struct Mapping {
    start: NonNull<u8>,
    length: usize,
}

/// The machine words by which a mapping is accessed.
///
/// # Safety
/// Implementors must be atomic, and valid for all bytes.
pub unsafe trait Word {}
// SAFETY: an atomic integer.
unsafe impl Word for AtomicU16 {}
// SAFETY: as above.
unsafe impl Word for AtomicU32 {}
// SAFETY: as above.
unsafe impl Word for AtomicU64 {}

// SAFETY: the memory is shared with the kernel anyway and accessed through atomics only.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `length` bytes from `offset`, both multiples of the page size.
    pub fn new(fd: impl AsFd, offset: usize, length: usize) -> io::Result<Self> {
        // SAFETY: a new mapping at an address of the kernel's choosing touches no memory of ours.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                length,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                fd.as_fd().as_raw_fd(),
                offset as libc::off_t,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast()).ok_or_else(|| io::Error::other("mapped at zero"))?;
        Ok(Self { start, length })
    }

    /// Returns the machine word at this offset.
    pub fn word<W: Word>(&self, offset: usize) -> &W {
        assert!(
            offset.is_multiple_of(align_of::<W>()) && offset + size_of::<W>() <= self.length,
            "cannot fail because ids are checked against the map's capacity"
        );
        // SAFETY: in bounds and aligned (just checked); the memory lives as long as self; shared
        // mutation of atomics is fine, and every bit pattern valid.
        unsafe { self.start.add(offset).cast().as_ref() }
    }
    /// Makes every byte zero.
    pub fn zero(&self) {
        // SAFETY: the memory is ours for its length, and every bit pattern valid.
        unsafe { self.start.write_bytes(0, self.length) }
    }
    /// Copies a value out of the map, 32 bits at a time; the value's size must be a multiple of
    /// four bytes.
    pub fn load<T: Plain>(&self, offset: usize) -> T {
        let mut value = T::zeroed();
        let words = size_of::<T>() / 4;
        // SAFETY: T is plain, exclusively borrowed, and as long as `words` words, which need no
        // alignment when written as bytes.
        let bytes = unsafe {
            std::slice::from_raw_parts_mut(std::ptr::from_mut(&mut value).cast::<[u8; 4]>(), words)
        };
        for (i, bytes) in bytes.iter_mut().enumerate() {
            let word: &AtomicU32 = self.word(offset + 4 * i);
            *bytes = word.load(Ordering::Relaxed).to_ne_bytes();
        }
        value
    }
    /// Copies a value into the map, 32 bits at a time; only for elements that no program can reach.
    pub fn store<T: Plain>(&self, offset: usize, value: &T) {
        for (i, word) in value.bytes().chunks_exact(4).enumerate() {
            let mut bytes = [0; 4];
            bytes.copy_from_slice(word);
            let to: &AtomicU32 = self.word(offset + 4 * i);
            to.store(u32::from_ne_bytes(bytes), Ordering::Release);
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: exactly what mmap returned, and no reference into it outlives self.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.length) };
    }
}
