// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Benchmark of XDP: how many frames a second the XDP program sends on, compared in the same run
//! with a program that only exchanges the MAC addresses. Needs root. `cargo xtask bench xdp`.
//!
//! Uses real frames on one CPU. A generator writes every header anew and redirects the frame into
//! one end of a veth; the program at the other end sends the frame back; there it is counted and
//! dropped. Each round measures in turns the bare programs and the real one, with the frames of one
//! flow and of many. Before each measurement every flow gets some frames that are not measured, so
//! that it was seen just now.

mod node;
#[path = "../support/plan.rs"]
mod plan;

use anyhow::Result;
use clap::Parser;
use lab::load::{
    cpu::{CPU, pin},
    frames::MOST_FLOWS,
    statistics::{interval, median},
};

use node::{Node, Variant};

/// Measures XDP by live frames
#[derive(Parser)]
struct Arguments {
    /// Rounds
    #[arg(long, default_value_t = 15)]
    rounds: usize,
    /// Frames of each measurement; of 65 536 flows, each has one in so many of them
    #[arg(long, default_value_t = 2_000_000)]
    frames: u32,
    /// Handed over by `cargo bench`
    #[arg(long, hide = true)]
    bench: bool,
}

/// Goals: a number of flows, and the smallest allowed part of the bare program's rate.
const GOALS: [(u32, f64); 2] = [(1, 0.85), (MOST_FLOWS, 0.55)];

/// Returns the nanoseconds that a frame takes at a rate, which is in frames a second.
fn time(rate: f64) -> f64 {
    1e9 / rate
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    pin()?;
    let node = Node::open()?;
    let ways = GOALS
        .map(|(flows, _)| [Variant::Bare, Variant::Looking, Variant::Real].map(|way| (way, flows)));
    let ways = ways.as_flattened();
    let mut rates = vec![Vec::new(); ways.len()];
    for round in 0..arguments.rounds {
        for turn in 0..ways.len() {
            let at = (round + turn) % ways.len();
            let (way, flows) = ways[at];
            rates[at].push(node.rate(way, flows, arguments.frames)?);
        }
    }
    println!(
        "million frames a second on CPU {CPU}, median of {} rounds",
        arguments.rounds
    );
    for ((flows, goal), rates) in GOALS.iter().zip(rates.chunks_exact(3)) {
        let [bare, looking, real] = rates else {
            unreachable!("three ways of each")
        };
        println!("{flows} flows");
        println!("{:>32} {:>8.2}", "addresses exchanged", median(bare) / 1e6);
        print("and one look-up", looking, bare);
        let found = print("hits", real, bare);
        let verdict = if found >= *goal { "reached" } else { "missed" };
        println!("{:>32} at least {goal} of the first: {verdict}", "");
    }
    Ok(())
}

/// Prints the rates `rates` and compares them pair by pair with `bare`; returns the median of their
/// ratio.
fn print(name: &str, rates: &[f64], bare: &[f64]) -> f64 {
    let pairs = || rates.iter().zip(bare);
    let ratios: Vec<_> = pairs().map(|(own, bare)| own / bare).collect();
    let more: Vec<_> = pairs()
        .map(|(own, bare)| time(*own) - time(*bare))
        .collect();
    let found = interval(&ratios);
    println!(
        "{name:>32} {:>8.2}  of that {:.2} [{:.2} {:.2}], {:.0} ns more",
        median(rates) / 1e6,
        found.median,
        found.low,
        found.high,
        median(&more),
    );
    found.median
}
