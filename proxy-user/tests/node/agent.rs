// SPDX-License-Identifier: Apache-2.0 OR MIT
//! An agent that runs on the node: a test watches it, asks it and ends it.

use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Child, ExitStatus},
    thread,
    time::{Duration, Instant},
};

use lab::node::{
    http,
    netns::NetNs,
    options::{HEALTH, METRICS},
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::world::PATIENCE;

/// How long to wait for a line of the log.
const SAID: Duration = Duration::from_secs(10);

/// A running agent; dropping it ends the process.
pub(crate) struct Agent<'a> {
    node: &'a NetNs,
    child: Option<Child>,
    log: PathBuf,
}

impl<'a> Agent<'a> {
    /// Takes charge of an agent's process, which writes its log to `log`.
    pub(crate) fn new(node: &'a NetNs, child: Child, log: PathBuf) -> Self {
        Self {
            node,
            child: Some(child),
            log,
        }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.as_ref().map_or(0, Child::id)
    }

    pub(crate) fn log_file(&self) -> &Path {
        &self.log
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(&self.log).expect("its log")
    }

    /// Waits until a line of the log contains all these parts. The agent logs an event a moment
    /// after its effect.
    pub(crate) fn says(&self, parts: &[&str]) {
        let has_all = |line: &str| parts.iter().all(|part| line.contains(part));
        let deadline = Instant::now() + SAID;
        while !self.log().lines().any(has_all) {
            assert!(Instant::now() < deadline, "{parts:?}: {}", self.log());
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits until the agent has applied this version of its Node object.
    pub(crate) fn wait_for(&self, version: u64) {
        let deadline = Instant::now() + PATIENCE;
        let wanted = format!("\"resourceVersion\":\"{version}\"");
        loop {
            let (status, body) = self.health();
            if status == 200 && body.contains(&wanted) {
                return;
            }
            assert!(
                Instant::now() < deadline,
                "no version {version}: {}",
                self.log()
            );
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// The status and body of /healthz; status 0 while nobody listens.
    pub(crate) fn health(&self) -> (u16, String) {
        self.get(HEALTH, "/healthz").unwrap_or_default()
    }

    /// The answer of the metrics server at this path; panics on an error status.
    pub(crate) fn metrics(&self, path: &str) -> String {
        let (status, body) = self.get(METRICS, path).expect("it listens");
        assert_eq!(status, 200, "{body}");
        body
    }

    pub(crate) fn get(&self, from: SocketAddr, path: &str) -> anyhow::Result<(u16, String)> {
        http::get(self.node, from.ip(), from, path)
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = self.pid().try_into().expect("a process id");
        kill(Pid::from_raw(pid), signal).expect("it runs");
    }

    /// Waits until the agent has ended by itself; returns its log.
    pub(crate) fn wait_for_end(mut self) -> String {
        if let Some(mut child) = self.child.take() {
            let deadline = Instant::now() + PATIENCE;
            while child.try_wait().expect("its state").is_none() {
                assert!(Instant::now() < deadline, "it goes on: {}", self.log());
                thread::sleep(Duration::from_millis(20));
            }
        }
        self.log()
    }

    /// Asks the agent to end and waits for that.
    pub(crate) fn stop(mut self) -> ExitStatus {
        self.end().expect("it runs")
    }

    fn end(&mut self) -> Option<ExitStatus> {
        let mut child = self.child.take()?;
        let pid = Pid::from_raw(child.id().try_into().ok()?);
        kill(pid, Signal::SIGTERM).ok()?;
        child.wait().ok()
    }
}

impl Drop for Agent<'_> {
    fn drop(&mut self) {
        self.end();
    }
}

/// Waits until a condition holds; panics after `PATIENCE`.
pub(crate) fn eventually(what: &str, agent: &Agent<'_>, so: impl FnMut() -> bool) {
    within(PATIENCE, what, agent, so);
}

/// Waits until a condition holds; panics after `limit`.
pub(crate) fn within(limit: Duration, what: &str, agent: &Agent<'_>, mut so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !so() {
        assert!(start.elapsed() < limit, "{what}: {}", agent.log());
        thread::sleep(Duration::from_millis(20));
    }
    println!("{what}: after {:?}", start.elapsed());
}
