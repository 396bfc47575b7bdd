// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Repeats a measurement until its rounds are steady, on a machine that other programs use as well.

use anyhow::Result;

use crate::load::statistics::median;

/// A round is run again if its figure without a proxy differs from the median by more than this
/// share.
const UNSTEADY: f64 = 0.2;
/// After this many times the requested rounds, the result is returned as it is.
const MOST_ROUNDS: u32 = 3;

/// Runs `round` with increasing numbers until `rounds` of them have figures without a proxy near
/// their medians. Returns these rounds, and how many were run again.
pub fn steady<T>(
    rounds: u32,
    mut round: impl FnMut(u32) -> Result<T>,
    without_proxy: &[&dyn Fn(&T) -> f64],
) -> Result<(Vec<T>, u32)> {
    let mut kept: Vec<T> = Vec::new();
    let mut run = 0;
    while (kept.len() as u32) < rounds && run < rounds * MOST_ROUNDS {
        kept.push(round(run)?);
        run += 1;
        if kept.len() as u32 == rounds && run < rounds * MOST_ROUNDS {
            for figure in without_proxy {
                let middle = median(&kept.iter().map(figure).collect::<Vec<_>>());
                kept.retain(|round| (figure(round) / middle - 1.0).abs() <= UNSTEADY);
            }
        }
    }
    let again = run - kept.len() as u32;
    Ok((kept, again))
}
