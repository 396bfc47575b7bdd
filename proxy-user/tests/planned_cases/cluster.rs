// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A case's objects through model, tracker and planner: every service's plan. And the result of a
//! flow by the plans: the frontend that it hits, and `decide`.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
};

use anyhow::{Context, bail, ensure};
use config::NodePortAddresses;
use control::{
    documents,
    model::{Converter, Kind},
    object::ObjectName,
    plan::ServicePlan,
    planner::plan_service,
    testing::{self, name},
};
use datapath::maps::family::Family;
use lab::cases::format::{Config, Node};
use proxy_common::{
    FrontendKind, Origin, Port, Protocol, ServiceFlags, V4, V6, Verdict, decide,
    verdict::{Policy, is_hairpin},
};

/// Objects, and the plans of their services.
pub(crate) struct Planned {
    converter: Converter,
    cluster: testing::Cluster,
    pub(crate) plans: BTreeMap<ObjectName, ServicePlan>,
}

impl Planned {
    pub(crate) fn new(node: &Node) -> Self {
        assert_eq!(node.name, testing::NODE);
        Self {
            converter: Converter::new(testing::NODE),
            cluster: testing::Cluster::new(""),
            plans: BTreeMap::new(),
        }
    }

    /// Removes objects, named Kind/namespace/name, adds others; plans every service changed.
    pub(crate) fn change(&mut self, deleted: &[String], manifests: &str) -> anyhow::Result<()> {
        let mut dirty = Vec::new();
        for object in deleted {
            let (kind, name) = object.split_once('/').context("not Kind/namespace/name")?;
            let kind = match kind {
                "Service" => Kind::Service,
                _ => Kind::EndpointSlice,
            };
            dirty.extend(self.cluster.delete(kind, name));
        }
        let content = documents::read("step.yaml", manifests, &mut self.converter)?;
        if let Some(warning) = content.warnings.first() {
            bail!("{warning}");
        }
        for warning in content.objects.iter().filter_map(|(_, all)| all.first()) {
            // Some cases have endpoints of a family that the service lacks, on purpose.
            let is_meant = warning.reason.contains("is not served because");
            ensure!(is_meant, "{warning}");
        }
        let objects = content.objects.into_iter().map(|(object, _)| object);
        dirty.extend(self.cluster.take(objects));
        let testing::Cluster { state, claims } = &self.cluster;
        for name in dirty.iter().map(|text| name(text)) {
            let (service, slices) = state.service(&name);
            let plan = service.map(|service| plan_service(service, slices, &state.view, claims));
            let (plan, warnings) = plan.unwrap_or_default();
            ensure!(warnings.is_empty(), "{warnings:?}");
            if plan.ports.is_empty() {
                let empty = ServicePlan::default();
                assert_eq!(plan, empty, "an empty plan is wholly empty");
                self.plans.remove(&name);
            } else {
                self.plans.insert(name, plan);
            }
        }
        Ok(())
    }
}

/// The cluster after a step of a case, as the agent on its node sees it.
pub(crate) struct Cluster<'a> {
    pub(crate) node: &'a Node,
    policy: Policy,
    node_ports: NodePortAddresses,
    pub(crate) planned: Planned,
}

impl<'a> Cluster<'a> {
    /// Plans every service in these manifests.
    pub(crate) fn new(node: &'a Node, settings: &Config, manifests: &str) -> anyhow::Result<Self> {
        let node_ports = match settings.node_port_addresses.as_deref().unwrap_or_default() {
            [] => NodePortAddresses::Every,
            [only] if only == "primary" => NodePortAddresses::Primary,
            ranges => {
                let ranges: Result<_, _> = ranges.iter().map(|range| range.parse()).collect();
                NodePortAddresses::Within(ranges?)
            }
        };
        let policy = Policy {
            masquerade_all: settings.masquerade_all.unwrap_or_default(),
            detects_pods: settings.local_detection.as_deref() != Some("none"),
        };
        let mut planned = Planned::new(node);
        planned.change(&[], manifests)?;
        Ok(Self {
            node,
            policy,
            node_ports,
            planned,
        })
    }
}

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

impl Cluster<'_> {
    /// Looks up the destination as the kernel programs do, and returns the result.
    pub(crate) fn fate(&self, from: IpAddr, to: SocketAddr, protocol: Protocol) -> Fate {
        match to.is_ipv4() {
            true => self.fate_in::<V4>(from, to, protocol),
            false => self.fate_in::<V6>(from, to, protocol),
        }
    }

    fn fate_in<A: Family>(&self, from: IpAddr, to: SocketAddr, protocol: Protocol) -> Fate {
        let address = A::of_ip(to.ip()).expect("of the family");
        let find = |wanted: A| {
            let mut hits = Vec::new();
            for port in self.planned.plans.values().flat_map(|plan| &plan.ports) {
                let number = Port::from_host(to.port());
                let frontends = A::of_port(port).frontends.iter();
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
        let internal_ips = &self.planned.cluster.state.view.internal_ips;
        let node_port = of_node && self.node_ports.serve(to.ip(), internal_ips);
        let at_node_port = || find(A::UNSPECIFIED).filter(|_| node_port);
        let Some((port, frontend)) = find(address).or_else(at_node_port) else {
            let mut plans = self.planned.plans.values();
            return match plans.any(|plan| A::guarded(plan).contains(&address)) {
                true => Fate::Reject,
                false => Fate::Untouched,
            };
        };
        let flags = frontend.flags;
        let block = |external| -> BTreeSet<SocketAddr> {
            let backends = A::of_port(port).backends.iter();
            backends
                .filter(|b| b.weight > 0 && b.sets.intersects(flags.set_of_block(external)))
                .map(|b| SocketAddr::new(b.address.into(), b.port.host()))
                .collect()
        };
        let mut pods = self.node.pod_cidrs.iter();
        let is_pod = pods.any(|range| range.contains(&from));
        let origin = if self.node.ips.contains(&from) || from.is_loopback() {
            Origin::Host
        } else if self.policy.detects_pods && is_pod {
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
                assert_ne!(frontend.flags.kind(), FrontendKind::Unserved);
                let backends = block(external);
                let only = backends.first().filter(|_| backends.len() == 1);
                let hairpin = only.is_some_and(|b| is_hairpin(from, b.ip()));
                Fate::Forward {
                    backends,
                    masquerade: masquerade || hairpin,
                    sticky: flags.has(ServiceFlags::AFFINITY),
                }
            }
        }
    }
}
