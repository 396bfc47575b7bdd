// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The exact content of tables, because nodes of two versions may share one service. When a backend
//! of 100 comes or goes, or a weight changes, these tables move at most one or two in a hundred of
//! the flows that need not move.

use super::*;
use crate::{FrontendKey, Protocol, V4, V6, select};

fn backends(count: u32) -> Vec<(V4, Port)> {
    let address = |n: u32| V4 {
        octets: (0x0a01_0000 + n).to_be_bytes(),
    };
    let backend = |n| (address(n), Port::from_host(8080));
    (0..count).map(backend).collect()
}

fn table<A: Addr>(backends: &[(A, Port)]) -> Vec<u32> {
    weighted(backends, &vec![1; backends.len()])
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
        for (to, address) in [("203.0.113.80:", vip), ("node port ", V4::UNSPECIFIED)] {
            let text = format!("{from} {to}{frontend_port} {name}");
            flow(&text, number(address));
        }
        let key = FrontendKey::new(v6(8), port(frontend_port), protocol);
        let number = select::flow_number(v6(7), port(client_port), &key);
        let ends = [(7, client_port), (8, frontend_port)];
        let ends = ends.map(|(last, port)| format!("[{:?}]:{port}", v6(last)));
        flow(&format!("flow {} {name}", ends.join(" ")), number);
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
        let table = weighted(&backends(5), &weights);
        add(format!("of weights {weights:?}"), table);
    }
    assert_eq!(weighted(&five, &[0; 5]), []);
    let text = lines.join("\n") + "\n";
    assert_eq!(text, include_str!("golden.txt"));
}
