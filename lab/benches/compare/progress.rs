// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Prints the current measurement and the remaining time.

use std::time::Instant;

use crate::plan::Cell;

/// The cells that remain to be measured and their time, estimated from the cells that are done.
pub(crate) struct Left {
    number: usize,
    all: usize,
    expected: f64,
    expected_done: f64,
    begin: Instant,
}

impl Left {
    pub(crate) fn new(todo: &[&Cell]) -> Self {
        Self {
            number: 0,
            all: todo.len(),
            expected: todo.iter().map(|cell| cell.expected()).sum(),
            expected_done: 0.0,
            begin: Instant::now(),
        }
    }
    pub(crate) fn say(&mut self, cell: &Cell) {
        self.number += 1;
        let pace = if self.expected_done > 0.0 {
            self.begin.elapsed().as_secs_f64() / self.expected_done
        } else {
            1.0
        };
        let minutes = (self.expected - self.expected_done) * pace / 60.0;
        println!(
            "{:>3} of {}: {}, {} services, {} node; about {minutes:.0} min left",
            self.number,
            self.all,
            cell.proxy.name(),
            cell.services,
            cell.setup.name(),
        );
    }
    pub(crate) fn done(&mut self, cell: &Cell) {
        self.expected_done += cell.expected();
    }
}
