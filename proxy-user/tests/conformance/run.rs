// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Runs one case on one simulated node: starts the agent, applies the steps, opens the connections,
//! has them judged. Called by `main`, on a thread of its own.

use std::{
    collections::{BTreeMap, BTreeSet, btree_map::Entry},
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use proxy_common::Protocol;

use crate::{
    cgroup::Cgroup,
    support::{
        agent::{Agent, Options},
        capture::Capture,
        cases::{Case, Expect, Flow, Health, SourcePorts},
        clients::Client,
        cluster::{self, ClusterState},
        judge::{self, Situation},
        layout::{Host, Layout},
        probe::{Attempt, Outcome},
        servers::{Listening, Servers},
        topology::{Plumbing, Topology, UPLINK_PEER},
    },
};

/// Lines of the agent's log that go with a failure.
const LOG_TAIL: usize = 25;
/// Bytes that the first connection of a flow carries each way, to have segments joined and split.
const BULK: usize = 60_000;
const DATAGRAM: usize = 1_000;
/// How long an answer to an address that nobody owns is waited for.
const NOBODY_PATIENCE: Duration = Duration::from_millis(500);
/// Where the ports of `source_ports: same` begin.
const FIRST_SAME_PORT: u16 = 45_000;

/// Where connections are translated.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(crate) enum SocketBalancing {
    /// At the sockets of pods and node processes.
    All,
    /// At the sockets of node processes; pods' connections per packet.
    Host,
}

impl SocketBalancing {
    const fn name(self) -> &'static str {
        match self {
            Self::All => "all",
            Self::Host => "host",
        }
    }
}

/// What all runs have in common.
pub(crate) struct Settings {
    pub(crate) binary: PathBuf,
    pub(crate) balancing: SocketBalancing,
    /// Judge the flows of node processes, too.
    pub(crate) node_flows: bool,
}

/// What became of a case.
#[derive(Default)]
pub(crate) struct Report {
    /// Flows that held or failed.
    pub(crate) flows: usize,
    pub(crate) pending: Vec<String>,
    pub(crate) failures: Vec<String>,
    /// The end of the agent's log, if anything failed.
    pub(crate) log: Vec<String>,
}

/// Runs a case in one plumbing. `cancelled` ends it early, as a failure.
pub(crate) fn run(
    case: &Case,
    plumbing: Plumbing,
    settings: &Settings,
    cancelled: &AtomicBool,
) -> Report {
    let mut report = Report::default();
    if let Err(error) = try_run(case, plumbing, settings, cancelled, &mut report) {
        report.failures.push(format!("{error:#}"));
    }
    report
}

fn try_run(
    case: &Case,
    plumbing: Plumbing,
    settings: &Settings,
    cancelled: &AtomicBool,
    report: &mut Report,
) -> Result<()> {
    let mut endpoints = BTreeSet::new();
    for apply in case.steps.iter().filter_map(|step| step.apply.as_deref()) {
        endpoints.extend(cluster::endpoints(apply, &case.node.name)?);
    }
    let topology = Topology::build(Layout::from_case(case, &endpoints), plumbing)
        .context("build the topology")?;
    let servers = Servers::start()?;
    let mut listening = BTreeMap::new();
    for endpoint in &endpoints {
        let key = (endpoint.address, endpoint.protocol.0);
        let owner = topology.namespace_of(endpoint.address.ip());
        // An endpoint that no host can have (a loopback address, a family that the node lacks) serves nobody.
        let Some(namespace) = owner.filter(|_| !endpoint.address.ip().is_loopback()) else {
            continue;
        };
        if let Entry::Vacant(entry) = listening.entry(key) {
            entry.insert(servers.listen(namespace, endpoint.protocol, endpoint.address)?);
        }
    }

    let cgroup = match settings.balancing {
        SocketBalancing::All => Some(Cgroup::join()?),
        SocketBalancing::Host => None,
    };
    let config = if serde_json::to_value(&case.config)? == serde_json::json!({}) {
        String::new()
    } else {
        serde_json::to_string(&case.config)?
    };
    let options = Options {
        binary: &settings.binary,
        node_name: &case.node.name,
        cluster_cidrs: &case.node.pod_cidrs,
        config: &config,
        socket_balancing: settings.balancing.name(),
        cgroup_root: cgroup.as_ref().map(|cgroup| -> &Path { cgroup.path() }),
    };
    let mut state = ClusterState::default();
    let mut version = 1;
    let agent = Agent::start(&topology.node, &options, &state.render(&case.node, version))?;
    let mut runner = Runner {
        case,
        settings,
        topology: &topology,
        servers: &servers,
        listening,
        same_ports: BTreeMap::new(),
        agent,
        cancelled,
    };
    let result = runner
        .agent
        .wait_for(version)
        .context("start the agent")
        .and_then(|()| {
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
                    runner.agent.publish(&state.render(&case.node, version))?;
                    runner.agent.wait_for(version).with_context(attempt)?;
                }
                for flow in &step.flows {
                    runner.check(number, flow, report)?;
                }
            }
            Ok(())
        });
    if result.is_err() || !report.failures.is_empty() {
        report.log = runner.agent.log_tail(LOG_TAIL);
    }
    result
}

