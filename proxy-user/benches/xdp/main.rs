// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Frames a second that the XDP program sends on, beside a program that only exchanges link-layer addresses, in one run. Needs root.
//! `cargo xtask bench xdp`.
//!
//! Live frames on one CPU: a generator writes every header anew and redirects the frame into one end of a veth; the program at the other
//! end sends it back; there it is counted and dropped. Each round measures all three, in turns.

mod node;
mod programs;

use anyhow::Result;
use clap::Parser;
use lab::load::{
    cpu::{CPU, pin},
    statistics::{interval, median},
};

use node::{FLOWS, Node, Way};

/// Measures XDP by live frames
#[derive(Parser)]
struct Arguments {
    /// Rounds
    #[arg(long, default_value_t = 20)]
    rounds: usize,
    /// Frames of each measurement
    #[arg(long, default_value_t = 1_000_000)]
    frames: u32,
    /// Handed over by `cargo bench`
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    pin()?;
    let node = Node::open()?;
    let ways = [Way::Mirror, Way::Flows(1), Way::Flows(FLOWS)];
    let mut rates = [const { Vec::new() }; 3];
    // Not measured: everything is at hand then.
    for way in ways {
        node.rate(way, arguments.frames / 4)?;
    }
    for round in 0..arguments.rounds {
        for turn in 0..ways.len() {
            let at = (round + turn) % ways.len();
            rates[at].push(node.rate(ways[at], arguments.frames)?);
        }
    }
    println!(
        "million frames a second on CPU {CPU}, median of {} rounds",
        arguments.rounds
    );
    println!(
        "{:>32} {:>8.2}",
        "addresses exchanged only",
        median(&rates[0]) / 1e6
    );
    for (at, flows, goal) in [(1, 1, 0.85), (2, FLOWS, 0.55)] {
        let ratios: Vec<_> = rates[at]
            .iter()
            .zip(&rates[0])
            .map(|(own, bare)| own / bare)
            .collect();
        let found = interval(&ratios);
        let verdict = if found.median >= goal {
            "reached"
        } else {
            "missed"
        };
        println!(
            "{:>32} {:>8.2}  of that {:.2} [{:.2} {:.2}], at least {goal}: {verdict}",
            format!("hits of {flows} flows"),
            median(&rates[at]) / 1e6,
            found.median,
            found.low,
            found.high,
        );
    }
    Ok(())
}
