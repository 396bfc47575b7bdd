// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Medians, their 95 % bootstrap intervals, and other quantiles. Pure.

use crate::random::Random;

/// Number of resamples of the bootstrap.
const RESAMPLES: usize = 2_000;

/// Returns the median of the samples and the bounds between which it lies with 95 % confidence, by
/// the percentile bootstrap. The seed is fixed: the same samples give the same bounds.
pub fn interval(samples: &[f64]) -> [f64; 3] {
    let mut random = Random::new(0);
    let mut drawn = || {
        let drawn: Vec<_> = (0..samples.len()).map(|_| random.pick(samples)).collect();
        median(&drawn)
    };
    let mut medians: Vec<f64> = (0..RESAMPLES).map(|_| drawn()).collect();
    medians.sort_by(f64::total_cmp);
    let [low, high] = [RESAMPLES / 40, RESAMPLES - RESAMPLES / 40 - 1].map(|at| medians[at]);
    [median(samples), low, high]
}

/// Returns the middle sample, or the mean of the middle two.
pub fn median(samples: &[f64]) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len().is_multiple_of(2) {
        true => f64::midpoint(sorted[middle - 1], sorted[middle]),
        false => sorted[middle],
    }
}

/// Returns the samples at the given shares (0 to 1) of the sorted samples, without interpolation;
/// NaN if there are no samples.
pub fn quantiles<const N: usize>(mut samples: Vec<f64>, shares: [f64; N]) -> [f64; N] {
    samples.sort_by(f64::total_cmp);
    let last = samples.len().saturating_sub(1);
    shares.map(|share| {
        let index = (share * last as f64).round() as usize;
        samples.get(index).copied().unwrap_or(f64::NAN)
    })
}
