// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Runs new sequences for some time, and stored ones. A new one that fails is shortened by delta
//! debugging over its operations.

use std::{
    fmt::Display,
    path::PathBuf,
    time::{Duration, Instant},
};

use crate::{
    kept::Sequence,
    random::{number, of_today},
};

/// How long the search for a shorter sequence may take.
const PATIENCE: Duration = Duration::from_secs(120);

/// A difference between what a sequence did and what the model allows.
#[derive(Clone, Debug)]
pub(crate) struct Difference {
    /// The index of the operation in the sequence; the last one for a difference at the end.
    pub(crate) operation: usize,
    pub(crate) text: String,
}

/// Runs sequences until the time is over; returns how many. Panics at the first that fails, with
/// the shortest one that was found. `generate` makes sequence `n` from a seed's base and `n`; `run`
/// runs one, with true if it has failed before. Choices are random, so not every run fails: a
/// shorter one is run up to `tries` times.
pub(crate) fn search<T: Clone + Display>(
    (what, seconds, tries): (&str, u64, usize),
    generate: impl Fn(u64, u64) -> Sequence<T>,
    mut run: impl FnMut(&Sequence<T>, bool) -> Result<(), Difference>,
) -> u64 {
    let seconds = number("PORTOLAN_FUZZ_SECONDS").unwrap_or(seconds);
    let seed = number("PORTOLAN_FUZZ_SEED").unwrap_or_else(of_today);
    println!(
        "seed {seed}, {seconds} s: cargo xtask fuzz --what {what} --seed {seed} --seconds {seconds}"
    );
    let (start, time) = (Instant::now(), Duration::from_secs(seconds));
    let mut sequences = 0;
    while start.elapsed() < time {
        let sequence = generate(seed << 32, sequences);
        if let Err(first) = run(&sequence, false) {
            println!(
                "sequence {sequences} of seed {seed}, operation {}, {}\n{sequence}",
                first.operation, first.text
            );
            let (short, found) = shorten(&sequence.0, first, |steps| {
                let sequence = Sequence(steps.to_vec());
                (0..tries).find_map(|_| run(&sequence, true).err())
            });
            let line = short.get(found.operation).map(T::to_string);
            let line = line.unwrap_or_default();
            panic!("differs at `{line}`: {}\n\n{}", found.text, Sequence(short));
        }
        sequences += 1;
    }
    let elapsed = start.elapsed().as_secs_f64();
    println!(
        "{sequences} sequences of {what} in {elapsed:.1} s: {:.1} sequences/s",
        sequences as f64 / elapsed
    );
    sequences
}

/// Runs stored sequences, each up to so many times; panics with those that fail.
pub(crate) fn run_stored<T: Clone + Display>(
    sequences: impl IntoIterator<Item = (PathBuf, Sequence<T>, usize)>,
    mut run: impl FnMut(&Sequence<T>) -> Result<(), Difference>,
) {
    let mut failed = Vec::new();
    for (path, sequence, tries) in sequences {
        if let Some(found) = (0..tries).find_map(|_| run(&sequence).err()) {
            let at = found.operation.saturating_sub(1)..=found.operation;
            let at = Sequence(sequence.0.get(at).unwrap_or_default().to_vec());
            failed.push(format!("{}:\n{at}{}", path.display(), found.text));
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n\n"));
}

/// Returns the shortest failing list that was found, and its difference, which `fails` returns.
fn shorten<T: Clone>(
    operations: &[T],
    first: Difference,
    mut fails: impl FnMut(&[T]) -> Option<Difference>,
) -> (Vec<T>, Difference) {
    // Two differences count as the same if their first 20 characters are equal.
    let words = |text: &str| text.chars().take(20).collect::<String>();
    let start = Instant::now();
    let mut found = fails(operations).unwrap_or(first);
    let wanted = words(&found.text);
    let mut left = operations.to_vec();
    left.truncate(found.operation + 1);
    let mut part = left.len() / 2;
    while part > 0 {
        let mut at = 0;
        while at < left.len() && start.elapsed() < PATIENCE {
            let mut candidate = left.clone();
            candidate.drain(at..(at + part).min(left.len()));
            match fails(&candidate).filter(|other| words(&other.text) == wanted) {
                Some(other) => {
                    candidate.truncate(other.operation + 1);
                    (left, found) = (candidate, other);
                }
                None => at += part,
            }
        }
        part /= 2;
    }
    (left, found)
}
