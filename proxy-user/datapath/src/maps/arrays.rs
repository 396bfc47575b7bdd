// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Arrays whose elements are read and written through memory mappings. A window of elements is
//! mapped when it is first needed: the kernel would map all pages at once, and most of a large
//! array is never used. Used by `flows`, `store`, `sweep` and `succession`.

use std::{
    cell::OnceCell,
    io,
    marker::PhantomData,
    os::fd::{AsFd, OwnedFd},
    sync::atomic::{
        AtomicU16, AtomicU32, AtomicU64,
        Ordering::{AcqRel, Acquire, Release},
    },
};

use linux::{Mapping, Plain, Word, map_info};
use proxy_common::{Port, ports};

/// Elements per window. Elements are padded to eight bytes, so a multiple of 512 of them fills
/// pages completely.
pub(super) const WINDOW: u32 = 2048;
const PAGE: usize = 4096;

/// A memory-mapped BPF array of `T`.
pub struct MappedArray<T> {
    fd: OwnedFd,
    capacity: u32,
    stride: usize,
    windows: Vec<OnceCell<Mapping>>,
    types: PhantomData<fn() -> T>,
}

impl<T: Plain> MappedArray<T> {
    /// Wraps a memory-mappable array of `T`s. Its shape must have been checked.
    pub fn new(fd: OwnedFd) -> io::Result<Self> {
        let info = map_info(&fd)?;
        assert_eq!(
            info.value_size as usize,
            size_of::<T>(),
            "cannot fail because maps are checked against their types before they are used"
        );
        let windows = info.max_entries.div_ceil(WINDOW) as usize;
        Ok(Self {
            fd,
            capacity: info.max_entries,
            stride: size_of::<T>().next_multiple_of(8),
            windows: std::iter::repeat_with(OnceCell::new)
                .take(windows)
                .collect(),
            types: PhantomData,
        })
    }
    pub fn capacity(&self) -> u32 {
        self.capacity
    }
    /// Returns the same array with nothing mapped.
    pub(super) fn unmapped(&self) -> io::Result<Self> {
        Self::new(self.fd.try_clone()?)
    }

