// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The nodes on which sequences run.

use crate::{kept::Sequence, operations::Operation, subject::Subject};

/// The number of entries in a flow table; a ring has an eighth of it.
const FLOWS: u32 = 1024;
/// The number of entries on a node whose tables fill soon.
const TIGHT_FLOWS: u32 = 64;

/// A node with large tables, one with small tables, and one that redirects packets past the stack.
pub(crate) struct Subjects {
    wide: Subject,
    tight: Subject,
    past: Subject,
}

impl Subjects {
    /// Opens the nodes. Panics without privilege: a test must not be skipped.
    pub(crate) fn open() -> Self {
        Self {
            wide: Subject::open(FLOWS, false),
            tight: Subject::open(TIGHT_FLOWS, false),
            past: Subject::open(FLOWS, true),
        }
    }
    /// The node for a sequence.
    pub(crate) fn of(&mut self, sequence: &Sequence<Operation>) -> &mut Subject {
        match sequence.0.first() {
            Some(Operation::Tight) => &mut self.tight,
            Some(Operation::Past(_)) => &mut self.past,
            _ => &mut self.wide,
        }
    }
}
