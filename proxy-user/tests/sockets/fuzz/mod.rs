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
use crate::{kept, shorten::search};

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
