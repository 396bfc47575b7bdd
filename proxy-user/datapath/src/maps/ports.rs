// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The port filter (map `ports`): a few bits for each port, which programs read before any other
//! map. Used by `store`.

use std::{io, os::fd::OwnedFd};

use proxy_common::{Port, ports};

use super::arrays::MappedArray;

/// The port filter. The kernel programs also set bits in it.
pub(crate) struct PortFilter(MappedArray<u64>);

impl PortFilter {
    /// Wraps the map and maps all of it into memory.
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
