// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Shortens a failing sequence by delta debugging over its operations.

use std::time::{Duration, Instant};

use crate::{
    kept::Sequence,
    operations::Operation,
    run::{Difference, run},
    shorten::shorten,
    subjects::Subjects,
};

/// How often a sequence is run: the programs choose at random, so not every run fails.
pub(crate) const TRIES: usize = 12;
/// In sequences of at most this length, the tables are compared after each operation.
const THOROUGH: usize = 100;
/// How long the search for a shorter sequence may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs a sequence up to `tries` times. Returns the first difference and the number of runs until
/// then; None if there is no difference.
pub(crate) fn fails(
    subjects: &mut Subjects,
    sequence: &Sequence<Operation>,
    tries: usize,
) -> Option<(Difference, usize)> {
    let thorough = sequence.0.len() <= THOROUGH;
    (1..=tries).find_map(|n| Some((run(subjects, sequence, thorough).err()?, n)))
}

/// Returns the shortest failing sequence that was found, and its difference; None if the sequence
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
