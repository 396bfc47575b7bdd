// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The proxy of a node in a benchmark: none, portolan's agent, or kube-proxy. What is asked of each
//! is the same: its process, its log, its metrics.

use anyhow::{Context, Result};

use crate::node::{agent::Agent, http, kube_proxy::KubeProxy, netns::NetNs, options::METRICS};

/// A proxy that runs on a node; dropping it ends the proxy.
pub enum Proxy<'a> {
    None,
    Portolan(Agent<'a>),
    KubeProxy(KubeProxy),
}

impl<'a> Proxy<'a> {
    /// Returns the id of the process; None without a proxy.
    pub fn pid(&self) -> Option<u32> {
        match self {
            Self::None => None,
            Self::Portolan(agent) => Some(agent.pid()),
            Self::KubeProxy(started) => Some(started.pid()),
        }
    }

    /// Returns portolan's agent; None if another proxy or none runs.
    pub fn agent(&self) -> Option<&Agent<'a>> {
        match self {
            Self::Portolan(agent) => Some(agent),
            _ => None,
        }
    }

    pub fn agent_mut(&mut self) -> Option<&mut Agent<'a>> {
        match self {
            Self::Portolan(agent) => Some(agent),
            _ => None,
        }
    }

    /// Returns the last lines of the log.
    pub fn log(&self) -> String {
        const LINES: usize = 5;
        let lines = match self {
            Self::None => Vec::new(),
            Self::Portolan(agent) => agent.log_tail(LINES),
            Self::KubeProxy(started) => started.log_tail(LINES),
        };
        lines.join("\n")
    }

    /// Returns how often the proxy has written services of IPv4 to the kernel since its start, by a
    /// metric that both proxies have; 0 without a proxy.
    pub fn syncs(&self, node: &NetNs) -> Result<f64> {
        const NAME: &str = "kubeproxy_sync_proxy_rules_duration_seconds_count";
        if self.pid().is_none() {
            return Ok(0.0);
        }
        let text = metrics(node)?;
        let own = text.lines();
        let own = own.filter(|line| line.starts_with(NAME) && !line.contains("IPv6"));
        let counts = own.filter_map(|line| line.split_whitespace().last()?.parse::<f64>().ok());
        Ok(counts.sum())
    }
}

/// Returns the text of the metrics, which are at the same address for both proxies.
pub fn metrics(node: &NetNs) -> Result<String> {
    let (_, text) = http::get(node, METRICS.ip(), METRICS, "/metrics")?;
    Ok(text)
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
