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

    fn word<W>(&self, offset: usize) -> &W {
        assert!(
            offset.is_multiple_of(align_of::<W>()) && offset + size_of::<W>() <= self.length,
            "cannot fail because ids are checked against the map's capacity"
        );
        // SAFETY: in bounds and aligned (just checked); the memory lives as long as self; W is one
        // of the atomic integers below, for which shared mutation is fine and every bit pattern
        // valid.
        unsafe { self.start.add(offset).cast().as_ref() }
    }
    /// Makes every byte zero.
    pub fn zero(&self) {
        // SAFETY: the memory is ours for its length, and every bit pattern valid.
        unsafe { self.start.write_bytes(0, self.length) }
    }
    /// Stores 64 bits. A program that sees the new value also sees everything stored before.
    pub fn store_u64(&self, offset: usize, value: u64) {
        self.word::<AtomicU64>(offset)
            .store(value, Ordering::Release);
    }
    /// Sets bits of a 64-bit word; programs may set other bits of it at the same time.
    pub fn set_bits(&self, offset: usize, bits: u64) {
        self.word::<AtomicU64>(offset)
            .fetch_or(bits, Ordering::Release);
    }
    /// Replaces a 64-bit word by `to` if it is `from`; returns the word's previous value.
    pub fn exchange_u64(&self, offset: usize, from: u64, to: u64) -> u64 {
        let word = self.word::<AtomicU64>(offset);
        match word.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire) {
            Ok(before) | Err(before) => before,
        }
    }
    /// Adds to a 32-bit word; programs may add to it at the same time.
    pub fn add_u32(&self, offset: usize, by: u32) {
        self.word::<AtomicU32>(offset)
            .fetch_add(by, Ordering::AcqRel);
    }
    /// Stores 32 bits, with the same order as [`Self::store_u64`].
    pub fn store_u32(&self, offset: usize, value: u32) {
        self.word::<AtomicU32>(offset)
            .store(value, Ordering::Release);
    }
    /// Stores 16 bits, with the same order as [`Self::store_u64`].
    pub fn store_u16(&self, offset: usize, value: u16) {
        self.word::<AtomicU16>(offset)
            .store(value, Ordering::Release);
    }
    /// Loads 32 bits.
    pub fn load_u32(&self, offset: usize) -> u32 {
        self.word::<AtomicU32>(offset).load(Ordering::Relaxed)
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
            *bytes = self.load_u32(offset + 4 * i).to_ne_bytes();
        }
        value
    }
    /// Copies a value into the map, 32 bits at a time; only for elements that no program can reach.
    pub fn store<T: Plain>(&self, offset: usize, value: &T) {
        for (i, word) in value.bytes().chunks_exact(4).enumerate() {
            let mut bytes = [0; 4];
            bytes.copy_from_slice(word);
            self.store_u32(offset + 4 * i, u32::from_ne_bytes(bytes));
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: exactly what mmap returned, and no reference into it outlives self.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.length) };
    }
}
