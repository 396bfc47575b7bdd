// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Service plans of the benchmarks `apply`, `packet` and `xdp`.

use control::plan::{BackendPlan, FamilyPlan, FrontendPlan, PortPlan, ServicePlan};
use proxy_common::{Addr, EndpointSet, FrontendKind, Port, Protocol, ServiceFlags, V4, V6};

/// Returns a frontend of this kind with backends that all have one port.
pub(crate) fn family<A: Addr>(
    kind: FrontendKind,
    (address, port): (A, u16),
    backends: impl Iterator<Item = A>,
    backend_port: u16,
) -> FamilyPlan<A> {
    let backend = |address| BackendPlan {
        address,
        port: Port::from_host(backend_port),
        sets: EndpointSet::CLUSTER,
        weight: 1,
        local_weight: None,
    };
    FamilyPlan {
        frontends: vec![FrontendPlan {
            address,
            port: Port::from_host(port),
            flags: ServiceFlags::new(kind).with(ServiceFlags::HAS_ENDPOINTS, true),
        }],
        backends: backends.map(backend).collect(),
    }
}

/// Returns a service with one port.
pub(crate) fn service(protocol: Protocol, v4: FamilyPlan<V4>, v6: FamilyPlan<V6>) -> ServicePlan {
    ServicePlan {
        ports: vec![PortPlan {
            name: "".into(),
            protocol,
            port: Port::from_host(80),
            affinity_timeout: 0,
            source_ranges: Vec::new(),
            v4,
            v6,
        }],
        ..ServicePlan::default()
    }
}
