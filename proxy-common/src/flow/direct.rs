// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is remembered of a connection past every service: a fingerprint of its tuple, and how often its SYN has come.

/// An element of the map `direct`: 0, or a fingerprint without its lowest two bits, which count repetitions of the SYN.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(transparent)]
pub struct Seen(pub u32);

impl Seen {
    const COUNT: u32 = 3;

    /// Whether it is the tuple with this fingerprint.
    #[inline(always)]
    pub const fn is_of(self, fingerprint: u32) -> bool {
        self.0 != 0 && self.0 & !Self::COUNT == fingerprint & !Self::COUNT
    }
    /// How often the SYN has been repeated, at most three times.
    #[inline(always)]
    pub const fn repetitions(self) -> u32 {
        self.0 & Self::COUNT
    }
    /// The element after a SYN of the tuple with this fingerprint.
    #[inline(always)]
    #[must_use]
    pub const fn again(self, fingerprint: u32) -> Self {
        if !self.is_of(fingerprint) {
            return Self(fingerprint & !Self::COUNT);
        }
        if self.repetitions() == Self::COUNT {
            self
        } else {
            Self(self.0 + 1)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repetitions_are_counted_until_another_tuple_comes() {
        let (one, other) = (0x1234_5677, 0x7654_3211);
        let mut seen = Seen::default().again(one);
        for repetitions in [0, 1, 2, 3, 3] {
            assert!(seen.is_of(one) && !seen.is_of(other));
            assert_eq!(seen.repetitions(), repetitions);
            seen = seen.again(one);
        }
        seen = seen.again(other);
        assert!(seen.is_of(other) && !seen.is_of(one));
        assert_eq!(seen.repetitions(), 0);
        assert!(!Seen::default().is_of(1));
    }
}
