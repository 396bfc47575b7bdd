// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Makes a failing sequence as short as possible, by delta debugging over its operations.

use std::time::{Duration, Instant};

use crate::{
    kept::Sequence,
    operations::Operation,
    run::{Difference, run},
    shorten::shorten,
    subjects::Subjects,
};

/// The number of runs of a sequence: the programs choose at random, so not every run fails.
pub(crate) const TRIES: usize = 12;
/// The tables are compared after each operation only in a sequence of at most this length.
const THOROUGH: usize = 100;
/// How long to shorten a sequence.
const PATIENCE: Duration = Duration::from_secs(60);

/// The difference that a sequence shows within this many runs, if any, and the number of runs that
/// it took.
pub(crate) fn fails(
    subjects: &mut Subjects,
    sequence: &Sequence<Operation>,
    tries: usize,
) -> Option<(Difference, usize)> {
    let thorough = sequence.0.len() <= THOROUGH;
    (1..=tries).find_map(|n| Some((run(subjects, sequence, thorough).err()?, n)))
}

/// The shortest part of a failing sequence that was found to fail, and its difference; `None` if it
/// does not fail again.
pub(crate) fn shrink(
    subjects: &mut Subjects,
    sequence: &Sequence<Operation>,
) -> Option<(Sequence<Operation>, Difference)> {
    let start = Instant::now();
    let (difference, took) = fails(subjects, sequence, TRIES)?;
    let tries = TRIES.min(3 * took);
    let fails = |operations: &[Operation]| {
        let found = fails(subjects, &Sequence(operations.to_vec()), tries);
        found.map(|(difference, _)| difference)
    };
    let left = PATIENCE.saturating_sub(start.elapsed());
    let end = difference.operation + 1;
    let (short, found) = shorten(&sequence.0[..end], left, fails, |found| found.operation + 1);
    Some((Sequence(short), found.unwrap_or(difference)))
}
