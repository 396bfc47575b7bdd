// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which routes refer to an object.

use std::{
    collections::{BTreeSet, HashMap},
    hash::Hash,
};

/// For each object, who refers to it.
#[derive(Debug)]
pub(super) struct Index<K, V>(HashMap<K, BTreeSet<V>>);

impl<K, V> Default for Index<K, V> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<K: Hash + Eq + Clone, V: Ord + Clone> Index<K, V> {
    /// Sets whether `from` refers to `to`.
    pub(super) fn set(&mut self, to: &K, from: &V, does: bool) {
        let all = self.0.entry(to.clone()).or_default();
        if does {
            all.insert(from.clone());
        } else {
            all.remove(from);
        }
        if all.is_empty() {
            self.0.remove(to);
        }
    }
    pub(super) fn of(&self, to: &K) -> impl Iterator<Item = &V> {
        self.0.get(to).into_iter().flatten()
    }
}
