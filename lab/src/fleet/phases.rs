// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The measurements of a fleet, one after the other: start, changes, outage of the server, rolling
//! restart.

use std::{
    fs,
    path::PathBuf,
    thread::sleep,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, Result};

use super::{
    audit,
    clients::{Clients, Kind, Programs},
    figures::{Alone, Changes, Figures, Outage, Rolling, Start},
    lines::Mark,
    objects,
    usage::{Reading, Used},
    world::{SERVER, World},
    writer::Writer,
};
use crate::{
    load::{process::processor_time, statistics::quantiles},
    node::api_server::{AGENTS_ACCOUNT, ApiServer},
};

/// How long the server is away.
const AWAY: Duration = Duration::from_secs(2);
/// How many parts of the agents a rolling restart starts again one after the other.
const PARTS: usize = 10;
/// How long a change is tried.
const PATIENCE: Duration = Duration::from_secs(60);

/// How much is measured.
#[derive(Clone, Debug)]
pub struct Effort {
    pub agents: usize,
    pub processes: usize,
    pub changes: u32,
    /// From one change to the next.
    pub pause: Duration,
    /// How long nothing happens: once before a measurement, so that earlier work has ended, and as
    /// long again to measure what agents and server do then.
    pub idle: Duration,
}

/// A running API server with its objects.
pub struct Measurement<'w> {
    world: &'w World,
    server: ApiServer<'w>,
    writer: Writer<'w>,
    effort: Effort,
    folder: PathBuf,
}

impl<'w> Measurement<'w> {
    /// Starts the server and gives it services with EndpointSlices of these `sizes`. Logs of agents
    /// go to `folder`.
    pub fn new(world: &'w World, sizes: &[u32], effort: Effort, folder: PathBuf) -> Result<Self> {
        let server = ApiServer::start_for_fleet(world.server(), SERVER)?;
        // The role of kube-proxy, as kubeadm binds it to its account.
        server.kubectl(&[
            "create",
            "clusterrolebinding",
            "agents",
            "--clusterrole=system:node-proxier",
            &format!("--user={AGENTS_ACCOUNT}"),
        ])?;
        let nodes = u32::try_from(effort.agents).context("too many agents")?;
        server.store(&objects::records(sizes, nodes))?;
        let writer = Writer::new(world, &server.kubeconfig())?;
        Ok(Self {
            world,
            server,
            writer,
            effort,
            folder,
        })
    }

    /// Measures what the server needs without any agent.
    pub fn alone(&mut self) -> Result<Alone> {
        // For the first change the server prepares much.
        self.write()?;
        sleep(self.effort.idle);
        let idle = self.over(None, |it, _| it.rest())?;
        let busy = self.over(None, |it, _| it.change_often(None).map(drop))?;
        let each = 1e3 / f64::from(self.effort.changes);
        self.server.kill();
        sleep(AWAY);
        let started = now();
        self.server.revive()?;
        Ok(Alone {
            ready_seconds: seconds(started, now()),
            change_milliseconds: busy.beyond(&idle, |used| used.server) * each,
            start_seconds: processor_time(self.server.pid())?,
        })
    }

    /// Measures a fleet from its start to its end.
    pub fn fleet(&mut self, programs: &Programs, kind: Kind) -> Result<Figures> {
        sleep(self.effort.idle);
        let (mut clients, start) = self.start(programs, kind)?;
        println!("{}: started: {start:.2?}", kind.name());
        let change = self.changes(&mut clients)?;
        println!("{}: changed: {change:.2?}", kind.name());
        let outage = self.outage(&mut clients)?;
        println!("{}: server back: {outage:.2?}", kind.name());
        let rolling = self.rolling(&mut clients)?;
        println!("{}: started again: {rolling:.2?}", kind.name());
        Ok(Figures {
            start,
            change,
            outage,
            rolling,
        })
    }

    fn start(&self, programs: &Programs, kind: Kind) -> Result<(Clients, Start)> {
        let agents = self.effort.agents as f64;
        let (before, begun) = (self.read(None)?, now());
        let kubeconfig = self.server.agents_kubeconfig();
        let sizes = [self.effort.agents, self.effort.processes];
        let mut clients =
            Clients::start(self.world, programs, kind, &kubeconfig, sizes, &self.folder)?;
        let listed = clients.wait_listed()?;
        let used = self.read(Some(&clients))?.since(&before);
        // The change before any agent: every one has it by its list.
        if let Some(mark) = self.writer.last() {
            clients.wait_seen(mark)?;
        }
        let start = Start {
            seconds: seconds(begun, listed),
            server_seconds: used.server,
            agent_seconds: used.agents / agents,
            bytes_per_agent: used.received / agents,
            connections_per_agent: self.world.connections()? as f64 / agents,
        };
        Ok((clients, start))
    }

