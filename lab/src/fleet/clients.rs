// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The processes of a fleet's agents, portolan's or kube-proxy's, and what they have reported.

use std::{
    fs::File,
    io::{BufRead, BufReader, Write},
    ops::Range,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use nix::sys::signal::Signal;
use serde::{Deserialize, Serialize};

use super::{
    lines::{Arrivals, Line, Mark},
    world::World,
};
use crate::{load::process::processor_time, node::process::end_with_us};

/// How long to wait for all agents.
const PATIENCE: Duration = Duration::from_secs(1_200);

/// Whose agents a fleet has.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Kind {
    Portolan,
    KubeProxy,
}

impl Kind {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Portolan => "portolan",
            Self::KubeProxy => "kube-proxy's informers",
        }
    }
}

/// The programs that run agents. Each takes `--kubeconfig FILE --first NUMBER --agents NUMBER`.
pub struct Programs {
    /// Its first argument is `--client`.
    pub portolan: PathBuf,
    /// None: kube-proxy's informers are left out.
    pub informers: Option<PathBuf>,
}

impl Programs {
    /// Returns whose agents these programs can run.
    pub fn kinds(&self) -> Vec<Kind> {
        let informers = self.informers.is_some().then_some(Kind::KubeProxy);
        std::iter::once(Kind::Portolan).chain(informers).collect()
    }

    fn command(&self, kind: Kind) -> Result<Command> {
        Ok(match kind {
            Kind::Portolan => {
                let mut command = Command::new(&self.portolan);
                command.arg("--client");
                command
            }
            Kind::KubeProxy => Command::new(self.informers.as_ref().context("no informers")?),
        })
    }
}

/// The running processes of a fleet; dropping it ends them.
pub(super) struct Clients {
    processes: Vec<Process>,
    shared: Arc<Shared>,
    agents: usize,
    /// What the processes write to standard error.
    log: PathBuf,
}

struct Process {
    child: Child,
    /// The numbers of its agents, over all processes.
    agents: Range<usize>,
}

struct Shared {
    arrivals: Mutex<Arrivals>,
    arrived: Condvar,
}

impl Shared {
    fn arrivals(&self) -> MutexGuard<'_, Arrivals> {
        self.arrivals.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Clients {
    /// Starts all agents at once, in as many processes as asked for.
    pub(super) fn start(
        world: &World,
        programs: &Programs,
        kind: Kind,
        kubeconfig: &Path,
        [agents, processes]: [usize; 2],
        folder: &Path,
    ) -> Result<Self> {
        let log = folder.join("agents.log");
        let file = File::options().create(true).append(true).open(&log);
        let file = file.with_context(|| format!("open {}", log.display()))?;
        let shared = Arc::new(Shared {
            arrivals: Mutex::new(Arrivals::new(processes, agents)),
            arrived: Condvar::new(),
        });
        let mut clients = Self {
            processes: Vec::new(),
            shared,
            agents,
            log,
        };
        for number in 0..processes {
            let own = agents * number / processes..agents * (number + 1) / processes;
            let mut command = programs.command(kind)?;
            command
                .arg("--kubeconfig")
                .arg(kubeconfig)
                .args(["--first", &own.start.to_string()])
                .args(["--agents", &own.len().to_string()])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(file.try_clone().context("share the log")?);
            end_with_us(&mut command, Signal::SIGKILL);
            let child = world.agents().enter(|| command.spawn())?;
            let mut child =
                child.with_context(|| format!("start {}", command.get_program().display()))?;
            let output = child.stdout.take().context("no output")?;
            let (shared, first) = (Arc::clone(&clients.shared), own.start);
            thread::spawn(move || {
                for line in BufReader::new(output).lines().map_while(Result::ok) {
                    if let Some(line) = Line::parse(&line) {
                        shared.arrivals().take(first, line);
                        shared.arrived.notify_all();
                    }
                }
            });
            clients.processes.push(Process { child, agents: own });
        }
        Ok(clients)
    }

    pub(super) fn count(&self) -> usize {
        self.agents
    }

    /// Ends these agents and starts them again.
    pub(super) fn restart(&mut self, agents: Range<usize>) -> Result<()> {
        self.shared.arrivals().forget(agents.clone());
        for process in &mut self.processes {
            let first = process.agents.start;
            let from = agents.start.clamp(first, process.agents.end) - first;
            let to = agents.end.clamp(first, process.agents.end) - first;
            let input = process.child.stdin.as_mut().context("no input")?;
            if from < to {
                writeln!(input, "restart {from} {to}").context("command a process of agents")?;
            }
        }
        Ok(())
    }

    /// Returns the processor time of all processes so far, in seconds.
    pub(super) fn processor_time(&self) -> Result<f64> {
        let times = self.processes.iter();
        times
            .map(|process| processor_time(process.child.id()))
            .sum()
    }

    /// Waits until all agents have every object. Returns when the last one had them, as nanoseconds
    /// since 1970.
    pub(super) fn wait_listed(&mut self) -> Result<u64> {
        self.wait("every object", Arrivals::all_listed)
    }

    /// Waits until all agents have a change. Returns when the last one had it.
    pub(super) fn wait_seen(&mut self, mark: Mark) -> Result<u64> {
        self.wait(&format!("the change {mark}"), |arrivals| {
            arrivals.all_saw(mark)
        })
    }

    /// Waits until all agents have every object, but not longer than `time`. Returns whether they
    /// have.
    pub(super) fn are_listed_within(&self, time: Duration) -> bool {
        let missing = |arrivals: &mut Arrivals| arrivals.all_listed().is_none();
        let arrivals = self.shared.arrivals();
        let waited = self
            .shared
            .arrived
            .wait_timeout_while(arrivals, time, missing);
        let (arrivals, _) = waited.unwrap_or_else(PoisonError::into_inner);
        arrivals.all_listed().is_some()
    }

    fn wait(&mut self, what: &str, time: impl Fn(&Arrivals) -> Option<u64>) -> Result<u64> {
        const LOOK: Duration = Duration::from_secs(1);
        let shared = Arc::clone(&self.shared);
        let deadline = Instant::now() + PATIENCE;
        let mut arrivals = shared.arrivals();
        loop {
            if let Some(time) = time(&arrivals) {
                return Ok(time);
            }
            let ended = self.processes.iter_mut().find_map(|process| {
                let status = process.child.try_wait();
                status.map_or(None, |status| status)
            });
            if let Some(status) = ended {
                bail!("a process of agents ended: {status}: {}", self.log_tail());
            }
            if Instant::now() > deadline {
                let (listed, all) = (arrivals.listed(), self.agents);
                bail!(
                    "not all agents have {what} after {PATIENCE:?} ({listed} of {all} have every object): {}",
                    self.log_tail()
                );
            }
            let waited = shared.arrived.wait_timeout(arrivals, LOOK);
            arrivals = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn log_tail(&self) -> String {
        let log = std::fs::read_to_string(&self.log).unwrap_or_default();
        let mut lines: Vec<_> = log.lines().rev().take(5).collect();
        lines.reverse();
        lines.join("\n")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}
