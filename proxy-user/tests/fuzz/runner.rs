// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Three tests: one runs new sequences for some seconds, two run the stored ones.

use std::{collections::BTreeMap, path::PathBuf};

use proxy_common::Counter;

use crate::{
    generate,
    kept::{self, Sequence},
    operations::Operation,
    run::run,
    shorten::{run_stored, search},
    subject::{Subject, Subjects},
    text::in_v6,
};

/// How many successive sequences begin with the same services.
const CLUSTER: u64 = 64;
/// How often a sequence is run: the programs choose at random, so not every run fails.
const TRIES: usize = 12;
/// In sequences of at most this length, the tables are compared after each operation.
const THOROUGH: usize = 100;

#[test]
fn sequences_go_as_the_model_says() {
    let network = Subject::network();
    let searched = network.enter(|| {
        let mut subjects = Subjects::open();
        let mut counts = BTreeMap::new();
        let sequences = search(
            ("packets", 30, TRIES),
            |base, n| generate::sequence(base + n, base + n / CLUSTER),
            |sequence, is_again| {
                let thorough = is_again && sequence.0.len() <= THOROUGH;
                for counter in run(&mut subjects, sequence, thorough)? {
                    *counts.entry(counter).or_insert(0_u64) += 1;
                }
                Ok(())
            },
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
    });
    searched.expect("in the namespace");
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
    let ran = Subject::network().enter(|| {
        let mut subjects = Subjects::open();
        run_stored(sequences, |sequence| {
            let thorough = sequence.0.len() <= THOROUGH;
            run(&mut subjects, sequence, thorough).map(drop)
        });
    });
    ran.expect("in the namespace");
}
