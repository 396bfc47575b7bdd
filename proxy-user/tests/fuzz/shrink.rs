// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Makes a sequence that fails as short as it gets, by delta debugging over its operations.

use crate::{
    operations::Sequence,
    run::{Difference, run},
    subject::Subject,
};

/// Runs of a candidate: the programs choose at random, so it may fail only now and then.
const TRIES: usize = 12;

/// The difference that a sequence shows, if it shows one.
pub(crate) fn fails(subject: &mut Subject, sequence: &Sequence) -> Option<Difference> {
    (0..TRIES).find_map(|_| run(subject, sequence, true).err())
}

/// The shortest part of a failing sequence that was found to fail, and its difference; `None` if it does not fail again.
pub(crate) fn shrink(
    subject: &mut Subject,
    sequence: &Sequence,
) -> Option<(Sequence, Difference)> {
    let mut difference = fails(subject, sequence)?;
    let mut left = sequence.clone();
    left.0.truncate(difference.operation + 1);
    let mut part = left.0.len() / 2;
    while part > 0 {
        let mut start = 0;
        while start < left.0.len() {
            let mut candidate = left.clone();
            candidate.0.drain(start..(start + part).min(left.0.len()));
            match fails(subject, &candidate) {
                Some(found) => {
                    difference = found;
                    left = candidate;
                    left.0.truncate(difference.operation + 1);
                }
                None => start += part,
            }
        }
        part /= 2;
    }
    Some((left, difference))
}
