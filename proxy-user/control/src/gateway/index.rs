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

impl<K: Hash + Eq, V: Ord> Index<K, V> {
    pub(super) fn add(&mut self, to: K, from: V) {
        self.0.entry(to).or_default().insert(from);
    }
    pub(super) fn remove(&mut self, to: &K, from: &V) {
        if let Some(all) = self.0.get_mut(to) {
            all.remove(from);
            if all.is_empty() {
                self.0.remove(to);
            }
        }
    }
    pub(super) fn of(&self, to: &K) -> impl Iterator<Item = &V> {
        self.0.get(to).into_iter().flatten()
    }
}
