// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Distributes the conformance cases over several runs of one day: each case is in exactly one run,
//! and the next day in the next run.

use std::str::FromStr;

use anyhow::{Context, Result, ensure};

/// One of several parts of all cases, counted from 1. Written as 2/6: part 2 of 6.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Share {
    part: u64,
    parts: u64,
}

impl Share {
    /// Returns the items of this part on a day; `day` is any number that grows by 1 each day.
    pub fn of<T>(self, items: Vec<T>, day: u64) -> Vec<T> {
        let numbered = (day..).zip(items);
        let own = numbered.filter(|(number, _)| number % self.parts == self.part - 1);
        own.map(|(_, item)| item).collect()
    }
}

impl FromStr for Share {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let halves = text.split_once('/');
        let (part, parts) = halves.context("a share is a part and how many there are: 2/6")?;
        let share = Self {
            part: part.parse().context("the part is no number")?,
            parts: parts.parse().context("the number of parts is no number")?,
        };
        ensure!(
            (1..=share.parts).contains(&share.part),
            "the part is not between 1 and {}",
            share.parts
        );
        Ok(share)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_item_is_in_one_part_a_day_and_in_every_part_once_in_as_many_days() {
        let of = |part, day| Share { part, parts: 6 }.of(Vec::from_iter(0..20), day);
        let expect_all = |mut items: Vec<i32>| {
            items.sort_unstable();
            assert_eq!(items, Vec::from_iter(0..20));
        };
        for n in 1..=6 {
            expect_all((1..=6).flat_map(|part| of(part, 20_000 + n)).collect());
            expect_all((0..6).flat_map(|day| of(n, 20_000 + day)).collect());
        }
    }

    #[test]
    fn malformed_or_out_of_range_shares_are_rejected() {
        let share = Share { part: 6, parts: 6 };
        assert_eq!("6/6".parse::<Share>().expect("a share"), share);
        for text in ["", "2", "0/6", "7/6", "0/0", "a/6", "1/b", "-1/6"] {
            assert!(text.parse::<Share>().is_err(), "{text}");
        }
    }
}
