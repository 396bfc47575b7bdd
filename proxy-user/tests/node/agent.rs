// SPDX-License-Identifier: Apache-2.0 OR MIT
//! An agent that runs on the node: a test reads its log and servers, and ends the agent.

use std::{
    fs,
    net::SocketAddr,
    path::PathBuf,
    process::{Child, ExitStatus},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use lab::node::{
    http,
    netns::NetNs,
    options::{HEALTH, METRICS},
    process::count_start,
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::world::PATIENCE;

/// How long to wait for a line of the log.
const SAID: Duration = Duration::from_secs(10);

/// A running agent; dropping it ends the process.
pub(crate) struct Agent {
    node: Arc<NetNs>,
    child: Option<Child>,
    log: PathBuf,
}

impl Agent {
    /// Takes charge of an agent's process, which writes its log to `log`.
    pub(crate) fn new(node: Arc<NetNs>, child: Child, log: PathBuf) -> Self {
        count_start();
        Self {
            node,
            child: Some(child),
            log,
        }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.as_ref().map_or(0, Child::id)
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(&self.log).expect("its log")
    }

    /// Waits until a condition holds; panics after `PATIENCE`.
    pub(crate) fn eventually(&self, what: &str, so: impl FnMut() -> bool) {
        self.within(PATIENCE, what, so);
    }

    /// Waits until a condition holds; panics after `limit`.
    pub(crate) fn within(&self, limit: Duration, what: &str, so: impl FnMut() -> bool) {
        assert!(holds(limit, what, so), "{what}: {}", self.log());
    }

    /// Waits until a line of the log contains all these parts, which comes after the event.
    pub(crate) fn says(&self, parts: &[&str]) {
        let has_all = |line: &str| parts.iter().all(|part| line.contains(part));
        let is_said = || self.log().lines().any(has_all);
        self.within(SAID, &format!("{parts:?}"), is_said);
    }

    /// Waits as long as it takes until the log contains this text.
    pub(crate) fn logs(&self, text: &str) {
        self.eventually(text, || self.log().contains(text));
    }

    /// Waits until the agent has applied this version of its Node object.
    pub(crate) fn wait_for(&self, version: u64) {
        let wanted = format!("\"resourceVersion\":\"{version}\"");
        self.eventually(&wanted, || {
            let (status, body) = self.health();
            status == 200 && body.contains(&wanted)
        });
    }

    /// The status and body of /healthz; status 0 while no server listens.
    pub(crate) fn health(&self) -> (u16, String) {
        self.get(HEALTH, "/healthz").unwrap_or_default()
    }

    /// Whether the body of /healthz contains this text.
    pub(crate) fn reports(&self, text: &str) -> bool {
        self.health().1.contains(text)
    }

    /// The answer of the metrics server at this path; panics on an error status.
    pub(crate) fn metrics(&self, path: &str) -> String {
        let (status, body) = self.get(METRICS, path).expect("it listens");
        assert_eq!(status, 200, "{body}");
        body
    }

    /// The value of the metric with this name and labels; None if there is no such metric.
    pub(crate) fn metric(&self, name: &str) -> Option<u64> {
        let text = self.metrics("/metrics");
        let mut lines = text.lines();
        let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        value?.parse().ok()
    }

    /// The value of the sample whose name and labels have all these parts.
    pub(crate) fn sample(&self, parts: &[&str]) -> f64 {
        let text = self.metrics("/metrics");
        let mut lines = text.lines();
        let line = lines.find(|line| parts.iter().all(|part| line.contains(part)));
        let value = line.and_then(|line| line.rsplit(' ').next()?.parse().ok());
        value.unwrap_or_else(|| panic!("{parts:?}: {text}"))
    }

    /// Whether /livez reports that the agent is alive.
    pub(crate) fn is_alive(&self) -> bool {
        let answer = self.get(HEALTH, "/livez");
        answer.is_ok_and(|(status, _)| status == 200)
    }

    pub(crate) fn get(&self, from: SocketAddr, path: &str) -> anyhow::Result<(u16, String)> {
        http::get(&self.node, from.ip(), from, path)
    }

    pub(crate) fn signal(&self, signal: Signal) {
        send_signal(self.pid(), signal).expect("it runs");
    }

    /// Waits until the agent has ended by itself; returns whether it ended well, and its log.
    pub(crate) fn wait_for_end(mut self) -> (bool, String) {
        let mut child = self.child.take().expect("it runs");
        let mut status = None;
        self.eventually("it ends", || {
            status = child.try_wait().expect("its state");
            status.is_some()
        });
        (status.is_some_and(|status| status.success()), self.log())
    }

    /// Asks the agent to end, and waits until its process has ended.
    pub(crate) fn stop(mut self) -> ExitStatus {
        self.end().expect("it runs")
    }

    fn end(&mut self) -> Option<ExitStatus> {
        let mut child = self.child.take()?;
        send_signal(child.id(), Signal::SIGTERM).ok()?;
        child.wait().ok()
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.end();
    }
}

/// Waits until a condition holds; panics after `limit`.
pub(crate) fn wait(limit: Duration, what: &str, so: impl FnMut() -> bool) {
    assert!(holds(limit, what, so), "{what}");
}

/// Waits until a condition holds; returns whether it holds within `limit`.
pub(crate) fn holds(limit: Duration, what: &str, mut so: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    while !so() {
        if start.elapsed() >= limit {
            return false;
        }
        thread::sleep(Duration::from_millis(20));
    }
    println!("{what}: after {:?}", start.elapsed());
    true
}

/// Sends a signal to a process.
pub(crate) fn send_signal(pid: u32, signal: Signal) -> nix::Result<()> {
    kill(Pid::from_raw(pid.try_into().expect("a process id")), signal)
}
