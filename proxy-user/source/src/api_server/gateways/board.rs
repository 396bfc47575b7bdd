// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is to be written to the API server about objects of the Gateway API. Filled by the syncer
//! of every agent, and emptied when the objects are as they should be: whoever wrote it, the watch
//! says so. The agent with the lease works on it.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Mutex, MutexGuard, PoisonError},
};

use control::{
    gateway::{Write, Writer},
    model::ObjectKey,
};
use tokio::sync::Notify;

/// The writes that are wanted.
#[derive(Debug, Default)]
pub(crate) struct Board {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct State {
    wanted: BTreeMap<ObjectKey, Write>,
    /// Those that have not been tried since they were last set.
    untried: BTreeSet<ObjectKey>,
    /// Those that could not be written, until their pause is over, whatever they are set to.
    paused: BTreeSet<ObjectKey>,
}

impl Board {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
    /// Waits until something is wanted.
    pub(super) async fn filled(&self) {
        while self.state().wanted.is_empty() {
            self.changed.notified().await;
        }
    }
    /// Waits until something has not been tried.
    pub(super) async fn has_untried(&self) {
        while self.state().untried.is_empty() {
            self.changed.notified().await;
        }
    }
    pub(super) fn is_empty(&self) -> bool {
        self.state().wanted.is_empty()
    }
    /// Returns one object about which something is wanted.
    pub(super) fn first(&self) -> Option<ObjectKey> {
        self.state().wanted.keys().next().cloned()
    }
    pub(super) fn wants(&self, object: &ObjectKey) -> bool {
        self.state().wanted.contains_key(object)
    }
    /// Lets everything that is wanted be tried again.
    pub(super) fn try_all(&self) {
        let mut state = self.state();
        state.untried = state.wanted.keys().cloned().collect();
        state.paused.clear();
    }
    /// Takes up to `count` writes that have not been tried.
    pub(super) fn take(&self, count: usize) -> Vec<(ObjectKey, Write)> {
        let mut state = self.state();
        let taken = std::iter::from_fn(|| {
            let key = state.untried.pop_first()?;
            Some((state.wanted.get(&key).cloned(), key))
        });
        let some = taken.filter_map(|(write, key)| Some((key, write?)));
        some.take(count).collect()
    }
    /// Notes that an object could not be written, and is to be tried again after a pause.
    pub(super) fn pause(&self, object: &ObjectKey) {
        self.state().paused.insert(object.clone());
    }
    /// Lets a write be tried again, if it is still wanted.
    pub(super) fn put_back(&self, object: ObjectKey) {
        let mut state = self.state();
        state.paused.remove(&object);
        if state.wanted.contains_key(&object) {
            state.untried.insert(object);
            self.changed.notify_one();
        }
    }
}

impl Writer for Board {
    fn set(&self, object: ObjectKey, write: Option<Write>) {
        let mut state = self.state();
        match write {
            Some(write) => {
                if !state.paused.contains(&object) {
                    state.untried.insert(object.clone());
                }
                state.wanted.insert(object, write);
                self.changed.notify_one();
            }
            None => {
                state.untried.remove(&object);
                state.paused.remove(&object);
                state.wanted.remove(&object);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use control::model::Kind;
    use serde_json::json;

    use super::*;

    fn key(name: &str) -> ObjectKey {
        ObjectKey::new(Kind::TcpRoute, "shop", name)
    }

    #[test]
    fn each_write_is_taken_once_until_it_is_set_again() {
        let board = Board::default();
        let write = |text: &str| Some(Write::Status(json!(text)));
        board.set(key("a"), write("1"));
        board.set(key("b"), write("1"));
        board.set(key("c"), write("1"));
        board.set(key("b"), None);
        assert_eq!(board.take(1).len(), 1);
        assert_eq!(board.take(9), [(key("c"), write("1").expect("a write"))]);
        assert!(board.take(9).is_empty() && !board.is_empty());
        board.put_back(key("b"));
        assert_eq!(board.take(9), []);
        board.put_back(key("a"));
        assert_eq!(board.take(9).len(), 1);
        board.try_all();
        assert_eq!(board.take(9).len(), 2);
        // One that could not be written is tried when its pause is over, and no sooner.
        board.pause(&key("a"));
        board.set(key("a"), write("2"));
        assert_eq!(board.take(9), []);
        board.put_back(key("a"));
        assert_eq!(board.take(9), [(key("a"), write("2").expect("a write"))]);
        board.set(key("a"), None);
        board.set(key("c"), None);
        assert!(board.is_empty());
    }
}
