// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Prints a line for each step of `cargo xtask setup`, with the seconds since its start.

use std::time::Instant;

pub(crate) struct Progress {
    start: Instant,
}

impl Progress {
    pub(crate) fn start() -> Self {
        Self {
            start: Instant::now(),
        }
    }

    pub(crate) fn step(&self, text: &str) {
        eprintln!(
            "setup [{:6.1} s] {text}",
            self.start.elapsed().as_secs_f64()
        );
    }
}
