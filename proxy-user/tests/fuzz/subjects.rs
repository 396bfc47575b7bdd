// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The nodes that sequences run on.

use crate::{kept::Sequence, operations::Operation, subject::Subject};

/// Entries of a flow table; a ring has an eighth.
const FLOWS: u32 = 1024;
/// The same of a node whose tables are full soon.
const TIGHT_FLOWS: u32 = 64;

/// Nodes with large tables, with small ones, and one that sends packets past the stack.
pub(crate) struct Subjects {
    wide: Subject,
    tight: Subject,
    past: Subject,
}

impl Subjects {
    /// Opens them. Fails, not skips, without privilege.
    pub(crate) fn open() -> Self {
        Self {
            wide: Subject::open(FLOWS, false),
            tight: Subject::open(TIGHT_FLOWS, false),
            past: Subject::open(FLOWS, true),
        }
    }
    /// The node that a sequence is for.
    pub(crate) fn of(&mut self, sequence: &Sequence<Operation>) -> &mut Subject {
        match sequence.0.first() {
            Some(Operation::Tight) => &mut self.tight,
            Some(Operation::Past(_)) => &mut self.past,
            _ => &mut self.wide,
        }
    }
}
