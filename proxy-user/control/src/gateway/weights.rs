// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Turns the weights of a route's backends into weights of their endpoints: what a backend gets is
//! spread over its endpoints.

/// The largest weight of an endpoint.
const MAX: u64 = 1_000_000;

/// Returns the factor of each backend's endpoints: multiplied by it, their weights have the
/// backend's share. A backend is given by its weight and the sum of the weights of its endpoints.
///
/// The factors are small numbers if there are such with exactly these proportions. Otherwise they
/// are rounded, but a backend with a weight keeps some.
pub fn factors(backends: &[(u32, u64)]) -> Vec<u32> {
    let some = || {
        backends
            .iter()
            .filter(|(weight, sum)| *weight > 0 && *sum > 0)
    };
    let multiple = some().try_fold(1u64, |multiple, (_, sum)| {
        let all = (multiple / gcd(multiple, *sum)).checked_mul(*sum);
        all.filter(|all| *all <= 1 << 32)
    });
    let exact = multiple.and_then(|multiple| {
        let each = move |(weight, sum): &(u32, u64)| u64::from(*weight) * (multiple / sum);
        let divisor = some().map(each).fold(0, gcd);
        let largest = some().map(each).max()? / divisor;
        (largest <= MAX).then_some((multiple, divisor))
    });
    let largest = some().map(|(weight, sum)| f64::from(*weight) / *sum as f64);
    let largest = largest.fold(0.0, f64::max);
    let factors = backends.iter().map(|&(weight, sum)| {
        if weight == 0 || sum == 0 {
            return 0;
        }
        let factor = match exact {
            Some((multiple, divisor)) => u64::from(weight) * (multiple / sum) / divisor,
            None => (f64::from(weight) / sum as f64 / largest * MAX as f64).round() as u64,
        };
        u32::try_from(factor.clamp(1, MAX)).unwrap_or(1)
    });
    factors.collect()
}

fn gcd(one: u64, other: u64) -> u64 {
    if other == 0 {
        one
    } else {
        gcd(other, one % other)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn endpoints_share_the_weight_of_their_backend() {
        for (backends, expected) in [
            (&[(1, 1)][..], &[1][..]),
            (&[(70, 1), (30, 1)], &[7, 3]),
            // Twice as many endpoints get half as much each.
            (&[(1, 1), (1, 2)], &[2, 1]),
            (&[(50, 2), (50, 3)], &[3, 2]),
            (&[(0, 2), (5, 1)], &[0, 1]),
            (&[(5, 0), (3, 2)], &[0, 1]),
            (&[], &[]),
            // One in a million is more than nothing.
            (&[(1_000_000, 1), (1, 3)], &[1_000_000, 1]),
        ] {
            assert_eq!(factors(backends), expected);
        }
    }

    proptest! {
        #[test]
        fn every_backend_gets_its_share(
            backends in prop::collection::vec((0u32..=1_000_000, 1u64..500), 1..16),
        ) {
            let factors = factors(&backends);
            let each = backends.iter().zip(&factors);
            let sums: Vec<_> = each.map(|((_, sum), factor)| f64::from(*factor) * *sum as f64).collect();
            let all: f64 = backends.iter().map(|(weight, _)| f64::from(*weight)).sum();
            prop_assume!(all > 0.0);
            for ((weight, _), sum) in backends.iter().zip(&sums) {
                let share = sum / sums.iter().sum::<f64>();
                let wanted = f64::from(*weight) / all;
                prop_assert!((share - wanted).abs() < 0.002, "{share} instead of {wanted}");
                prop_assert_eq!(*sum > 0.0, *weight > 0);
            }
        }
    }
}
