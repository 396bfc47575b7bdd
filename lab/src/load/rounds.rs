// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Repeats a measurement until its rounds are steady, on a machine that other programs use as well.

use anyhow::Result;

use crate::load::statistics::median;

/// A round is run again if its figure without a proxy differs from the median of all rounds by more
/// than this share.
const UNSTEADY: f64 = 0.2;
/// The most rounds, as a multiple of the requested ones. After them the result is returned as it
/// is.
const MOST_ROUNDS: u32 = 3;

/// Calls `round` with 0, 1, 2 and so on until there are `rounds` results whose figures without a
/// proxy are near their median. Each function in `without_proxy` returns one such figure. Returns
/// these results, and how many rounds were discarded.
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
