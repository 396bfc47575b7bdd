// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The result of a flow by the plans: the frontend that it hits, and `decide`.

use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
};

use control::plan::{FamilyPlan, PortPlan, ServicePlan};
use proxy_common::{
    Addr, FrontendKind, Origin, Port, Protocol, ServiceFlags, Verdict, decide, verdict::is_hairpin,
};

use crate::cluster::Cluster;

/// The result of a flow by the plans.
#[derive(PartialEq, Debug)]
pub(crate) enum Fate {
    Untouched,
    Reject,
    Drop,
    Forward {
        backends: BTreeSet<SocketAddr>,
        masquerade: bool,
        sticky: bool,
    },
}

impl Cluster {
    /// Looks up the destination as the kernel programs do, and returns the result.
    pub(crate) fn fate(&self, from: IpAddr, to: SocketAddr, protocol: Protocol) -> Fate {
        match to.ip() {
            IpAddr::V4(address) => {
                let guarded = |plan: &ServicePlan| plan.guarded_v4.contains(&address.into());
                self.fate_in(from, to, protocol, address.into(), |port| &port.v4, guarded)
            }
            IpAddr::V6(address) => {
                let guarded = |plan: &ServicePlan| plan.guarded_v6.contains(&address.into());
                self.fate_in(from, to, protocol, address.into(), |port| &port.v6, guarded)
            }
        }
    }

    fn fate_in<A: Addr + Into<IpAddr>>(
        &self,
        from: IpAddr,
        to: SocketAddr,
        protocol: Protocol,
        address: A,
        family: impl Fn(&PortPlan) -> &FamilyPlan<A>,
        guarded: impl Fn(&ServicePlan) -> bool,
    ) -> Fate {
        let find = |wanted: A| {
            let mut hits = Vec::new();
            for port in self.plans.values().flat_map(|plan| &plan.ports) {
                let number = Port::from_host(to.port());
                let frontends = family(port).frontends.iter();
                let mut frontends = frontends.filter(|f| f.address == wanted && f.port == number);
                if port.protocol == protocol {
                    hits.extend(frontends.next().map(|frontend| (port, frontend)));
                    assert_eq!(frontends.next(), None, "{to} stands in a plan once");
                }
            }
            assert!(hits.len() <= 1, "{to} is one service's: {hits:?}");
            hits.pop()
        };
        let of_node = self.node.ips.contains(&to.ip()) || to.ip().is_loopback();
        let internal_ips = &self.state.view.internal_ips;
        let node_port = of_node && self.node_ports.serve(to.ip(), internal_ips);
        let at_node_port = || {
            if node_port {
                find(A::UNSPECIFIED)
            } else {
                None
            }
        };
        let Some((port, frontend)) = find(address).or_else(at_node_port) else {
            return if self.plans.values().any(guarded) {
                Fate::Reject
            } else {
                Fate::Untouched
            };
        };
        let flags = frontend.flags;
        let block = |external| -> BTreeSet<SocketAddr> {
            let backends = family(port).backends.iter();
            backends
                .filter(|b| b.weight > 0 && b.sets.intersects(flags.set_of_block(external)))
                .map(|b| SocketAddr::new(b.address.into(), b.port.host()))
                .collect()
        };
        let origin = if self.node.ips.contains(&from) || from.is_loopback() {
            Origin::Host
        } else if self.policy.detects_pods && self.node.pod_cidrs.iter().any(|r| r.contains(&from))
        {
            Origin::Pod
        } else {
            Origin::External
        };
        let allowed = port.source_ranges.iter().any(|range| range.contains(&from));
        let (inside, outside) = (!block(false).is_empty(), !block(true).is_empty());
        match decide(flags, origin, self.policy, inside, outside, allowed) {
            Verdict::Reject => Fate::Reject,
            Verdict::DropNoLocalEndpoint | Verdict::DropSource => Fate::Drop,
            Verdict::Forward {
                external,
                masquerade,
            } => {
                assert_ne!(frontend.kind(), FrontendKind::Unserved);
                let backends = block(external);
                let hairpin =
                    backends.len() == 1 && backends.iter().any(|b| is_hairpin(from, b.ip()));
                Fate::Forward {
                    backends,
                    masquerade: masquerade || hairpin,
                    sticky: flags.has(ServiceFlags::AFFINITY),
                }
            }
        }
    }
}
