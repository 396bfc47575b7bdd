// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Shares of new connections by the weights of backends. What weight 0 leaves to a backend stands
//! in tests/fuzz/cases/weights.txt.

use std::collections::BTreeMap;

use proxy_common::ServiceFlags;
use rstest::rstest;

use crate::{
    packets::{Tcp, at, tcp},
    service::{Addresses, IPV4, IPV6, Service},
    world::{NEXT, World},
};

#[rstest]
fn of_100_000_connections_each_backend_gets_its_share_within_2_percent(
    #[values(IPV4, IPV6)] a: Addresses,
    #[values(false, true)] is_maglev: bool,
) {
    const CONNECTIONS: u32 = 100_000;
    const PORTS: u32 = 50_000;
    let weights = [256, 0, 100, 44];
    let backends = [a.backend, a.other_backend].map(|pod| [at(pod, 8080), at(pod, 8081)]);
    let mut service = Service::web(a).backed_by(backends.as_flattened());
    service.weights = weights.to_vec();
    if is_maglev {
        service.frontends[0].3 = ServiceFlags::MAGLEV;
    }
    let world = World::with(|options| options.capacities.slots = 8192, &[service]);
    for n in 0..CONNECTIONS {
        let client = if n < PORTS { a.pod } else { a.outsider };
        let client = at(client, (10_000 + n % PORTS) as u16);
        let syn = tcp(client, a.service(), Tcp::Syn, b"");
        assert_eq!(world.ingress_quietly(&syn), NEXT);
    }
    let counted = world.counted().backends.into_iter();
    let connections: BTreeMap<_, _> = counted
        .map(|backend| (backend.address, backend.traffic.connections))
        .collect();
    for (backend, weight) in backends.as_flattened().iter().zip(weights) {
        let share = connections[backend] as f64 / f64::from(CONNECTIONS);
        let wanted = f64::from(weight) / 400.0;
        assert!((share - wanted).abs() < 0.02, "{backend}: {share}");
        assert_eq!(weight == 0, share == 0.0, "{backend}: {share}");
    }
}
