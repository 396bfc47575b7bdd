// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Three tests: one runs new sequences for some seconds, two run the stored ones. A failing
//! sequence is shortened by delta debugging over its operations.

use std::{
    collections::BTreeMap,
    path::PathBuf,
    time::{Duration, Instant},
};

use proxy_common::Counter;

use crate::{
    generate,
    kept::{self, Sequence},
    operations::Operation,
    random::{number, of_today},
    run::{Difference, run},
    shorten::shorten,
    subject::{Subject, Subjects},
    text::in_v6,
};

/// How many successive sequences begin with the same services.
const CLUSTER: u64 = 64;
/// How often a sequence is run: the programs choose at random, so not every run fails.
const TRIES: usize = 12;
/// In sequences of at most this length, the tables are compared after each operation.
const THOROUGH: usize = 100;
/// How long the search for a shorter sequence may take.
const PATIENCE: Duration = Duration::from_secs(60);

#[test]
fn sequences_go_as_the_model_says() {
    let seconds = number("PORTOLAN_FUZZ_SECONDS").unwrap_or(30);
    let seed = number("PORTOLAN_FUZZ_SEED").unwrap_or_else(of_today);
    println!("seed {seed}, {seconds} s: cargo xtask fuzz --seed {seed} --seconds {seconds}");
    let network = Subject::network();
    network
        .enter(|| go_on(seed, Duration::from_secs(seconds)))
        .expect("in the namespace");
}

fn go_on(seed: u64, time: Duration) {
    let mut subjects = Subjects::open();
    let start = Instant::now();
    let mut sequences = 0_u64;
    let mut counts = BTreeMap::new();
    while start.elapsed() < time {
        let own = (seed << 32) + sequences;
        let cluster = (seed << 32) + sequences / CLUSTER;
        let sequence = generate::sequence(own, cluster);
        match run(&mut subjects, &sequence, false) {
            Ok(moved) => {
                for (counter, count) in moved {
                    *counts.entry(counter).or_insert(0_u64) += count;
                }
            }
            Err(difference) => {
                println!("sequence {sequences} of seed {seed}, {}", difference.text);
                let (short, difference) =
                    shrink(&mut subjects, &sequence).unwrap_or((sequence, difference));
                let Some(line) = short.0.get(difference.operation) else {
                    panic!("{}", difference.text)
                };
                panic!("differs at `{line}`: {}\n\n{short}", difference.text);
            }
        }
        sequences += 1;
    }
    let elapsed = start.elapsed().as_secs_f64();
    let packets = counts.values().sum::<u64>();
    let per_second = |n: u64| n as f64 / elapsed;
    println!(
        "{sequences} sequences, {packets} packets in {elapsed:.1} s: {:.0} sequences/s, {:.0} packets/s",
        per_second(sequences),
        per_second(packets)
    );
    for (counter, count) in &counts {
        println!("{count:>10} {}", counter.name());
    }
    // With few sequences, there may be no packet that XDP takes.
    if sequences > 1000 {
        for counter in [Counter::ForwardedByXdp, Counter::ReplyByXdp] {
            assert!(counts.contains_key(&counter), "no {}", counter.name());
        }
    }
}

/// They say what the packet path does.
#[test]
fn cases_go_as_the_model_says_by_ipv4_and_by_ipv6() {
    let cases = kept::sequences("tests/fuzz/cases").into_iter();
    go(cases.flat_map(|(path, v4)| [(path.clone(), in_v6(&v4), 1), (path, v4, 1)]));
}

/// They say what it once did wrong.
#[test]
fn kept_sequences_go_as_the_model_says() {
    let kept = kept::sequences("tests/fuzz/kept").into_iter();
    go(kept.map(|(path, sequence)| {
        // A restart takes seconds, so a sequence with one runs only once.
        let is_slow = sequence.0.contains(&Operation::Restart);
        (path, sequence, if is_slow { 1 } else { TRIES })
    }));
}

/// Runs sequences, each so many times.
fn go(sequences: impl Iterator<Item = (PathBuf, Sequence<Operation>, usize)> + Send) {
    let network = Subject::network();
    let failed = network.enter(|| {
        let mut subjects = Subjects::open();
        let mut failed = Vec::new();
        for (path, sequence, tries) in sequences {
            if let Some((difference, _)) = fails(&mut subjects, &sequence, tries) {
                let at = difference.operation.saturating_sub(1)..=difference.operation;
                let at = sequence.0.get(at).unwrap_or_default();
                let at = Sequence(at.to_vec());
                failed.push(format!("{}:\n{at}{}", path.display(), difference.text));
            }
        }
        failed
    });
    let failed = failed.expect("in the namespace");
    assert!(failed.is_empty(), "{}", failed.join("\n\n"));
}

/// Runs a sequence up to `tries` times. Returns the first difference and the number of runs until
/// then; None if there is no difference.
fn fails(
    subjects: &mut Subjects,
    sequence: &Sequence<Operation>,
    tries: usize,
) -> Option<(Difference, usize)> {
    let thorough = sequence.0.len() <= THOROUGH;
    (1..=tries).find_map(|n| Some((run(subjects, sequence, thorough).err()?, n)))
}

/// Returns the shortest failing sequence that was found, and its difference; None if the sequence
/// does not fail again.
fn shrink(
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
