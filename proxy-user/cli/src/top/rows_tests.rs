// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests for the rates, sums and order of `top`.

use std::time::Instant;

use super::*;
use crate::{
    format::Format,
    list::tests::{compare, drawn, page},
};

fn port(service: &str) -> ServicePort {
    ServicePort {
        service: service.to_owned(),
        port_name: "http".to_owned(),
        port: 80,
        protocol: "TCP",
    }
}

fn backend(service_id: u32, last: u8, scale: u64) -> CountedBackend {
    CountedBackend {
        address: SocketAddr::from(([10, 40, 1, last], 8080)),
        service_id,
        generation: 0,
        backend_id: last.into(),
        traffic: Traffic {
            generation: 0,
            connections: scale,
            packets_in: 10 * scale,
            bytes_in: 1_000 * scale,
            packets_out: 20 * scale,
            bytes_out: 50_000 * scale,
            affinity_hits: 2,
            unanswered: 1,
            retransmitted: 3,
        },
    }
}

pub(crate) fn sample(scale: u64) -> Sample {
    let all = ["shop/cart", "shop/pay", "shop/empty"];
    Sample {
        at: Instant::now(),
        counters: vec![0; Counter::ALL.len()],
        counted: Counted {
            backends: vec![
                backend(1, 10, scale),
                backend(1, 11, 2 * scale),
                backend(2, 12, 7),
            ],
            others: Traffic::default(),
            shared: Traffic::default(),
            refused: vec![
                (2, Counter::DroppedSource, 4),
                (3, Counter::RejectedNoEndpoint, 5),
            ],
        },
        names: (1..).zip(all.map(port)).collect(),
    }
}

#[test]
fn traffic_without_a_service_port_is_in_the_row_others() {
    let mut now = sample(1);
    now.counted.others.packets_in = 9;
    now.counted.refused.push((0, Counter::DroppedFragment, 1));
    let rows = rows(&now, None, false);
    assert_eq!(label(&rows[0].of), "(others)");
    assert_eq!((rows[0].packets_in, rows[0].refused()), (9, 1));
}

#[test]
fn the_table_of_top_matches_its_stored_pictures() {
    let (then, now) = (sample(100), sample(150));
    for (backends, name) in [(false, "services"), (true, "backends")] {
        let mut rows = rows(&now, Some((&then, 2.0)), backends);
        rows.sort();
        for width in [80, 200] {
            let drawn = drawn(&page(width), &Format::Table, &rows);
            compare(&format!("top-{name}-{width}"), &drawn);
        }
    }
}
