// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Every conformance case judged by its plans alone: objects through model, tracker and planner, then
//! `decide` for each flow. No packet is sent; what only flows remember is for the conformance runner.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    net::{IpAddr, SocketAddr},
    path::Path,
};

use anyhow::{Context, bail, ensure};
use ipnet::IpNet;
use portolan::{
    config::NodePortAddresses,
    model::{Converter, Kind, ObjectKey},
    plan::{FamilyPlan, ObjectName, PortPlan, ServicePlan},
    planner::{claims::Claims, plan_service},
    tracker::ClusterState,
    watch::{Change, documents},
};
use proxy_common::{
    Addr, FrontendKind, Origin, Port, Protocol, ServiceFlags, Verdict, decide,
    verdict::{Policy, is_hairpin},
};
use serde::Deserialize;

#[derive(Deserialize)]
struct Case {
    node: Node,
    #[serde(default)]
    config: Settings,
    steps: Vec<Step>,
}

#[derive(Deserialize)]
struct Node {
    name: String,
    ips: Vec<IpAddr>,
    #[serde(default)]
    labels: serde_json::Map<String, serde_json::Value>,
    #[serde(rename = "podCIDRs", default)]
    pods: Vec<IpNet>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase")]
struct Settings {
    #[serde(default)]
    masquerade_all: bool,
    #[serde(default)]
    node_port_addresses: Vec<String>,
    local_detection: Option<String>,
}

#[derive(Deserialize)]
struct Step {
    apply: Option<String>,
    #[serde(default)]
    delete: Vec<String>,
    #[serde(default)]
    flows: Vec<Flow>,
}

#[derive(Deserialize, Debug)]
struct Flow {
    from: IpAddr,
    to: Option<SocketAddr>,
    protocol: Option<String>,
    expect: Option<Expect>,
    expect_health: Option<Health>,
    source_ports: Option<String>,
}

#[derive(Deserialize, Debug)]
#[serde(untagged)]
enum Expect {
    Word(String),
    Backends {
        backends: BTreeSet<SocketAddr>,
        masquerade: Option<bool>,
        #[serde(default)]
        sticky: bool,
    },
}

#[derive(Deserialize, Debug)]
struct Health {
    port: u16,
    status: u16,
}

/// What becomes of a flow by the plans.
#[derive(PartialEq, Debug)]
enum Fate {
    Untouched,
    Reject,
    Drop,
    Forward {
        backends: BTreeSet<SocketAddr>,
        masquerade: bool,
        sticky: bool,
    },
}

struct Cluster {
    node: Node,
    policy: Policy,
    node_ports: NodePortAddresses,
    converter: Converter,
    state: ClusterState,
    claims: Claims,
    plans: BTreeMap<ObjectName, ServicePlan>,
}

impl Cluster {
    fn new(node: Node, settings: &Settings) -> anyhow::Result<Self> {
        let node_ports = match &settings.node_port_addresses[..] {
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
                masquerade_all: settings.masquerade_all,
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

    fn apply(&mut self, text: &str) -> anyhow::Result<()> {
        let content = documents::read("step.yaml", text, &mut self.converter)?;
        if let Some(warning) = content.warnings.first() {
            bail!("{warning}");
        }
        for (object, warnings) in content.objects {
            if let Some(warning) = warnings.first() {
                // Addresses of a family that the service lacks are there on purpose.
                ensure!(
                    warning.reason.contains("is not served because"),
                    "{warning}"
                );
            }
            self.state.fold(Change::Upsert(object));
        }
        Ok(())
    }

    fn delete(&mut self, text: &str) -> anyhow::Result<()> {
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

    fn sync(&mut self) -> anyhow::Result<()> {
        let mut dirty = self.state.take_dirty();
        for name in dirty.clone() {
            dirty.extend(self.claims.update(&name, self.state.service(&name).0));
        }
        for name in dirty {
            let (service, slices) = self.state.service(&name);
            let (plan, warnings) = service
                .map(|service| plan_service(service, slices, self.state.view(), &self.claims))
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

    fn fate(&self, from: IpAddr, to: SocketAddr, protocol: Protocol) -> Fate {
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
        let internal_ips = &self.state.view().internal_ips;
        let node_port = of_node && self.node_ports.serve(to.ip(), internal_ips);
        let wildcard = || {
            if node_port {
                find(A::UNSPECIFIED)
            } else {
                None
            }
        };
        let Some((port, frontend)) = find(address).or_else(wildcard) else {
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
                .filter(|b| b.sets.intersects(flags.set_of_block(external)))
                .map(|b| SocketAddr::new(b.address.into(), b.port.host()))
                .collect()
        };
        let origin = if self.node.ips.contains(&from) || from.is_loopback() {
            Origin::Host
        } else if self.policy.detects_pods && self.node.pods.iter().any(|r| r.contains(&from)) {
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

    fn judge(&self, flow: &Flow) -> anyhow::Result<()> {
        if let Some(health) = &flow.expect_health {
            let plans = self.plans.values().filter_map(|plan| plan.health_check);
            let mut plans = plans.filter(|plan| plan.port == health.port);
            let plan = plans.next().context("no service is asked on this port")?;
            let status = if plan.local_endpoints > 0 { 200 } else { 503 };
            ensure!(status == health.status, "health status is {status}");
            return Ok(());
        }
        let to = flow.to.context("no address is named")?;
        let expect = flow.expect.as_ref().context("nothing is expected")?;
        let protocol = match flow.protocol.as_deref() {
            None | Some("TCP") => Protocol::TCP,
            Some("UDP") => Protocol::UDP,
            Some("SCTP") => Protocol::SCTP,
            Some(other) => bail!("unknown protocol {other}"),
        };
        let fate = self.fate(flow.from, to, protocol);
        let holds = match (expect, &fate) {
            // Where nobody listens on the node, the node itself refuses.
            (Expect::Word(word), Fate::Untouched) => {
                word == "untouched" || (word == "reject" && self.node.ips.contains(&to.ip()))
            }
            (Expect::Word(word), Fate::Reject) => word == "reject",
            (Expect::Word(word), Fate::Drop) => word == "drop",
            // A pod's own address leads to the pod without any service.
            (Expect::Backends { backends, .. }, Fate::Untouched) => {
                *backends == BTreeSet::from([to])
            }
            (
                Expect::Backends {
                    backends,
                    masquerade,
                    sticky,
                },
                Fate::Forward {
                    backends: planned,
                    masquerade: masqueraded,
                    sticky: held,
                },
            ) => {
                // Which of them a client or a flow with a past has is not in the plans.
                let may_have_past = *sticky || flow.source_ports.is_some();
                (backends == planned || (may_have_past && backends.is_subset(planned)))
                    && masquerade.is_none_or(|masquerade| masquerade == *masqueraded)
                    && (!sticky || *held)
            }
            _ => false,
        };
        ensure!(holds, "by the plans: {fate:?}");
        Ok(())
    }
}

/// Judges one case; returns how many flows it has.
fn run(path: &Path) -> anyhow::Result<usize> {
    let case: Case = serde_saphyr::from_str(&fs::read_to_string(path)?)?;
    let mut cluster = Cluster::new(case.node, &case.config)?;
    let mut judged = 0;
    for (index, step) in case.steps.iter().enumerate() {
        for deleted in &step.delete {
            cluster.delete(deleted)?;
        }
        if let Some(text) = &step.apply {
            cluster.apply(text)?;
        }
        cluster.sync()?;
        for flow in &step.flows {
            let judgement = cluster.judge(flow);
            judgement.with_context(|| format!("step {}, {flow:?}", index + 1))?;
            judged += 1;
        }
    }
    Ok(judged)
}

#[test]
fn the_plans_of_every_conformance_case_lead_to_what_it_expects() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../conformance/cases");
    let (mut cases, mut flows, mut failures) = (0, 0, Vec::new());
    for entry in fs::read_dir(folder).expect("the cases are there") {
        let path = entry.expect("a file").path();
        match run(&path) {
            Ok(judged) => flows += judged,
            Err(error) => failures.push(format!("{}: {error:#}", path.display())),
        }
        cases += 1;
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert!(cases >= 60 && flows >= 300, "{cases} cases, {flows} flows");
}

#[test]
fn a_case_that_expects_something_else_fails() {
    let mut path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../conformance/cases");
    path.push("cluster-ip-tcp.yaml");
    let text = fs::read_to_string(path).expect("the case is there");
    let folder = tempfile::tempdir().expect("a folder");
    for (from, to) in [
        ("masquerade: false", "masquerade: true"),
        ("ready: true", "ready: false"),
    ] {
        let wrong = folder.path().join("wrong.yaml");
        fs::write(&wrong, text.replace(from, to)).expect("write");
        run(&wrong).expect_err("it must not hold");
    }
}
