// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Runs random sequences of socket calls, and compares the results with a model of what an
//! application may see: see docs/dev/fuzzing.md.

mod ask;
mod generate;
mod model;
mod node;
mod note;
mod operations;
mod run;
mod services;

use self::{node::Node, operations::Operation, run::run};
use crate::{
    kept::{self, Sequence},
    shorten::{run_stored, search},
};

#[test]
fn random_socket_sequences_match_the_model() {
    let mut node = Node::open();
    search(
        ("sockets", 10, 6),
        |base, n| generate::sequence(base + n),
        |sequence, _| run(&mut node, sequence),
    );
}

#[test]
fn stored_socket_sequences_match_the_model() {
    let mut node = Node::open();
    let stored = kept::sequences("tests/sockets/kept").into_iter();
    let stored = stored.map(|(path, sequence): (_, Sequence<Operation>)| {
        let is_slow = sequence.0.contains(&Operation::Restart);
        (path, sequence, if is_slow { 1 } else { 4 })
    });
    run_stored(stored, |sequence| run(&mut node, sequence));
}
