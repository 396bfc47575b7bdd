// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Runs conformance cases on simulated nodes. Cases with the same node and settings share its hosts
//! and its agent, one after the other: in between the agent's maps must become empty. Called by
//! `main`, on several threads.

use std::{
    collections::BTreeSet,
    path::PathBuf,
    sync::atomic::{AtomicUsize, Ordering},
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use datapath::read::Reader;
use lab::{
    cases::{
        cluster::{self, ClusterState, Endpoint},
        cluster_api::ClusterApi,
        flows::Flows,
        format::{Case, Flow},
        hosts::hosts,
    },
    interrupt::INTERRUPTED,
    node::{
        agent::{Agent, Options},
        cgroup::Cgroup,
        layout::Layout,
        settings::{Forwarding, SocketBalancing, Xdp},
        topology::{Plumbing, Topology},
    },
};
use proxy_common::Counter;

use crate::explained::Explainer;

/// How many of the last lines of the agent's log are printed with a failure.
const LOG_TAIL: usize = 25;
/// Another thread starts another agent for the same cases if each agent has so many.
const CASES_PER_AGENT: usize = 12;
/// How long the agent may take to remove what a case's objects left in its maps.
const TO_EMPTY: Duration = Duration::from_secs(10);

/// The agent's settings and its environment for a run of a case.
pub(crate) struct Settings {
    pub(crate) binary: PathBuf,
    pub(crate) plumbing: Plumbing,
    pub(crate) balancing: SocketBalancing,
    pub(crate) forwarding: Forwarding,
    pub(crate) xdp: Xdp,
    pub(crate) source: ObjectSource,
}

/// Where the agent's objects come from.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(crate) enum ObjectSource {
    Manifests,
    /// A real API server on the node.
    Api,
}

/// The result of a case.
#[derive(Default)]
pub(crate) struct CaseResult {
    /// The number of flows that were checked, whether they passed or failed.
    pub(crate) flows: usize,
    pub(crate) failures: Vec<String>,
    /// The number of packets that XDP took.
    pub(crate) taken: u64,
    /// The last lines of the agent's log; empty if nothing failed.
    pub(crate) log: Vec<String>,
}

/// Cases that share a node, its hosts and its settings.
pub(crate) struct Group<'a> {
    settings: &'a Settings,
    cases: Vec<&'a Case>,
    layout: Layout,
    /// How many threads have come for cases.
    threads: AtomicUsize,
    next: AtomicUsize,
}

impl<'a> Group<'a> {
    /// Divides cases into groups: the largest whose cases agree about who owns which address.
    pub(crate) fn of(cases: &'a [Case], settings: &'a Settings) -> Result<Vec<Self>> {
        let mut groups: Vec<Self> = Vec::new();
        'cases: for case in cases {
            let own = layout(&[case])?;
            for group in &mut groups {
                let first = group.cases[0];
                if first.node == case.node && first.config == case.config {
                    let together = layout(&[&group.cases[..], &[case]].concat())?;
                    if together.agrees(&group.layout) && together.agrees(&own) {
                        group.layout = together;
                        group.cases.push(case);
                        continue 'cases;
                    }
                }
            }
            groups.push(Self {
                settings,
                cases: vec![case],
                layout: own,
                threads: AtomicUsize::new(0),
                next: AtomicUsize::new(0),
            });
        }
        Ok(groups)
    }

    /// Runs cases that no other thread has taken, and reports each. After a failure the next case
    /// gets a new node.
    pub(crate) fn work(&self, report: impl Fn(&Case, &Settings, &CaseResult)) {
        let agents = self.threads.fetch_add(1, Ordering::Relaxed);
        if agents * CASES_PER_AGENT >= self.cases.len() {
            return;
        }
        while let Some(first) = self.take() {
            let mut next = Some(first);
            let built = self.on_a_node(|node| {
                while let Some(case) = next.take() {
                    let result = node.run(case);
                    report(case, self.settings, &result);
                    if result.failures.is_empty() {
                        next = self.take();
                    }
                }
            });
            if let (Err(error), Some(case)) = (built, next) {
                let failures = vec![format!("{error:#}")];
                let result = CaseResult {
                    failures,
                    ..CaseResult::default()
                };
                report(case, self.settings, &result);
            }
        }
    }

    fn take(&self) -> Option<&'a Case> {
        let is_over = INTERRUPTED.load(Ordering::Relaxed);
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.cases.get(number).copied().filter(|_| !is_over)
    }

    /// Builds the node and starts its agent without services.
    fn on_a_node(&self, then: impl FnOnce(&mut Node<'_>)) -> Result<()> {
        let (settings, case) = (self.settings, self.cases[0]);
        let topology = Topology::build(self.layout.clone(), settings.plumbing);
        let topology = topology.context("build the topology")?;
        let cgroup = Cgroup::new()?;
        let config = case.config.render(settings.forwarding, settings.xdp);
        if settings.xdp != Xdp::Off {
            topology.prepare_for_xdp()?;
        }
        let first = ClusterState::default().render(&case.node, FIRST_VERSION);
        let (mut server, mut version) = (None, FIRST_VERSION);
        if settings.source == ObjectSource::Api {
            let advertise = case.node.ips.first().context("the node has no address")?;
            let mut api = ClusterApi::start(&topology.node, &advertise.to_string())?;
            version = api.publish(&first).context("make the node's object")?;
            server = Some(api);
        }
        let kubeconfig = server.as_ref().map(|api| api.server().kubeconfig());
        let options = Options {
            binary: &settings.binary,
            node_name: &case.node.name,
            cluster_cidrs: case.config.cluster_cidrs(&case.node.pod_cidrs),
            config: &config,
            socket_balancing: settings.balancing,
            kubeconfig: kubeconfig.as_deref(),
            cgroup_root: cgroup.path(),
        };
        let mut agent = Agent::start(&topology.node, &options, &first)?;
        agent.wait_for(version).context("start the agent")?;
        then(&mut Node {
            settings,
            topology: &topology,
            cgroup: &cgroup,
            agent,
            server,
            version: FIRST_VERSION,
        });
        Ok(())
    }
}

