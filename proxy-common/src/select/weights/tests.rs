// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Properties of lists of slots by weight.

use proptest::prelude::*;

use super::*;

fn shares(weights: &[u32], list: &[u32]) -> Vec<usize> {
    let mut shares = vec![0; weights.len()];
    for owner in list {
        shares[*owner as usize] += 1;
    }
    shares
}

#[test]
fn a_list_is_as_long_as_the_reduced_weights_and_slots_of_one_backend_lie_apart() {
    for (weights, owners) in [
        (&[][..], &[][..]),
        (&[0, 0], &[]),
        (&[7], &[0]),
        (&[1, 1, 1], &[0, 1, 2]),
        (&[50, 50], &[0, 1]),
        (&[5, 0, 5], &[0, 2]),
        (&[2, 1], &[0, 1, 0]),
        (&[30, 90], &[0, 1, 1, 1]),
        (&[1, 5, 2], &[0, 1, 2, 1, 1, 1, 2, 1]),
    ] {
        assert_eq!(list(weights), owners);
    }
}

#[test]
fn a_list_of_very_many_backends_has_room_for_each() {
    let mut weights = vec![1; 200_000];
    weights[7] = 1_000_000;
    let list = list(&weights);
    assert_eq!(list.len(), 400_000);
    assert!(shares(&weights, &list).iter().all(|share| *share > 0));
}

fn weights() -> impl Strategy<Value = Vec<u32>> {
    let weight = prop_oneof![0..4_u32, 0..=256_u32, 0..=1_000_000_u32, Just(u32::MAX)];
    prop_oneof![
        prop::collection::vec(weight.clone(), 0..20),
        prop::collection::vec(weight, 0..600),
    ]
}

proptest! {
    #[test]
    fn each_share_differs_by_less_than_2_percent_of_all(weights in weights()) {
        let list = list(&weights);
        let all: f64 = weights.iter().map(|weight| f64::from(*weight)).sum();
        prop_assert!(list.len() <= most(weights.len()));
        prop_assert_eq!(list.is_empty(), all == 0.0);
        for (weight, share) in weights.iter().zip(shares(&weights, &list)) {
            let (wanted, got) = (f64::from(*weight) / all, share as f64 / list.len() as f64);
            prop_assert_eq!(*weight == 0, share == 0);
            prop_assert!((wanted - got).abs() < 0.02 || all == 0.0, "{} instead of {}", got, wanted);
        }
    }
}
