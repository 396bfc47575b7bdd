// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Runs one conformance case on one simulated node: starts the agent, applies the case's steps and
//! checks the flows of each step. Called by `main`, on a thread of its own.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use datapath::read::Reader;
use lab::{
    cases::{
        cluster::{self, ClusterState},
        cluster_api::ClusterApi,
        flows::Flows,
        format::{Case, Flow},
        hosts::hosts,
    },
    node::{
        agent::{Agent, Manifests, Options},
        cgroup::Cgroup,
        settings::{Forwarding, SocketBalancing, Xdp},
        topology::{Plumbing, Topology},
    },
};
use proxy_common::Counter;

use crate::explained::Explainer;

/// How many of the last lines of the agent's log are printed with a failure.
const LOG_TAIL: usize = 25;

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

/// Where a step writes its Kubernetes objects, so that the agent reads them.
enum Target<'a> {
    Folder,
    Server(Box<ClusterApi<'a>>),
}

impl Target<'_> {
    /// Writes the objects; returns the Node's version, which the agent shows once applied.
    fn publish(&mut self, agent: &Agent<'_>, manifests: &str, version: u64) -> Result<u64> {
        match self {
            Self::Folder => agent.publish(manifests).map(|()| version),
            Self::Server(api) => api.publish(manifests),
        }
    }
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

/// Runs a case with these settings. A signal ends it early, as a failure.
pub(crate) fn run(case: &Case, settings: &Settings) -> CaseResult {
    let mut result = CaseResult::default();
    if let Err(error) = try_run(case, settings, &mut result) {
        result.failures.push(format!("{error:#}"));
    }
    result
}

fn try_run(case: &Case, settings: &Settings, result: &mut CaseResult) -> Result<()> {
    let mut endpoints = BTreeSet::new();
    for apply in case.steps.iter().filter_map(|step| step.apply.as_deref()) {
        endpoints.extend(cluster::endpoints(apply, &case.node.name)?);
    }
    let flows: Vec<_> = case.steps.iter().flat_map(|step| &step.flows).collect();
    let layout = hosts(&case.node, &flows, &endpoints);
    let topology = Topology::build(layout, settings.plumbing).context("build the topology")?;
    let cgroup = Cgroup::new()?;
    let mut flows = Flows::new(&topology, &cgroup, &endpoints, settings.balancing)?;
    let config = case.config.render(settings.forwarding, settings.xdp);
    if settings.xdp != Xdp::Off {
        topology.prepare_for_xdp()?;
    }
    let first = ClusterState::default().render(&case.node, FIRST_VERSION);
    let (mut target, mut version) = (Target::Folder, FIRST_VERSION);
    if settings.source == ObjectSource::Api {
        let advertise = case.node.ips.first().context("the node has no address")?;
        let mut api = ClusterApi::start(&topology.node, &advertise.to_string())?;
        version = api.publish(&first).context("make the node's object")?;
        target = Target::Server(Box::new(api));
    }
    let kubeconfig = match &target {
        Target::Folder => None,
        Target::Server(api) => Some(api.server().kubeconfig()),
    };
    let options = Options {
        binary: &settings.binary,
        node_name: &case.node.name,
        cluster_cidrs: case.config.cluster_cidrs(&case.node.pod_cidrs),
        config: &config,
        socket_balancing: settings.balancing,
        kubeconfig: kubeconfig.as_deref(),
        cgroup_root: cgroup.path(),
    };
    let mut agent = Agent::start(&topology.node, &options, &Manifests::Text(&first))?;
    agent.wait_for(version).context("start the agent")?;
    let pins = agent.pin_dir().to_owned();
    let explainer = Explainer {
        binary: &settings.binary,
        pins: &pins,
        topology: &topology,
        balancing: settings.balancing,
    };
    let done = run_steps(
        case,
        &mut agent,
        &mut target,
        &mut flows,
        &explainer,
        result,
    );
    if settings.xdp != Xdp::Off {
        result.taken = taken(&pins)?;
    }
    if done.is_err() || !result.failures.is_empty() {
        result.log = agent.log_tail(LOG_TAIL);
    }
    done
}

/// Returns the number of packets that XDP has taken, by the counters in the pinned maps.
fn taken(pins: &Path) -> Result<u64> {
    let counters = Reader::open(pins)?.counters()?;
    let of = |counter: Counter| counters.get(counter as usize).copied().unwrap_or_default();
    Ok(of(Counter::ForwardedByXdp) + of(Counter::ReplyByXdp))
}

/// The version of the node's object with which the agent starts; each step increases it.
const FIRST_VERSION: u64 = 1;

fn run_steps(
    case: &Case,
    agent: &mut Agent<'_>,
    target: &mut Target<'_>,
    flows: &mut Flows<'_>,
    explainer: &Explainer<'_>,
    result: &mut CaseResult,
) -> Result<()> {
    let mut state = ClusterState::default();
    let mut version = FIRST_VERSION;
    for (number, step) in (1..).zip(&case.steps) {
        let attempt = || format!("step {number}");
        for object in &step.delete {
            state.delete(object).with_context(attempt)?;
        }
        if let Some(apply) = &step.apply {
            state.apply(apply).with_context(attempt)?;
        }
        if step.apply.is_some() || !step.delete.is_empty() {
            version += 1;
            let manifests = state.render(&case.node, version);
            let shown = target
                .publish(agent, &manifests, version)
                .with_context(attempt)?;
            agent.wait_for(shown).with_context(attempt)?;
        }
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
    Ok(())
}

/// Returns the flow's name for messages: source, destination and protocol.
fn name_of(flow: &Flow) -> String {
    match (flow.to, flow.expect_health) {
        (Some(to), _) => format!("{} -> {to} {}", flow.from, flow.protocol.name()),
        (None, Some(health)) => format!("{} -> health check node port {}", flow.from, health.port),
        (None, None) => flow.from.to_string(),
    }
}
