// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Properties of a table, and its exact content, because nodes of two versions may share one
//! service.

use super::*;
use crate::{FrontendKey, Protocol, V4, V6, select};

fn backends(count: u32) -> Vec<(V4, Port)> {
    let address = |n: u32| V4 {
        octets: (0x0a01_0000 + n).to_be_bytes(),
    };
    (0..count)
        .map(|n| (address(n), Port::from_host(8080)))
        .collect()
}

/// Returns how many slots of `after` have another owner than in `before`.
fn moved(before: &[(V4, Port)], after: &[(V4, Port)]) -> usize {
    let (old, new) = (table(before), table(after));
    assert_eq!(old.len(), new.len(), "of one size");
    let pairs = old.iter().zip(&new);
    pairs
        .filter(|(old, new)| before[**old as usize] != after[**new as usize])
        .count()
}

fn shares(backends: usize, table: &[u32]) -> Vec<usize> {
    let mut shares = vec![0; backends];
    for owner in table {
        shares[*owner as usize] += 1;
    }
    shares
}

#[test]
fn table_sizes_are_primes_with_256_slots_per_backend_up_to_256_backends() {
    let is_prime = |n: usize| {
        (2..n)
            .take_while(|d| d * d <= n)
            .all(|d| !n.is_multiple_of(d))
    };
    assert_eq!(size(0), 0);
    for (most, size) in SIZES {
        assert!(is_prime(size), "{size}");
        assert!(size >= 256 * most.min(256), "{size}");
        assert_eq!(super::size(most), size);
    }
    assert!(SIZES.is_sorted());
}

#[test]
fn one_of_100_backends_more_or_less_moves_at_most_1_percent_of_other_flows() {
    let all = backends(100);
    let slots = size(100);
    for gone in 0..100 {
        let mut rest = all.clone();
        rest.remove(gone);
        let fewest = shares(100, &table(&all))[gone];
        let needless = moved(&all, &rest) - fewest;
        assert!(needless * 100 <= slots, "{gone}: {needless} of {slots}");
        let fewest = shares(100, &table(&all))[gone];
        assert!((moved(&rest, &all) - fewest) * 100 <= slots, "{gone} comes");
    }
}

#[test]
fn shares_of_backends_differ_by_at_most_one_slot() {
    for count in [1, 2, 3, 7, 100, 256, 1000] {
        let shares = shares(count as usize, &table(&backends(count)));
        let (least, most) = (shares.iter().min(), shares.iter().max());
        assert!(most <= least.map(|n| n + 1).as_ref(), "{count}: {shares:?}");
    }
}

#[test]
fn a_backend_listed_twice_gets_two_shares() {
    let mut weighted = backends(3);
    weighted.push(weighted[1]);
    let shares = shares(4, &table(&weighted));
    let slots = size(4);
    assert!(
        (shares[1] + shares[3]).abs_diff(slots / 2) <= 2,
        "{shares:?}"
    );
}

#[test]
fn equal_weights_give_the_table_without_weights() {
    for count in [1, 5, 100] {
        let all = backends(count);
        for weight in [1, 7, 1_000_000] {
            assert_eq!(weighted(&all, &vec![weight; count as usize]), table(&all));
        }
    }
}

#[test]
fn shares_of_a_weighted_table_are_those_of_the_weights_within_half_a_percent() {
    for weights in [
        vec![1, 256],
        vec![0, 3, 1],
        (0..100).collect(),
        [vec![1; 30], vec![1_000_000]].concat(),
    ] {
        let count = weights.len();
        let table = weighted(&backends(count as u32), &weights);
        assert_eq!(table.len(), size(count));
        let all: u32 = weights.iter().sum();
        for (weight, share) in weights.iter().zip(shares(count, &table)) {
            assert_eq!(*weight == 0, share == 0);
            let wanted = f64::from(*weight) / f64::from(all);
            let got = share as f64 / table.len() as f64;
            assert!((wanted - got).abs() < 0.005, "{weights:?}: {got} {wanted}");
        }
    }
    assert_eq!(weighted(&backends(2), &[0, 0]), []);
}

/// A backend's slots move when its own share changes, and few others.
#[test]
fn a_change_of_one_weight_moves_its_share_and_at_most_2_percent_of_other_flows() {
    for count in [2, 4, 8, 30, 100] {
        let all = backends(count);
        for (at, from, to) in [
            (0, 1, 2),
            (1, 100, 50),
            (1, 100, 99),
            (0, 256, 1),
            (1, 0, 100),
            (0, 10, 0),
            (1, 3, 256),
        ] {
            for others in [1, 100] {
                let mut weights = vec![others; count as usize];
                weights[at] = from;
                let before = weighted(&all, &weights);
                weights[at] = to;
                let after = weighted(&all, &weights);
                let share = |table: &[u32]| shares(all.len(), table)[at];
                let needed = share(&before).abs_diff(share(&after));
                let pairs = before.iter().zip(&after);
                let moved = pairs.filter(|(before, after)| before != after).count();
                let needless = (moved - needed) as f64 / before.len() as f64;
                assert!(
                    needless <= 0.02,
                    "{count}, {from} to {to} beside {others}: {needed} needed, {moved} moved"
                );
            }
        }
    }
}

