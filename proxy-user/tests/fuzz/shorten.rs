// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Delta debugging: searches for a shorter list of operations that still fails.

use std::time::{Duration, Instant};

/// Returns the shortest failing list that was found, and its failure: None if no other list failed.
/// `fails` returns the failure of a list, `length` how many operations that failure needs.
pub(crate) fn shorten<T: Clone, F>(
    operations: &[T],
    patience: Duration,
    mut fails: impl FnMut(&[T]) -> Option<F>,
    length: impl Fn(&F) -> usize,
) -> (Vec<T>, Option<F>) {
    let start = Instant::now();
    let mut left = operations.to_vec();
    let mut failure = None;
    let mut part = left.len() / 2;
    while part > 0 {
        let mut at = 0;
        while at < left.len() && start.elapsed() < patience {
            let mut candidate = left.clone();
            candidate.drain(at..(at + part).min(left.len()));
            match fails(&candidate) {
                Some(found) => {
                    candidate.truncate(length(&found));
                    left = candidate;
                    failure = Some(found);
                }
                None => at += part,
            }
        }
        part /= 2;
    }
    (left, failure)
}
