// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the kernel's reasons for freeing a packet mean to an operator, and what to do. Names are
//! those of `enum skb_drop_reason` without their prefix; a kernel may have others. Pure.

use std::iter;

use serde::Serialize;

/// What a reason means, and the remedy.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub(crate) struct Meaning {
    pub(crate) means: &'static str,
    pub(crate) remedy: &'static str,
}

/// Reasons without a loss: a frame for another host, a copy, or a socket closed since.
pub(crate) fn is_harmless(reason: &str) -> bool {
    ["OTHERHOST", "SKB_CONSUMED", "CONSUMED", "QUEUE_PURGE"].contains(&reason)
}

/// Returns what a reason means; where there is none, the function that freed the packet decides.
pub(crate) fn meaning(reason: &str, place: &str) -> Meaning {
    let by_place = match place {
        _ if place.starts_with("ip_forward") || place.starts_with("ip6_forward") => "not forwarded",
        _ if place.starts_with("ip_error") || place.contains("route") => "IP_OUTNOROUTES",
        _ if place.starts_with("arp_error") || place.contains("neigh") => "NEIGH_FAILED",
        _ => "unknown",
    };
    let find = |name| rows().find(|(names, _)| names.split(", ").any(|one| one == name));
    let found = find(reason).or_else(|| find(by_place));
    found.map(|(_, meaning)| meaning).unwrap_or_default()
}

/// Returns the rows of `reasons.txt`: names of reasons, what they mean, the remedy.
fn rows() -> impl Iterator<Item = (&'static str, Meaning)> {
    let mut lines = include_str!("reasons.txt").lines().map(str::trim);
    iter::from_fn(move || {
        let names = lines.next()?;
        let [means, remedy] = [lines.next()?, lines.next()?];
        Some((names, Meaning { means, remedy }))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_or_else_the_place_decides_about_the_meaning() {
        for (reason, place, words) in [
            ("IP_RPFILTER", "x", "reverse path filtering"),
            ("NOT_SPECIFIED", "ip_forward", "hop limit"),
            ("NOT_SPECIFIED", "ip_error", "route"),
            ("BRAND_NEW", "somewhere", "no words"),
        ] {
            assert!(meaning(reason, place).means.contains(words), "{words}");
        }
        assert!(is_harmless("OTHERHOST") && !is_harmless("NO_SOCKET"));
    }

    #[test]
    fn no_reason_stands_twice() {
        let mut all: Vec<_> = rows().flat_map(|(names, _)| names.split(", ")).collect();
        let count = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), count);
    }
}
