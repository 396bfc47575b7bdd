// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which services a sync applies, when there are many: a turn of them, essential ones first, and
//! new changes before those that wait. Kept by `syncer`.

use std::collections::BTreeSet;

use crate::object::ObjectName;

/// How many services a sync applies: a new change waits for so many at most.
pub const LENGTH: usize = 256;

/// Which services come first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Urgency {
    Essential,
    Other,
}

impl Urgency {
    fn of(name: &ObjectName) -> Self {
        if name.is_essential() {
            Self::Essential
        } else {
            Self::Other
        }
    }
}

/// Services in the order of their turns.
pub(super) fn ordered(names: impl IntoIterator<Item = ObjectName>) -> Vec<ObjectName> {
    let mut names = Vec::from_iter(names);
    names.sort_unstable_by(|a, b| (Urgency::of(a), a).cmp(&(Urgency::of(b), b)));
    names
}

/// The services that wait for their turn.
#[derive(Debug, Default)]
pub(super) struct Turns {
    waiting: BTreeSet<(Urgency, ObjectName)>,
}

impl Turns {
    /// Whether any wait.
    pub(super) fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }
    /// The services to apply now, in order: the changed ones if they are few, and as many of those
    /// that wait as there is time for.
    pub(super) fn take(&mut self, changed: Vec<ObjectName>) -> Vec<ObjectName> {
        let mut turn = changed;
        if turn.len() > LENGTH {
            let many = turn.drain(..).map(|name| (Urgency::of(&name), name));
            self.waiting.extend(many);
        } else if self.is_waiting() {
            for name in &turn {
                self.waiting.remove(&(Urgency::of(name), name.clone()));
            }
        }
        while turn.len() < LENGTH
            && let Some((_, name)) = self.waiting.pop_first()
        {
            turn.push(name);
        }
        ordered(turn)
    }
}