struct Runner<'a> {
    case: &'a Case,
    settings: &'a Settings,
    topology: &'a Topology,
    servers: &'a Servers,
    listening: BTreeMap<(SocketAddr, u8), Listening>,
    /// The port of `source_ports: same` by client, destination and protocol.
    same_ports: BTreeMap<(IpAddr, SocketAddr, u8), u16>,
    agent: Agent<'a>,
    cancelled: &'a AtomicBool,
}

impl Runner<'_> {
    fn check(&mut self, step: usize, flow: &Flow, report: &mut Report) -> Result<()> {
        self.go_on()?;
        let name = name_of(flow);
        let from_node = self.topology.layout.owner(flow.from) == Some(Host::Node);
        if from_node && !self.settings.node_flows {
            report.pending.push(format!("step {step} flow {name}"));
            return Ok(());
        }
        if let Some(pause) = flow.wait {
            self.pause(pause)?;
        }
        report.flows += 1;
        let verdict = match (&flow.expect_health, flow.to, &flow.expect) {
            (Some(health), _, _) => self
                .check_health(flow, *health)
                .map_err(|seen| format!("expected HTTP status {}, saw {seen}", health.status)),
            (None, Some(to), Some(expect)) => {
                let attempts = self
                    .call(flow, to, expect)
                    .with_context(|| format!("step {step} flow {name}"))?;
                judge::judge(expect, &attempts, &self.situation(flow, to, from_node))
                    .map_err(|seen| format!("expected {expect}, saw {seen}"))
            }
            // Cannot be: reading the case has checked it.
            _ => Err("expected nothing: no `to` and no `expect_health`".to_owned()),
        };
        if let Err(reason) = verdict {
            report
                .failures
                .push(format!("step {step} flow {name} {reason}"));
        }
        Ok(())
    }

    fn situation(&self, flow: &Flow, to: SocketAddr, from_node: bool) -> Situation<'_> {
        let is_local = matches!(
            self.topology.layout.owner(flow.from),
            Some(Host::Node | Host::Pod(_))
        );
        // Raw sockets, which our SCTP uses, have no socket hook.
        let hooked = is_local && flow.protocol != Protocol::SCTP;
        Situation {
            protocol: flow.protocol,
            to,
            node: &self.topology.node_addresses,
            client_is_node: from_node,
            at_the_socket: hooked && (from_node || self.settings.balancing == SocketBalancing::All),
            same_port: flow.source_ports == Some(SourcePorts::Same),
        }
    }

    /// Opens the flow's connections, one after the other.
    fn call(&mut self, flow: &Flow, to: SocketAddr, expect: &Expect) -> Result<Vec<Attempt>> {
        let port = match flow.source_ports {
            Some(SourcePorts::Same) => {
                let free =
                    FIRST_SAME_PORT + u16::try_from(self.same_ports.len()).unwrap_or_default();
                *self
                    .same_ports
                    .entry((flow.from, to, flow.protocol.0))
                    .or_insert(free)
            }
            None => 0,
        };
        let mut client = Client {
            port,
            ..self.client(flow)?
        };
        let owner = self.topology.namespace_of(to.ip());
        let untouched = *expect == Expect::Untouched;
        // The listener of an `untouched` flow is there for this flow only.
        let _listening = match owner {
            Some(namespace)
                if untouched && !self.listening.contains_key(&(to, flow.protocol.0)) =>
            {
                Some(self.servers.listen(namespace, flow.protocol, to)?)
            }
            _ => None,
        };
        let watched = untouched && owner.is_none();
        if watched {
            client.patience = NOBODY_PATIENCE;
        }
        let count = flow
            .repeat
            .map_or_else(|| default_count(expect), |repeat| repeat as usize);
        let mut attempts = Vec::with_capacity(count);
        for number in 0..count {
            self.go_on()?;
            let length = match flow.protocol {
                Protocol::UDP => DATAGRAM * usize::from(number == 0),
                _ => BULK * usize::from(number == 0),
            };
            let capture = if watched {
                Some(Capture::open(&self.topology.outside, UPLINK_PEER)?)
            } else {
                None
            };
            let mut attempt = client.call(flow.protocol, to, length)?;
            if let Some(capture) = capture {
                attempt.left = Some(capture.packets()?);
            }
            let answered = matches!(attempt.outcome, Outcome::Answered(_));
            attempts.push(attempt);
            if !answered && matches!(expect, Expect::Backends(_)) {
                break;
            }
        }
        Ok(attempts)
    }

    fn client(&self, flow: &Flow) -> Result<Client<'_>> {
        let family = if flow.from.is_ipv4() { "IPv4" } else { "IPv6" };
        let namespace = self.topology.namespace_of(flow.from).with_context(|| {
            format!(
                "client {}: the node has no {family} address in node.ips, so no way to it",
                flow.from
            )
        })?;
        Ok(Client::new(namespace, flow.from))
    }

    fn check_health(&self, flow: &Flow, health: Health) -> Result<(), String> {
        let same = |ip: &&IpAddr| ip.is_ipv4() == flow.from.is_ipv4();
        let address = self
            .case
            .node
            .ips
            .iter()
            .find(same)
            .ok_or("a node without an address of that family")?;
        let to = SocketAddr::new(*address, health.port);
        let client = self.client(flow).map_err(|error| format!("{error:#}"))?;
        match client.http_get(to, "/") {
            Ok((status, _)) if status == health.status => Ok(()),
            Ok((status, body)) => Err(format!("{status} {}", body.trim())),
            Err(error) => Err(format!("{error:#}")),
        }
    }

    fn pause(&self, pause: Duration) -> Result<()> {
        let until = Instant::now() + pause;
        while Instant::now() < until {
            self.go_on()?;
            thread::sleep(
                until
                    .saturating_duration_since(Instant::now())
                    .min(Duration::from_millis(100)),
            );
        }
        Ok(())
    }

    fn go_on(&self) -> Result<()> {
        if self.cancelled.load(Ordering::Relaxed) {
            bail!("interrupted");
        }
        Ok(())
    }
}

/// A flow as messages name it.
fn name_of(flow: &Flow) -> String {
    match (flow.to, flow.expect_health) {
        (Some(to), _) => format!("{} -> {to} {}", flow.from, flow.protocol.name()),
        (None, Some(health)) => format!("{} -> health check node port {}", flow.from, health.port),
        (None, None) => flow.from.to_string(),
    }
}

fn default_count(expect: &Expect) -> usize {
    match expect {
        Expect::Backends(expected) => {
            let distinct: BTreeSet<_> = expected.backends.iter().collect();
            judge::PER_ENDPOINT * distinct.len().max(1)
        }
        // The second one meets whatever the first has left behind.
        Expect::Reject => 2,
        Expect::Drop | Expect::Untouched => 1,
    }
}