    fn changes(&mut self, clients: &mut Clients) -> Result<Changes> {
        let agents = clients.count() as f64;
        sleep(self.effort.idle);
        let idle = self.over(Some(clients), |it, _| it.rest())?;
        let mut delays = Vec::new();
        let busy = self.over(Some(clients), |it, clients| {
            delays = it.change_often(clients)?;
            Ok(())
        })?;
        let changes = f64::from(self.effort.changes);
        let [p50, p99] = quantiles(delays, [0.5, 0.99]);
        Ok(Changes {
            bytes_per_agent: busy.beyond(&idle, |used| used.received) / changes / agents,
            server_milliseconds: busy.beyond(&idle, |used| used.server) / changes * 1e3,
            agent_microseconds: busy.beyond(&idle, |used| used.agents) / changes / agents * 1e6,
            p50_milliseconds: p50,
            p99_milliseconds: p99,
        })
    }

    fn outage(&mut self, clients: &mut Clients) -> Result<Outage> {
        let agents = clients.count();
        let before = self.requests()?.len();
        let received = self.world.received()?;
        self.server.kill();
        // The cluster goes on by its other servers, so this one comes back without the versions
        // that agents know.
        self.server.store(&objects::records(&[], 1))?;
        sleep(AWAY);
        let started = now();
        self.server.revive()?;
        let slice = self.write()?;
        let service = self.writer.change_service()?;
        let current = clients.wait_seen(slice)?.max(clients.wait_seen(service)?);
        let server_seconds = processor_time(self.server.pid())?;
        let received = self.world.received()? - received;
        // Requests that were refused may come again.
        sleep(self.effort.idle);
        let requests = audit::count(self.requests()?.get(before..).unwrap_or_default());
        let outage = Outage {
            seconds: seconds(started, current),
            server_seconds,
            bytes_per_agent: received as f64 / agents as f64,
            ..Outage::default()
        };
        Ok(outage.with_requests(&requests, agents))
    }

    fn rolling(&mut self, clients: &mut Clients) -> Result<Rolling> {
        let agents = clients.count();
        let before = self.read(Some(clients))?;
        let begun = Instant::now();
        let mut written = Vec::new();
        let parts = PARTS.min(agents);
        for part in 0..parts {
            clients.restart(agents * part / parts..agents * (part + 1) / parts)?;
            loop {
                let at = now();
                written.push((self.write()?, at));
                if clients.are_listed_within(self.effort.pause) {
                    break;
                }
            }
        }
        let seconds = begun.elapsed().as_secs_f64();
        let delays = delays(clients, &written)?;
        let used = self.read(Some(clients))?.since(&before);
        Ok(Rolling {
            seconds,
            server_seconds: used.server,
            longest_milliseconds: delays.into_iter().fold(0.0, f64::max),
        })
    }

    /// Returns what is used while `work` runs.
    fn over(
        &mut self,
        mut clients: Option<&mut Clients>,
        work: impl FnOnce(&mut Self, Option<&mut Clients>) -> Result<()>,
    ) -> Result<Used> {
        let before = self.read(clients.as_deref())?;
        work(self, clients.as_deref_mut())?;
        Ok(self.read(clients.as_deref())?.since(&before))
    }

    fn rest(&self) -> Result<()> {
        sleep(self.effort.idle);
        Ok(())
    }

    /// Makes all changes, each some time after the one before, and waits until agents have them.
    /// Returns the milliseconds from each write until the last agent has the change.
    fn change_often(&mut self, clients: Option<&mut Clients>) -> Result<Vec<f64>> {
        let mut written = Vec::new();
        let begun = Instant::now();
        for number in 1..=self.effort.changes {
            let at = now();
            written.push((self.write()?, at));
            let next = begun + self.effort.pause * number;
            sleep(next.saturating_duration_since(Instant::now()));
        }
        clients.map_or(Ok(Vec::new()), |clients| delays(clients, &written))
    }

    /// Makes a change. Tries again for a while: after the server was away the first attempts use a
    /// connection that is gone.
    fn write(&mut self) -> Result<Mark> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self.writer.change_slice() {
                Err(_) if Instant::now() < deadline => sleep(Duration::from_millis(20)),
                result => return result.context("change the slice"),
            }
        }
    }

    fn requests(&self) -> Result<String> {
        // There is no log before the first request.
        let log = self.server.audit_log();
        if !log.exists() {
            return Ok(String::new());
        }
        fs::read_to_string(&log).with_context(|| format!("read {}", log.display()))
    }

    fn read(&self, clients: Option<&Clients>) -> Result<Reading> {
        Ok(Reading {
            server: processor_time(self.server.pid())?,
            agents: clients.map_or(Ok(0.0), Clients::processor_time)?,
            received: self.world.received()? as f64,
            at: Instant::now(),
        })
    }
}

/// Waits until all agents have the changes. Returns the milliseconds from each write, whose time is
/// beside its number.
fn delays(clients: &mut Clients, written: &[(Mark, u64)]) -> Result<Vec<f64>> {
    let delay = |(mark, at): &(Mark, u64)| Ok(seconds(*at, clients.wait_seen(*mark)?) * 1e3);
    written.iter().map(delay).collect()
}

/// Returns the nanoseconds since 1970. Agents report their times in them, because they are other
/// processes.
fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_nanos() as u64)
}

fn seconds(from: u64, to: u64) -> f64 {
    (to as f64 - from as f64) / 1e9
}