#[test]
fn the_order_of_the_backends_does_not_change_the_table() {
    let sorted = backends(20);
    let mut others = sorted.clone();
    others.reverse();
    others.swap(3, 11);
    let (one, other) = (table(&sorted), table(&others));
    let same = one.iter().zip(&other);
    assert!(
        same.clone()
            .all(|(a, b)| sorted[*a as usize] == others[*b as usize])
    );
}

#[test]
fn a_backends_slots_depend_on_its_address_and_port() {
    let address = backends(1)[0].0;
    let same_address: Vec<_> = (1..=4).map(|n| (address, Port::from_host(n))).collect();
    let shares = shares(4, &table(&same_address));
    assert!(shares.iter().all(|share| *share > 0), "{shares:?}");
    assert_ne!(table(&same_address)[..64], table(&backends(4))[..64]);
}

#[test]
fn with_more_backends_than_slots_the_last_backend_gets_none() {
    let count = 131_102;
    let table = table(&backends(count));
    assert_eq!(table.len(), size(count as usize));
    let shares = shares(count as usize, &table);
    assert_eq!(shares.iter().filter(|share| **share == 0).count(), 1);
    assert_eq!(shares.last(), Some(&0));
}

/// What nodes of every version must agree about. If a line differs, nodes of this version and of
/// others choose different backends for one client: then this needs a new name for the selection,
/// not another line.
#[test]
fn hash_numbers_and_maglev_tables_are_the_same_in_every_version() {
    let port = Port::from_host;
    let v4 = |octets| V4 { octets };
    let v6 = |last| {
        let mut octets = [0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        octets[15] = last;
        octets[3] ^= last << 4;
        V6 { octets }
    };
    let mut lines = Vec::new();
    let mut flow = |name: &str, number: u32| lines.push(format!("{name} = {number:08x}"));
    let (client, vip) = (v4([198, 51, 100, 7]), v4([203, 0, 113, 80]));
    for (client_port, frontend_port, protocol) in [
        (40_000, 80, Protocol::TCP),
        (40_001, 80, Protocol::TCP),
        (40_000, 443, Protocol::TCP),
        (40_000, 80, Protocol::UDP),
        (65_535, 65_535, Protocol::SCTP),
    ] {
        let number = |address| {
            let key = FrontendKey::new(address, port(frontend_port), protocol);
            select::flow_number(client, port(client_port), &key)
        };
        let name = protocol.name();
        flow(
            &format!("flow 198.51.100.7:{client_port} 203.0.113.80:{frontend_port} {name}"),
            number(vip),
        );
        flow(
            &format!("flow 198.51.100.7:{client_port} node port {frontend_port} {name}"),
            number(V4::UNSPECIFIED),
        );
        let key = FrontendKey::new(v6(8), port(frontend_port), protocol);
        flow(
            &format!(
                "flow [{:?}]:{client_port} [{:?}]:{frontend_port} {name}",
                v6(7),
                v6(8)
            ),
            select::flow_number(v6(7), port(client_port), &key),
        );
    }
    flow("client 198.51.100.7", select::client_number(client));
    flow(&format!("client {:?}", v6(7)), select::client_number(v6(7)));
    // A checksum of all slots (FNV-1a), and the first of them.
    let mut add = |name: String, table: Vec<u32>| {
        let sum = table.iter().fold(0xcbf2_9ce4_8422_2325_u64, |sum, owner| {
            (sum ^ u64::from(*owner)).wrapping_mul(0x0100_0000_01b3)
        });
        let (count, first) = (table.len(), &table[..12]);
        lines.push(format!(
            "table {name} = {count} slots, {sum:016x}, {first:?}"
        ));
    };
    for count in [1, 2, 3, 5, 99, 100, 1000] {
        add(
            format!("10.1.0.0 + {count}, port 8080"),
            table(&backends(count)),
        );
    }
    let six: Vec<_> = (0..6).map(|n| (v6(n), port(8080))).collect();
    add(
        format!("{:?} to {:?}, port 8080", v6(0), v6(5)),
        table(&six),
    );
    let text = lines.join("\n") + "\n";
    assert_eq!(text, include_str!("golden.txt"));
}
