// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The port filter (map `ports`): a few bits per port, which programs read before any other map. Used by `store` and
//! `sweep`.

use std::{collections::HashSet, io, os::fd::OwnedFd};

use proxy_common::{Port, ports};

use super::arrays::MappedArray;

/// The port filter. The kernel programs set bits of it as well.
pub(crate) struct PortFilter(MappedArray<u64>);

impl PortFilter {
    /// Wraps the map and makes all of it accessible.
    pub(crate) fn new(fd: OwnedFd) -> io::Result<Self> {
        let words = MappedArray::new(fd)?;
        words.ensure(0, ports::WORDS)?;
        Ok(Self(words))
    }
    /// Sets bits of a port; must come before anything that they announce. Returns how many words were written.
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
    /// Sets bits of a word: those of another generation's filter.
    pub(crate) fn merge(&self, word: u32, bits: u64) {
        if word < ports::WORDS && self.0.load(word) & bits != bits {
            self.0.set_bits(word, bits);
        }
    }
    /// Clears a port's mark: no socket is connected to a backend there that has gone.
    pub(crate) fn clear_stale(&self, port: u16) {
        let bits = ports::in_word(ports::STALE, port);
        self.0.clear_bits(ports::word_of(port), bits);
    }
    /// Ports that are marked as stale.
    pub(crate) fn stale(&self) -> HashSet<u16> {
        let mut stale = HashSet::new();
        for word in 0..ports::WORDS {
            let bits = self.0.load(word);
            if bits & ports::STALE_IN_ANY == 0 {
                continue;
            }
            let first = ports::first_of(word);
            let of_word = first..=first + (ports::PER_WORD - 1) as u16;
            stale.extend(of_word.filter(|port| ports::bits(bits, *port) & ports::STALE != 0));
        }
        stale
    }
}
