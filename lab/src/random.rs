// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Random numbers that are the same for a seed on every machine, and a seed for today.

use std::{env, time::UNIX_EPOCH};

/// Returns the number in an environment variable; None if the variable is not set.
pub fn number(variable: &str) -> Option<u64> {
    let text = env::var(variable).ok()?;
    Some(
        text.parse()
            .unwrap_or_else(|_| panic!("{variable}={text} is no number")),
    )
}

/// Returns today's seed: the number of days since 1970.
pub fn of_today() -> u64 {
    let since = UNIX_EPOCH.elapsed().expect("a clock after 1970");
    since.as_secs() / 86_400
}

/// A generator of random numbers: splitmix64.
#[derive(Clone)]
pub struct Random(u64);

impl Random {
    /// Makes a generator. The same seed gives the same numbers.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }
    /// Returns any number.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    /// Returns a number from 0 to `n` - 1.
    pub fn below(&mut self, n: u64) -> u64 {
        self.draw() % n
    }
    /// Returns true in one of `n` calls on average.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
    /// Returns one of the elements.
    pub fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize].clone()
    }
}