/// Returns the hosts that these cases need together.
fn layout(cases: &[&Case]) -> Result<Layout> {
    let mut together = BTreeSet::new();
    for case in cases {
        together.extend(endpoints(case)?);
    }
    let steps = cases.iter().flat_map(|case| &case.steps);
    let flows: Vec<_> = steps.flat_map(|step| &step.flows).collect();
    let node = &cases.first().context("a group has a case")?.node;
    Ok(hosts(node, &flows, &together))
}

fn endpoints(case: &Case) -> Result<BTreeSet<Endpoint>> {
    let mut endpoints = BTreeSet::new();
    for apply in case.steps.iter().filter_map(|step| step.apply.as_deref()) {
        endpoints.extend(cluster::endpoints(apply, &case.node.name)?);
    }
    Ok(endpoints)
}

/// The version of the node's object at the agent's start; each change of objects increases it.
const FIRST_VERSION: u64 = 1;

/// A node with an agent, on which cases run one after the other.
struct Node<'a> {
    settings: &'a Settings,
    topology: &'a Topology,
    cgroup: &'a Cgroup,
    agent: Agent<'a>,
    /// The API server to which objects are written; without one, they are manifests.
    server: Option<ClusterApi<'a>>,
    version: u64,
}

impl Node<'_> {
    /// Runs a case. A signal ends it early, as a failure.
    fn run(&mut self, case: &Case) -> CaseResult {
        let mut result = CaseResult::default();
        if let Err(error) = self.try_run(case, &mut result) {
            result.failures.push(format!("{error:#}"));
        }
        if !result.failures.is_empty() {
            result.log = self.agent.log_tail(LOG_TAIL);
        }
        result
    }

    fn try_run(&mut self, case: &Case, result: &mut CaseResult) -> Result<()> {
        let balancing = self.settings.balancing;
        let endpoints = endpoints(case)?;
        let mut flows = Flows::new(self.topology, self.cgroup, &endpoints, balancing)?;
        let before = self.taken()?;
        let mut state = ClusterState::default();
        for (number, step) in (1..).zip(&case.steps) {
            let attempt = || format!("step {number}");
            for object in &step.delete {
                state.delete(object).with_context(attempt)?;
            }
            if let Some(apply) = &step.apply {
                state.apply(apply).with_context(attempt)?;
            }
            if step.apply.is_some() || !step.delete.is_empty() {
                self.publish(&state, case).with_context(attempt)?;
            }
            let explainer = Explainer {
                settings: self.settings,
                pins: self.agent.pin_dir(),
                topology: self.topology,
            };
            for flow in &step.flows {
                let name = format!("step {number} flow {}", name_of(flow));
                result.flows += 1;
                if let Err(reason) = explainer.check(flow).with_context(|| name.clone())? {
                    result.failures.push(format!("{name} {reason}"));
                }
                if let Err(reason) = flows.check(flow).with_context(|| name.clone())? {
                    result.failures.push(format!("{name} {reason}"));
                }
            }
        }
        result.taken = self.taken()? - before;
        self.publish(&ClusterState::default(), case)
            .and_then(|()| self.becomes_empty())
            .context("after the case's objects are gone")
    }

    /// Makes the cluster's objects those of a state, and waits until the agent has applied them.
    fn publish(&mut self, state: &ClusterState, case: &Case) -> Result<()> {
        self.version += 1;
        let manifests = state.render(&case.node, self.version);
        let shown = match &mut self.server {
            None => self.agent.publish(&manifests).map(|()| self.version),
            // The node's version, which the agent shows once applied.
            Some(api) => api.publish(&manifests),
        };
        self.agent.wait_for(shown?)
    }

    /// Waits until nothing of a service is in the maps, and session affinity leads to no endpoint.
    fn becomes_empty(&self) -> Result<()> {
        let deadline = Instant::now() + TO_EMPTY;
        loop {
            let maps = Reader::open(self.agent.pin_dir())?;
            let mut left = (maps.frontends()?, maps.backends()?, maps.affinities()?);
            // The API server's own service.
            left.0
                .retain(|frontend| frontend.service != "default/kubernetes");
            left.1
                .retain(|backend| backend.service != "default/kubernetes");
            left.2.retain(|affinity| affinity.backend.is_some());
            if left.0.is_empty() && left.1.is_empty() && left.2.is_empty() {
                return Ok(());
            }
            ensure!(Instant::now() < deadline, "in the maps is left {left:?}");
            sleep(Duration::from_millis(50));
        }
    }

    /// Returns the number of packets that XDP has taken, by the counters in the pinned maps.
    fn taken(&self) -> Result<u64> {
        if self.settings.xdp == Xdp::Off {
            return Ok(0);
        }
        let counters = Reader::open(self.agent.pin_dir())?.counters()?;
        let of = |counter: Counter| counters.get(counter as usize).copied().unwrap_or_default();
        Ok(of(Counter::ForwardedByXdp) + of(Counter::ReplyByXdp))
    }
}

/// Returns the flow's name for messages: source, destination and protocol.
fn name_of(flow: &Flow) -> String {
    match (flow.to, flow.expect_health) {
        (Some(to), _) => format!("{} -> {to} {}", flow.from, flow.protocol.name()),
        (None, Some(health)) => format!("{} -> health check node port {}", flow.from, health.port),
        (None, None) => flow.from.to_string(),
    }
}
