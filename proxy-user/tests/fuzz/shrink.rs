// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Makes a sequence that fails as short as it gets, by delta debugging over its operations.

use std::time::{Duration, Instant};

use crate::{
    operations::Sequence,
    run::{Difference, run},
    subject::Subject,
};

/// Runs of a sequence: the programs choose at random, so it may fail only now and then.
pub(crate) const TRIES: usize = 12;
/// Longer than this, a sequence is compared at its end only, or wherever a packet differs.
const THOROUGH: usize = 100;
/// A sequence that takes longer is left as it is then.
const PATIENCE: Duration = Duration::from_secs(60);

/// The difference that a sequence shows in so many runs, if it shows one, and how many runs it took.
pub(crate) fn fails(
    subject: &mut Subject,
    sequence: &Sequence,
    tries: usize,
) -> Option<(Difference, usize)> {
    let thorough = sequence.0.len() <= THOROUGH;
    (1..=tries).find_map(|n| Some((run(subject, sequence, thorough).err()?, n)))
}

/// The shortest part of a failing sequence that was found to fail, and its difference; `None` if it does not fail again.
pub(crate) fn shrink(subject: &mut Subject, sequence: &Sequence) -> Option<(Sequence, Difference)> {
    let start = Instant::now();
    let (mut difference, took) = fails(subject, sequence, TRIES)?;
    let tries = TRIES.min(3 * took);
    let mut left = sequence.clone();
    left.0.truncate(difference.operation + 1);
    let mut part = left.0.len() / 2;
    while part > 0 {
        let mut at = 0;
        while at < left.0.len() && start.elapsed() < PATIENCE {
            let mut candidate = left.clone();
            candidate.0.drain(at..(at + part).min(left.0.len()));
            match fails(subject, &candidate, tries) {
                Some((found, _)) => {
                    difference = found;
                    left = candidate;
                    left.0.truncate(difference.operation + 1);
                }
                None => at += part,
            }
        }
        part /= 2;
    }
    Some((left, difference))
}
