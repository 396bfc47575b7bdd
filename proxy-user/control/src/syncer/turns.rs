// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Chooses the services that a sync applies when there are many: essential ones first, and new
//! changes before services that wait. Kept by `syncer`.

use std::collections::BTreeSet;

use crate::object::ObjectName;

/// The most services that one sync applies, so a new change waits for at most that many.
pub const LENGTH: usize = 256;

/// Returns the key by which services are ordered: essential ones come first.
fn order(name: ObjectName) -> (bool, ObjectName) {
    (!name.is_essential(), name)
}

/// Sorts services in the order of their turns.
pub(super) fn ordered(names: impl IntoIterator<Item = ObjectName>) -> Vec<ObjectName> {
    let mut names = Vec::from_iter(names);
    names.sort_unstable_by(|a, b| (!a.is_essential(), a).cmp(&(!b.is_essential(), b)));
    names
}

/// The services that wait for their turn.
#[derive(Debug, Default)]
pub(super) struct Turns {
    waiting: BTreeSet<(bool, ObjectName)>,
}

impl Turns {
    /// Whether any service waits.
    pub(super) fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }
    /// Returns the services to apply now, in order: the changed ones if they are few, then waiting
    /// ones, up to [`LENGTH`] services.
    pub(super) fn take(&mut self, changed: Vec<ObjectName>) -> Vec<ObjectName> {
        let mut turn = changed;
        if turn.len() > LENGTH {
            self.waiting.extend(turn.drain(..).map(order));
        } else if self.is_waiting() {
            for name in &turn {
                self.waiting.remove(&order(name.clone()));
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
