// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Properties that every plan has, whatever the endpoints are.

use proptest::prelude::*;
use proxy_common::{EndpointSet, Port, ServiceFlags};

use super::{
    DRAINING, GONE, READY, UNREADY, ZONE_NODE,
    endpoints::{A, AB, B, HERE, THERE},
    octets, port,
};
use crate::testing::{Cluster, endpoint, service, slice};

fn any_endpoint() -> impl Strategy<Value = String> {
    let hints = prop::sample::select(vec!["", A, B, AB, HERE, THERE]);
    let conditions = prop::sample::select(vec![READY, UNREADY, DRAINING, GONE]);
    let node = prop::sample::select(vec!["node-a", "node-b"]);
    (1_u8..6, node, conditions, hints).prop_map(|(octet, node, conditions, hints)| {
        endpoint(octet, node, &format!("{conditions}{hints}"))
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn plans_keep_the_invariants_that_the_datapath_relies_on(
        slices in prop::collection::vec(prop::collection::vec(any_endpoint(), 0..6), 0..4),
        policies in prop::sample::select(vec!["", ", internalTrafficPolicy: Local", ", externalTrafficPolicy: Local"]),
    ) {
        let yaml = |order: &mut dyn Iterator<Item = (usize, &Vec<String>)>| {
            let rest = format!(", type: LoadBalancer, externalIPs: [192.0.2.1]{policies}");
            let mut text = ZONE_NODE.to_owned() + &service("cart", "172.30.0.1", &rest);
            for (n, endpoints) in order {
                text += &slice(&format!("s{n}"), "cart", endpoints);
            }
            text
        };
        let forward = yaml(&mut slices.iter().enumerate());
        let backward = yaml(&mut slices.iter().enumerate().rev());
        let plan = port(&Cluster::new(&forward), "shop/cart");
        // The order of slices does not matter.
        prop_assert_eq!(&plan, &port(&Cluster::new(&backward), "shop/cart"));
        let keys: Vec<_> = plan.v4.backends.iter().map(|b| (b.address, b.port)).collect();
        prop_assert!(keys.windows(2).all(|pair| pair[0] < pair[1]), "ordered, each once: {:?}", keys);
        let has_endpoints = plan.v4.frontends[0].flags.has(ServiceFlags::HAS_ENDPOINTS);
        let cluster_set = octets(&plan.v4, EndpointSet::CLUSTER);
        prop_assert_eq!(has_endpoints, !cluster_set.is_empty());
        prop_assert!(has_endpoints || octets(&plan.v4, EndpointSet::LOCAL).is_empty());
        prop_assert_eq!(plan.v4.frontends[0].port, Port::from_host(80));
    }
}
