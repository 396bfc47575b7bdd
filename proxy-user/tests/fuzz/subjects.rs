// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The three nodes on which sequences run.

use crate::{kept::Sequence, operations::Operation, subject::Subject};

/// The entries in a flow table; each ring has an eighth of that.
const FLOWS: u32 = 1024;
/// The entries in a flow table of the node whose tables are full soon.
const TIGHT_FLOWS: u32 = 64;

/// A node with large tables, one with small tables, and one that redirects packets past the stack.
pub(crate) struct Subjects {
    wide: Subject,
    tight: Subject,
    past: Subject,
}

impl Subjects {
    /// Opens the three nodes. Panics without root: a test must not be skipped.
    pub(crate) fn open() -> Self {
        Self {
            wide: Subject::open(FLOWS, false),
            tight: Subject::open(TIGHT_FLOWS, false),
            past: Subject::open(FLOWS, true),
        }
    }
    /// Returns the node for a sequence, which its first operation determines.
    pub(crate) fn of(&mut self, sequence: &Sequence<Operation>) -> &mut Subject {
        match sequence.0.first() {
            Some(Operation::Tight) => &mut self.tight,
            Some(Operation::Past(_)) => &mut self.past,
            _ => &mut self.wide,
        }
    }
}
