// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A case's objects through model, tracker and planner: every service's plan.

use std::collections::BTreeMap;

use anyhow::{bail, ensure};
use config::NodePortAddresses;
use control::{
    change::Change,
    documents,
    model::{Converter, Kind, ObjectKey},
    object::ObjectName,
    plan::ServicePlan,
    planner::{claims::Claims, plan_service},
    tracker::ClusterState,
};
use lab::cases::format::{Config, Node};
use proxy_common::verdict::Policy;

/// The cluster of a case, as the agent on its node sees it.
pub(crate) struct Cluster {
    pub(crate) node: Node,
    pub(crate) policy: Policy,
    pub(crate) node_ports: NodePortAddresses,
    converter: Converter,
    pub(crate) state: ClusterState,
    claims: Claims,
    pub(crate) plans: BTreeMap<ObjectName, ServicePlan>,
}

impl Cluster {
    pub(crate) fn new(node: Node, settings: &Config) -> anyhow::Result<Self> {
        let node_ports = match settings.node_port_addresses.as_deref().unwrap_or_default() {
            [] => NodePortAddresses::Every,
            [only] if only == "primary" => NodePortAddresses::Primary,
            ranges => {
                let ranges: Result<_, _> = ranges.iter().map(|range| range.parse()).collect();
                NodePortAddresses::Within(ranges?)
            }
        };
        let address = |ip| serde_json::json!({"type": "InternalIP", "address": ip});
        let addresses: Vec<_> = node.ips.iter().map(address).collect();
        let object = serde_json::json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": {"name": node.name, "labels": node.labels},
            "status": {"addresses": addresses},
        });
        let mut cluster = Self {
            policy: Policy {
                masquerade_all: settings.masquerade_all.unwrap_or_default(),
                detects_pods: settings.local_detection.as_deref() != Some("none"),
            },
            node_ports,
            converter: Converter::new(&node.name),
            state: ClusterState::new(&node.name),
            claims: Claims::default(),
            plans: BTreeMap::new(),
            node,
        };
        cluster.apply(&object.to_string())?;
        Ok(cluster)
    }

    /// Adds objects, or replaces those with the same kind, namespace and name.
    pub(crate) fn apply(&mut self, text: &str) -> anyhow::Result<()> {
        let content = documents::read("step.yaml", text, &mut self.converter)?;
        if let Some(warning) = content.warnings.first() {
            bail!("{warning}");
        }
        for (object, warnings) in content.objects {
            if let Some(warning) = warnings.first() {
                // Some cases have endpoints of a family that the service lacks, on purpose.
                ensure!(
                    warning.reason.contains("is not served because"),
                    "{warning}"
                );
            }
            self.state.fold(Change::Upsert(object));
        }
        Ok(())
    }

    /// Removes an object, named Kind/namespace/name.
    pub(crate) fn delete(&mut self, text: &str) -> anyhow::Result<()> {
        let [kind, namespace, name] = text.split('/').collect::<Vec<_>>()[..] else {
            bail!("{text} is not Kind/namespace/name");
        };
        let kind = match kind {
            "Service" => Kind::Service,
            "EndpointSlice" => Kind::EndpointSlice,
            other => bail!("{other} is no kind of ours"),
        };
        let name = ObjectName::new(namespace, name);
        self.state.fold(Change::Delete(ObjectKey { kind, name }));
        Ok(())
    }

    /// Plans every service that has changed.
    pub(crate) fn sync(&mut self) -> anyhow::Result<()> {
        let mut dirty = self.state.take_dirty();
        for name in dirty.clone() {
            dirty.extend(self.claims.update(&name, self.state.service(&name).0));
        }
        for name in dirty {
            let (service, slices) = self.state.service(&name);
            let (plan, warnings) = service
                .map(|service| plan_service(service, slices, &self.state.view, &self.claims))
                .unwrap_or_default();
            ensure!(warnings.is_empty(), "{warnings:?}");
            if plan.ports.is_empty() {
                assert_eq!(
                    plan,
                    ServicePlan::default(),
                    "an empty plan is wholly empty"
                );
                self.plans.remove(&name);
            } else {
                self.plans.insert(name, plan);
            }
        }
        Ok(())
    }
}