    fn map_window(&self, window: u32) -> io::Result<Mapping> {
        let elements = WINDOW.min(self.capacity - window * WINDOW) as usize;
        let length = (elements * self.stride).next_multiple_of(PAGE);
        Mapping::new(
            self.fd.as_fd(),
            window as usize * WINDOW as usize * self.stride,
            length,
        )
    }
    /// Maps those windows into memory that contain `count` elements from `first` on. Must be called
    /// before the first load or store of such an element.
    pub fn ensure(&self, first: u32, count: u32) -> io::Result<()> {
        if count == 0 {
            return Ok(());
        }
        for window in first / WINDOW..=(first + count - 1) / WINDOW {
            let cell = &self.windows[window as usize];
            if cell.get().is_none() {
                let mapping = self.map_window(window)?;
                let _ = cell.set(mapping);
            }
        }
        Ok(())
    }
    fn locate(&self, index: u32) -> (&Mapping, usize) {
        let mapping = self
            .windows
            .get((index / WINDOW) as usize)
            .and_then(OnceCell::get)
            .expect("cannot fail because an index is ensured before it is handed out");
        (mapping, (index % WINDOW) as usize * self.stride)
    }
    fn word<W: Word>(&self, index: u32, field: usize) -> &W {
        let (mapping, offset) = self.locate(index);
        mapping.word(offset + field)
    }
    /// Copies an element.
    pub fn load(&self, index: u32) -> T {
        let (mapping, offset) = self.locate(index);
        mapping.load(offset)
    }
    /// Writes an element that no program can reach.
    pub fn store(&self, index: u32, value: &T) {
        self.store_at(index, 0, value);
    }
    /// Stores one 64-bit field of an element that programs may be reading, as a whole. `field` is
    /// its offset in bytes. A program that sees the new value also sees everything stored before.
    pub fn store_u64(&self, index: u32, field: usize, value: u64) {
        self.word::<AtomicU64>(index, field).store(value, Release);
    }
    /// Sets bits of an element of 64 bits in which programs also set bits.
    pub fn set_bits(&self, index: u32, bits: u64) {
        self.word::<AtomicU64>(index, 0).fetch_or(bits, Release);
    }
    /// Like [`Self::store_u64`], for 32 bits.
    pub fn store_u32(&self, index: u32, field: usize, value: u32) {
        self.word::<AtomicU32>(index, field).store(value, Release);
    }
    /// Like [`Self::store_u64`], for 16 bits.
    pub fn store_u16(&self, index: u32, field: usize, value: u16) {
        self.word::<AtomicU16>(index, field).store(value, Release);
    }
    /// Replaces the 64-bit field at offset `field` by `to` if its value is `from`. Returns its old
    /// value.
    pub fn exchange_u64(&self, index: u32, field: usize, from: u64, to: u64) -> u64 {
        let word: &AtomicU64 = self.word(index, field);
        let (Ok(before) | Err(before)) = word.compare_exchange(from, to, AcqRel, Acquire);
        before
    }
    /// Like [`Self::exchange_u64`], for 32 bits.
    pub fn exchange_u32(&self, index: u32, field: usize, from: u32, to: u32) -> u32 {
        let word: &AtomicU32 = self.word(index, field);
        let (Ok(before) | Err(before)) = word.compare_exchange(from, to, AcqRel, Acquire);
        before
    }
    /// Adds to the 32-bit field at offset `field`, to which programs may be adding as well.
    pub fn add_u32(&self, index: u32, field: usize, by: u32) {
        self.word::<AtomicU32>(index, field).fetch_add(by, AcqRel);
    }
    /// Writes a part of an element, at offset `field`. Readers must be able to detect half-written
    /// values.
    pub fn store_at<P: Plain>(&self, index: u32, field: usize, part: &P) {
        let (mapping, offset) = self.locate(index);
        mapping.store(offset + field, part);
    }
    /// Calls `wants` with every index and element. A window stays mapped if `wants` returns true
    /// for one of its elements.
    pub fn scan(&self, mut wants: impl FnMut(u32, T) -> bool) -> io::Result<()> {
        for window in 0..self.windows() {
            let mapping = self.map_window(window)?;
            let mut wanted = false;
            for (index, offset) in self.offsets(window) {
                wanted |= wants(index, mapping.load(offset));
            }
            if wanted {
                let _ = self.windows[window as usize].set(mapping);
            }
        }
        Ok(())
    }
    pub fn windows(&self) -> u32 {
        self.windows.len() as u32
    }
    /// Calls `visit` with those elements of a window whose first 64 bits are not all zero. The
    /// window does not stay mapped.
    pub fn scan_window(&self, window: u32, mut visit: impl FnMut(T)) -> io::Result<()> {
        let mapping = self.map_window(window)?;
        for (_, offset) in self.offsets(window) {
            if mapping.load::<u64>(offset) != 0 {
                visit(mapping.load(offset));
            }
        }
        Ok(())
    }
    /// Returns the index of each element of a window, and the element's offset in the window in
    /// bytes.
    fn offsets(&self, window: u32) -> impl Iterator<Item = (u32, usize)> {
        let (first, stride) = (window * WINDOW, self.stride);
        (0..WINDOW.min(self.capacity - first)).map(move |i| (first + i, i as usize * stride))
    }
}

/// The port filter (map `ports`): a few bits for each port, which programs read before any other
/// map. They also set bits in it.
pub(crate) struct PortFilter(MappedArray<u64>);

impl PortFilter {
    pub(crate) fn new(fd: OwnedFd) -> io::Result<Self> {
        let words = MappedArray::new(fd)?;
        words.ensure(0, ports::WORDS)?;
        Ok(Self(words))
    }
    /// Sets bits of a port. Must be called before an entry that needs these bits is added to
    /// another map. Returns the number of words written: 0 if the bits were set already, else 1.
    pub(crate) fn announce(&self, port: Port, bits: u64) -> usize {
        let port = port.host();
        let at = ports::word_of(port);
        let wanted = ports::in_word(bits, port);
        if self.0.load(at) & wanted == wanted {
            return 0;
        }
        self.0.set_bits(at, wanted);
        1
    }
    /// Sets these bits in the element with index `word`. They come from the port filter of another
    /// generation.
    pub(crate) fn merge(&self, word: u32, bits: u64) {
        if word < ports::WORDS && self.0.load(word) & bits != bits {
            self.0.set_bits(word, bits);
        }
    }
}
