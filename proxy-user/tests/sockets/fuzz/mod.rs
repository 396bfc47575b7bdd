// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Runs random sequences of socket calls, and compares the results with a model of what an
//! application may see: see docs/dev/fuzzing.md.

mod ask;
mod converse;
mod generate;
mod model;
mod node;
mod note;
mod operations;
mod run;
mod services;

use std::time::{Duration, Instant};

use self::{
    node::Node,
    operations::Operation,
    run::{Difference, run},
};
use crate::{
    kept::{self, Sequence},
    random::{number, of_today},
    shorten::shorten,
};

/// How long the search for a shorter failing sequence may take.
const PATIENCE: Duration = Duration::from_secs(120);

#[test]
fn random_socket_sequences_match_the_model() {
    let seconds = number("PORTOLAN_FUZZ_SECONDS").unwrap_or(10);
    let seed = number("PORTOLAN_FUZZ_SEED").unwrap_or_else(of_today);
    println!(
        "seed {seed}, {seconds} s: cargo xtask fuzz --what sockets --seed {seed} --seconds {seconds}"
    );
    let mut node = Node::open();
    let (start, time) = (Instant::now(), Duration::from_secs(seconds));
    let (mut sequences, mut operations) = (0_u64, 0);
    while start.elapsed() < time {
        let sequence = generate::sequence((seed << 32) + sequences);
        match run(&mut node, &sequence) {
            Ok(count) => operations += count,
            Err(difference) => {
                let at = difference.operation;
                println!(
                    "sequence {sequences} of seed {seed}, operation {at}, {}\n{sequence}",
                    difference.text
                );
                let (short, difference) = shrink(&mut node, &sequence, difference);
                let line = &short.0[difference.operation];
                panic!("differs at `{line}`: {}\n\n{short}", difference.text);
            }
        }
        sequences += 1;
    }
    let elapsed = start.elapsed().as_secs_f64();
    println!(
        "{sequences} sequences of sockets, {operations} operations in {elapsed:.1} s: {:.1} sequences/s, {:.0} operations/s",
        sequences as f64 / elapsed,
        operations as f64 / elapsed
    );
}

/// Returns the shortest failing sequence that was found, and its difference.
fn shrink(
    node: &mut Node,
    sequence: &Sequence<Operation>,
    first: Difference,
) -> (Sequence<Operation>, Difference) {
    const TRIES: usize = 6;
    // Two differences count as the same if their first 20 characters are equal.
    let words = |text: &str| text.chars().take(20).collect::<String>();
    let wanted = words(&first.text);
    let fails = |steps: &[Operation]| {
        let sequence = Sequence(steps.to_vec());
        let mut failures = (0..TRIES).filter_map(|_| run(node, &sequence).err());
        failures.find(|found| words(&found.text) == wanted)
    };
    let end = first.operation + 1;
    let (steps, found) = shorten(&sequence.0[..end], PATIENCE, fails, |found| {
        found.operation + 1
    });
    (Sequence(steps), found.unwrap_or(first))
}

#[test]
fn stored_socket_sequences_match_the_model() {
    let mut node = Node::open();
    let mut failed = Vec::new();
    for (path, sequence) in kept::sequences("tests/sockets/kept") {
        let tries = if sequence.0.contains(&Operation::Restart) {
            1
        } else {
            4
        };
        if let Some(difference) = (0..tries).find_map(|_| run(&mut node, &sequence).err()) {
            failed.push(format!("{}: {}", path.display(), difference.text));
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n\n"));
}
