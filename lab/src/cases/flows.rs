// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Opens the connections of a test case's flow on a simulated node and checks them. Called by the
//! conformance runner for every flow of a case, by the demo, and by the tests of the probes.

use std::{
    collections::{BTreeMap, BTreeSet, btree_map::Entry},
    net::{IpAddr, SocketAddr},
    sync::atomic::{AtomicU16, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use proxy_common::Protocol;

use crate::{
    cases::{
        cluster::Endpoint,
        expectations::{self, Situation},
        format::{Expect, Flow, Health, SourcePorts},
    },
    interrupt::INTERRUPTED,
    node::{
        cgroup::Cgroup,
        http,
        layout::Host,
        settings::SocketBalancing,
        topology::{Topology, UPLINK_PEER},
    },
    traffic::{
        capture::Capture,
        clients::Client,
        probe::{Attempt, Outcome},
        servers::{Listening, Servers},
    },
};

/// Bytes that a flow's first TCP or SCTP connection carries each way: so many that the kernel
/// merges and splits segments.
const BULK: usize = 60_000;
const DATAGRAM: usize = 1_000;
/// How long to wait for an answer from an address that no host has.
const NOBODY_PATIENCE: Duration = Duration::from_millis(500);
/// The first source port for `source_ports: same`. Above the ports of all other connections.
const FIRST_SAME_PORT: u16 = 61_500;

/// The node on which flows are opened, its servers, and what later flows must know of earlier ones.
pub struct Flows<'a> {
    topology: &'a Topology,
    /// The cgroup of the node's own processes and its pods.
    cgroup: &'a Cgroup,
    balancing: SocketBalancing,
    listening: BTreeMap<(SocketAddr, u8), Listening>,
    servers: Servers,
    /// The source port of flows with `source_ports: same`. Key: client, destination, protocol.
    same_ports: BTreeMap<(IpAddr, SocketAddr, u8), u16>,
}

impl<'a> Flows<'a> {
    /// Starts a server for every endpoint whose address some host of the topology can have.
    pub fn new(
        topology: &'a Topology,
        cgroup: &'a Cgroup,
        endpoints: &BTreeSet<Endpoint>,
        balancing: SocketBalancing,
    ) -> Result<Self> {
        let servers = Servers::start()?;
        let mut listening = BTreeMap::new();
        for Endpoint {
            address, protocol, ..
        } in endpoints
        {
            let owner = topology.namespace_of(address.ip());
            // No server for an address that no host can have: loopback, or of a family that the
            // node lacks.
            let Some(namespace) = owner.filter(|_| !address.ip().is_loopback()) else {
                continue;
            };
            if let Entry::Vacant(entry) = listening.entry((*address, protocol.0)) {
                entry.insert(servers.listen(namespace, *protocol, *address)?);
            }
        }
        Ok(Self {
            topology,
            cgroup,
            balancing,
            listening,
            servers,
            same_ports: BTreeMap::new(),
        })
    }

    /// Checks one flow. The outer result is an error if the flow could not be tried. The inner one
    /// is an error if the flow is not as expected; it says what was expected and what was seen.
    pub fn check(&mut self, flow: &Flow) -> Result<Result<(), String>> {
        let until = Instant::now() + flow.wait.unwrap_or_default();
        while Instant::now() < until {
            go_on()?;
            thread::sleep(Duration::from_millis(100));
        }
        match (flow.expect_health, flow.to, &flow.expect) {
            (Some(health), _, _) => Ok(self
                .check_health(flow, health)?
                .map_err(|seen| format!("expected HTTP status {}, saw {seen}", health.status))),
            (None, Some(to), Some(expect)) => Ok(self.observe(flow, to, expect)?.1),
            _ => bail!("the flow has neither `to` and `expect` nor `expect_health`"),
        }
    }

    /// Opens the flow's connections. Returns them, and whether they are as expected: if not, the
    /// error says what was expected and what was seen.
    pub fn observe(
        &mut self,
        flow: &Flow,
        to: SocketAddr,
        expect: &Expect,
    ) -> Result<(Vec<Attempt>, Result<(), String>)> {
        let owner = self.topology.layout.owner(flow.from);
        let outside = !matches!(owner, Some(Host::Node | Host::Pod(_)));
        let attempts = if outside {
            self.call(flow, to, expect)
        } else {
            let cgroup = self.cgroup;
            cgroup.inside(|| self.call(flow, to, expect))?
        }?;
        let found = expectations::check(expect, &attempts, &self.situation(flow, to))
            .map_err(|seen| format!("expected {expect:?}, saw {seen}"));
        Ok((attempts, found))
    }

    fn situation(&self, flow: &Flow, to: SocketAddr) -> Situation<'_> {
        let owner = self.topology.layout.owner(flow.from);
        let from_node = owner == Some(Host::Node);
        let is_pod = matches!(owner, Some(Host::Pod(_)));
        // The socket hooks do not see raw sockets, with which this lab sends SCTP.
        let at_the_socket = flow.protocol != Protocol::SCTP
            && (from_node || is_pod && self.balancing == SocketBalancing::All);
        Situation {
            protocol: flow.protocol,
            to,
            node: &self.topology.node_addresses,
            client_is_node: from_node,
            at_the_socket,
            same_port: flow.source_ports == Some(SourcePorts::Same),
        }
    }

    /// Opens the flow's connections in turn. Stops without an answer where answers are expected.
    fn call(&mut self, flow: &Flow, to: SocketAddr, expect: &Expect) -> Result<Vec<Attempt>> {
        let port = match flow.source_ports {
            Some(SourcePorts::Same) => {
                // A case that follows on the same node must not meet the flows of this one.
                static NEXT: AtomicU16 = AtomicU16::new(FIRST_SAME_PORT);
                let key = (flow.from, to, flow.protocol.0);
                let known = self.same_ports.entry(key);
                *known.or_insert_with(|| NEXT.fetch_add(1, Ordering::Relaxed))
            }
            None => 0,
        };
        let mut client = Client {
            port,
            ..self.client(flow)?
        };
        let owner = self.topology.namespace_of(to.ip());
        let untouched = *expect == Expect::Untouched;
        // The listener exists for this `untouched` flow only.
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
        let count = flow.repeat;
        let count = count.map_or_else(|| default_count(expect), |repeat| repeat as usize);
        let mut attempts = Vec::with_capacity(count);
        for number in 0..count {
            go_on()?;
            let is_udp = flow.protocol == Protocol::UDP;
            let bulk = if is_udp { DATAGRAM } else { BULK };
            let capture = watched.then(|| Capture::open(&self.topology.outside, UPLINK_PEER));
            let capture = capture.transpose()?;
            let mut attempt = client.call(flow.protocol, to, bulk * usize::from(number == 0))?;
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

    fn client(&self, flow: &Flow) -> Result<Client<'a>> {
        let from = flow.from;
        let family = if from.is_ipv4() { "IPv4" } else { "IPv6" };
        let namespace = self.topology.namespace_of(from).with_context(|| {
            format!("client {from}: node.ips has no {family} address, so there is no way to it")
        })?;
        Ok(Client::new(namespace, from))
    }

    fn check_health(&self, flow: &Flow, health: Health) -> Result<Result<(), String>> {
        let same = |ip: &&IpAddr| ip.is_ipv4() == flow.from.is_ipv4();
        let client = self.client(flow)?;
        let address = self.topology.layout.node.iter().find(same);
        let address = address.context("the node has no address of the client's family")?;
        let at = SocketAddr::new(*address, health.port);
        let answer = http::get(client.namespace, client.address, at, "/");
        Ok(match answer {
            Ok((status, _)) if status == health.status => Ok(()),
            Ok((status, body)) => Err(format!("{status} {}", body.trim())),
            Err(error) => Err(format!("{error:#}")),
        })
    }
}

fn go_on() -> Result<()> {
    ensure!(!INTERRUPTED.load(Ordering::Relaxed), "interrupted");
    Ok(())
}

/// Returns how many connections a flow without `repeat` opens.
fn default_count(expect: &Expect) -> usize {
    match expect {
        Expect::Backends(expected) => {
            let distinct: BTreeSet<_> = expected.backends.iter().collect();
            expectations::PER_ENDPOINT * distinct.len().max(1)
        }
        // The second connection meets the state that the first has left behind.
        Expect::Reject => 2,
        Expect::Drop | Expect::Untouched => 1,
    }
}
