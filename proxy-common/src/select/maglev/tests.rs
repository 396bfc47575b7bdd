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
        let (name, from) = (protocol.name(), format!("flow 198.51.100.7:{client_port}"));
        flow(
            &format!("{from} 203.0.113.80:{frontend_port} {name}"),
            number(vip),
        );
        let node_port = number(V4::UNSPECIFIED);
        flow(
            &format!("{from} node port {frontend_port} {name}"),
            node_port,
        );
        let key = FrontendKey::new(v6(8), port(frontend_port), protocol);
        let number = select::flow_number(v6(7), port(client_port), &key);
        let (from, to) = (v6(7), v6(8));
        flow(
            &format!("flow [{from:?}]:{client_port} [{to:?}]:{frontend_port} {name}"),
            number,
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
    // Of every size, and of more backends than slots.
    for count in [1, 2, 3, 5, 9, 17, 33, 65, 99, 100, 129, 1000, 131_102] {
        let name = format!("10.1.0.0 + {count}, port 8080");
        add(name, table(&backends(count)));
    }
    let six: Vec<_> = (0..6).map(|n| (v6(n), port(8080))).collect();
    let name = format!("{:?} to {:?}, port 8080", v6(0), v6(5));
    add(name, table(&six));
    // The order of the backends changes nothing but their indices.
    let five: Vec<_> = backends(5).into_iter().rev().collect();
    add("10.1.0.4 to 10.1.0.0".into(), table(&five));
    let ports: Vec<_> = (1..=4).map(|n| (five[0].0, port(n))).collect();
    add("10.1.0.4, ports 1 to 4".into(), table(&ports));
    for weights in [[7, 7, 7, 7, 7], [0, 3, 1, 256, 1_000_000]] {
        add(
            format!("of weights {weights:?}"),
            weighted(&backends(5), &weights),
        );
    }
    assert_eq!(weighted(&five, &[0; 5]), []);
    let text = lines.join("\n") + "\n";
    assert_eq!(text, include_str!("golden.txt"));
}
