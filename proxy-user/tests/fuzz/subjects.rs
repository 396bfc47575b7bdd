// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The nodes that sequences run on.

use crate::{kept::Sequence, operations::Operation, subject::Subject};

/// Entries of a flow table; a ring has an eighth.
const FLOWS: u32 = 1024;
/// The same of a node whose tables are full soon.
const TIGHT_FLOWS: u32 = 64;

/// Two nodes, with large tables and with small ones.
pub(crate) struct Subjects {
    wide: Subject,
    tight: Subject,
}

impl Subjects {
    /// Opens both. Fails, not skips, without privilege.
    pub(crate) fn open() -> Self {
        Self {
            wide: Subject::open(FLOWS),
            tight: Subject::open(TIGHT_FLOWS),
        }
    }
    /// The node that a sequence is for.
    pub(crate) fn of(&mut self, sequence: &Sequence<Operation>) -> &mut Subject {
        match sequence.0.first() {
            Some(Operation::Tight) => &mut self.tight,
            _ => &mut self.wide,
        }
    }
}
