// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The proxy of a node in a benchmark: none, portolan's agent, or kube-proxy. What is asked of each
//! is the same: its process, its log, its metrics.

use std::path::Path;

use anyhow::{Context, Result};

use crate::node::{
    agent::{Agent, Manifests, Options},
    http,
    kube_proxy::KubeProxy,
    netns::NetNs,
    options::METRICS,
};

/// A proxy that runs on a node; dropping it ends the proxy.
pub struct Proxy<'a> {
    node: &'a NetNs,
    process: Process<'a>,
}

enum Process<'a> {
    None,
    Portolan(Agent<'a>),
    KubeProxy(KubeProxy),
}

impl<'a> Proxy<'a> {
    pub fn none(node: &'a NetNs) -> Self {
        let process = Process::None;
        Self { node, process }
    }

    /// Starts portolan's agent. `manifests` are the first objects that it reads.
    pub fn portolan(node: &'a NetNs, options: &Options<'_>, manifests: &str) -> Result<Self> {
        let agent = Agent::start(node, options, &Manifests::Text(manifests))?;
        let process = Process::Portolan(agent);
        Ok(Self { node, process })
    }

    /// Starts kube-proxy, as [`KubeProxy::start`] does.
    pub fn kube_proxy(
        node: &'a NetNs,
        program: &Path,
        mode: &str,
        min_sync_period: Option<&str>,
        kubeconfig: &Path,
    ) -> Result<Self> {
        let started = KubeProxy::start(node, program, mode, min_sync_period, kubeconfig)?;
        let process = Process::KubeProxy(started);
        Ok(Self { node, process })
    }

    /// Returns the id of the process; None without a proxy.
    pub fn pid(&self) -> Option<u32> {
        match &self.process {
            Process::None => None,
            Process::Portolan(agent) => Some(agent.pid()),
            Process::KubeProxy(started) => Some(started.pid()),
        }
    }

    /// Returns portolan's agent; None if another proxy or none runs.
    pub fn agent(&self) -> Option<&Agent<'a>> {
        match &self.process {
            Process::Portolan(agent) => Some(agent),
            _ => None,
        }
    }

    pub fn agent_mut(&mut self) -> Option<&mut Agent<'a>> {
        match &mut self.process {
            Process::Portolan(agent) => Some(agent),
            _ => None,
        }
    }

    /// Returns the last lines of the log.
    pub fn log(&self) -> String {
        const LINES: usize = 5;
        let lines = match &self.process {
            Process::None => Vec::new(),
            Process::Portolan(agent) => agent.log_tail(LINES),
            Process::KubeProxy(started) => started.log_tail(LINES),
        };
        lines.join("\n")
    }

    /// Returns the text of the metrics, which are at the same address for both proxies.
    pub fn metrics(&self) -> Result<String> {
        let (_, text) = http::get(self.node, METRICS.ip(), METRICS, "/metrics")?;
        Ok(text)
    }

    /// Returns how often the proxy has written services of IPv4 to the kernel since its start, by a
    /// metric that both proxies have; 0 without a proxy.
    pub fn syncs(&self) -> Result<f64> {
        const NAME: &str = "kubeproxy_sync_proxy_rules_duration_seconds_count";
        if self.pid().is_none() {
            return Ok(0.0);
        }
        let text = self.metrics()?;
        let own = text
            .lines()
            .filter(|line| line.starts_with(NAME) && !line.contains("IPv6"));
        let counts = own.filter_map(|line| line.split_whitespace().last()?.parse::<f64>().ok());
        Ok(counts.sum())
    }
}

/// Returns the samples of a metric with one label: the label's value, and the count. `start` is the
/// metric's name and the label's, with `{` between and `=` behind.
pub fn samples(metrics: &str, start: &str) -> Result<Vec<(String, u64)>> {
    let lines = metrics.lines().filter_map(|line| line.strip_prefix(start));
    let samples = lines.filter_map(|line| line.strip_prefix('"')?.split_once("\"} "));
    let read = |(value, count): (&str, &str)| {
        let count = count.trim().parse().context("read a metric")?;
        Ok((value.to_owned(), count))
    };
    samples.map(read).collect()
}
