// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `portolan status`: one screen about this node, from the kernel and, if there is an agent, from
//! the agent's answers. The file `screen` writes it.

mod attached;
mod screen;

use std::{collections::BTreeMap, io::Write, path::PathBuf, process::ExitCode, time::UNIX_EPOCH};

use anyhow::Result;
use config::processors;
use datapath::{
    has_tcx, is_below_root,
    read::{MapRow, Reader, pinned_maps},
    running_kernel,
};
use serde::Serialize;
use serde_json::Value as Json;

use self::attached::{Attached, attached};
use super::{
    agent::{Agent, AgentArgs, metric},
    args::Look,
    check::cgroup,
    format::{Format, document},
    list::again,
    maps::is_nearly_full,
    run::node_name,
    warnings::{self, WarningRow},
};

/// Arguments of `portolan status`.
#[derive(clap::Args, Clone, Debug)]
pub struct StatusArgs {
    #[command(flatten)]
    pub agent: AgentArgs,
    #[command(flatten)]
    pub look: Look,
}

/// What `portolan status` says about this node.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Status {
    version: &'static str,
    node: Option<String>,
    kernel: String,
    processors: u32,
    /// How tc programs are attached: `tcx`, or `clsact` if the kernel has no tcx.
    attached_by: &'static str,
    agent: AgentStatus,
    #[serde(flatten)]
    attached: Attached,
    /// The cgroup of the hooks, if it is not the root of the node's cgroups.
    #[serde(skip_serializing_if = "Option::is_none")]
    hooks_below: Option<PathBuf>,
    /// The choices that decide which way packets go, by the agent's answer; empty without it.
    settings: BTreeMap<&'static str, String>,
    sync: Option<Sync>,
    services: Option<u64>,
    /// The kernel memory of all maps together, in bytes.
    map_memory: u64,
    maps: Vec<MapRow>,
    /// The agent's warnings; None if it did not answer.
    warnings: Option<Vec<WarningRow>>,
    /// The problems of this node, one line each.
    problems: Vec<String>,
}

/// What is known of the agent's process, from its HTTP servers.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct AgentStatus {
    pid: Option<u32>,
    version: Option<String>,
    /// The HTTP status of /healthz; None if the agent does not answer.
    health: Option<u16>,
    reason: Option<String>,
    uptime_seconds: Option<u64>,
    /// The agent's resident memory, in bytes.
    resident_memory: Option<u64>,
}

/// How recent the applied state of the cluster is.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Sync {
    /// The seconds since the last complete sync.
    last_seconds: Option<u64>,
    pending_changes: u64,
    failed_services: u64,
    /// Each kind of objects, with the seconds since the source last sent something about it.
    heard_seconds: Vec<(String, u64)>,
    /// The seconds since the last byte of the watch that has been silent for the longest time.
    silent_seconds: Option<u64>,
}

/// Prints the status, perhaps again and again. The exit status is 1 if there are problems.
pub(super) fn run(args: &StatusArgs) -> Result<ExitCode> {
    let agent = args.agent.located();
    let mut is_well = true;
    again(&args.look, |out, page| {
        let status = read(&agent)?;
        is_well = status.problems.is_empty();
        match &args.look.output {
            Format::Table | Format::Wide => screen::write(out, page, &status)?,
            // One word for scripts: `healthy`, `unhealthy` or `unreachable`.
            Format::Name => writeln!(out, "{}", status.agent.word())?,
            other => document(out, other, &status)?,
        }
        Ok(())
    })?;
    Ok(u8::from(!is_well).into())
}

impl AgentStatus {
    fn word(&self) -> &'static str {
        match self.health {
            Some(200) => "healthy",
            Some(_) => "unhealthy",
            None => "unreachable",
        }
    }
}

/// Reads the status. What cannot be read is listed among the problems, and is no error, because
/// this command is for faulty nodes.
pub(super) fn read(args: &AgentArgs) -> Result<Status> {
    let agent = Agent::find(args);
    let mut problems = Vec::new();
    let metrics = agent.metrics("/metrics");
    let (status, named) = health(&agent, metrics.as_deref().ok(), &mut problems);
    let warnings = warnings::read(&agent);
    let errors = [metrics.as_ref().err(), warnings.as_ref().err()];
    for error in errors.into_iter().flatten() {
        note(&mut problems, error.to_string());
    }
    let maps = pinned_maps(&args.pins.pin_dir).unwrap_or_else(|error| {
        problems.push(error.to_string());
        Vec::new()
    });
    problems.extend(maps.iter().filter(|map| is_nearly_full(map)).map(|map| {
        let (name, entries, capacity) = (&map.name, map.entries.unwrap_or_default(), map.capacity);
        format!("the map {name} is nearly full: {entries} of {capacity} entries")
    }));
    let attached = attached(&agent, args, metrics.as_deref().ok(), &mut problems)?;
    let config = &agent.config;
    let cgroup = cgroup(config).ok().flatten();
    let settings = agent.json("/configz").map(|all| chosen(&all));
    Ok(Status {
        version: env!("CARGO_PKG_VERSION"),
        node: named.or_else(|| node_name(config.hostname_override.as_deref()).ok()),
        kernel: running_kernel(),
        processors: processors(),
        attached_by: if has_tcx(1) { "tcx" } else { "clsact" },
        sync: metrics.as_deref().ok().map(sync),
        services: services(metrics.as_deref().ok(), args),
        agent: status,
        attached,
        hooks_below: cgroup.filter(|root| is_below_root(root)),
        settings: settings.unwrap_or_default(),
        map_memory: maps.iter().filter_map(|map| map.memory).sum(),
        maps,
        warnings: warnings.ok(),
        problems,
    })
}

/// Adds an error about the agent, unless there is one about the same HTTP server already.
fn note(problems: &mut Vec<String>, text: String) {
    let whom = |text: &str| text.split('/').take(3).collect::<Vec<_>>().join("/");
    if !problems.iter().any(|known| whom(known) == whom(&text)) {
        problems.push(text);
    }
}

/// Returns the agent's health and the node's name, by /healthz. Adds faults to `problems`.
fn health(
    agent: &Agent,
    metrics: Option<&str>,
    problems: &mut Vec<String>,
) -> (AgentStatus, Option<String>) {
    let value = |name: &str| metrics.and_then(|text| metric(text, name));
    let mut status = AgentStatus {
        pid: agent.pid,
        uptime_seconds: value("process_start_time_seconds").map(age),
        resident_memory: value("process_resident_memory_bytes").map(|bytes| bytes as u64),
        ..AgentStatus::default()
    };
    let (code, body) = match agent.health("/healthz") {
        Ok(answer) => answer,
        Err(error) => {
            note(problems, error.to_string());
            return (status, None);
        }
    };
    let answer: Json = serde_json::from_str(&body).unwrap_or_default();
    let text = |value: &Json| value.as_str().map(str::to_owned);
    status.health = Some(code);
    status.version = text(&answer["version"]);
    status.reason = text(&answer["reason"]);
    problems.extend(status.reason.clone());
    problems.extend(text(&answer["sourceFault"]));
    for fault in answer["faults"].as_array().into_iter().flatten() {
        let part = |name: &str| fault[name].as_str().unwrap_or_default();
        problems.push(format!("{}: {}", part("object"), part("reason")));
    }
    (status, text(&answer["node"]["name"]))
}

fn sync(metrics: &str) -> Sync {
    let value = |name: &str| metric(metrics, name);
    let count = |name: &str| value(name).unwrap_or_default() as u64;
    let last = "kubeproxy_sync_proxy_rules_last_timestamp_seconds{ip_family=\"IPv4\"}";
    let ages = |name: &str| {
        let lines = metrics.lines().filter_map(|line| {
            let rest = line.strip_prefix(name)?.strip_prefix("{kind=\"")?;
            let (kind, at) = rest.split_once("\"} ")?;
            Some((kind.to_owned(), age(at.parse().ok()?)))
        });
        lines.collect::<Vec<_>>()
    };
    let silent = ages("portolan_watch_last_byte_timestamp_seconds");
    Sync {
        last_seconds: value(last).map(age),
        pending_changes: count("kubeproxy_sync_proxy_rules_service_changes_pending")
            + count("kubeproxy_sync_proxy_rules_endpoint_changes_pending"),
        failed_services: count("portolan_services_failed"),
        heard_seconds: ages("portolan_watch_last_event_timestamp_seconds"),
        silent_seconds: silent.into_iter().map(|(_, seconds)| seconds).max(),
    }
}

/// Returns the settings that decide which way packets go, from the answer at /configz.
fn chosen(configz: &Json) -> BTreeMap<&'static str, String> {
    let own = &configz["kubeproxy.config.k8s.io"]["portolan"];
    let keys = ["forwarding", "socketBalancing", "selection", "xdp"];
    let given = keys.map(|key| Some((key, own[key].as_str()?.to_owned())));
    given.into_iter().flatten().collect()
}

/// Returns the number of services, from the agent's metrics or, without an agent, from the maps.
fn services(metrics: Option<&str>, args: &AgentArgs) -> Option<u64> {
    let told = metrics.and_then(|text| metric(text, "portolan_services"));
    let held = || {
        let reader = Reader::open(&args.pins.pin_dir).ok()?;
        Some(reader.service_count() as u64)
    };
    told.map(|count| count as u64).or_else(held)
}

/// Returns the seconds from `then` until now. `then`: seconds since 1970.
fn age(then: f64) -> u64 {
    let now = UNIX_EPOCH.elapsed().unwrap_or_default();
    (now.as_secs_f64() - then).max(0.0) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sync_state_is_read_from_the_metrics() {
        let metrics = include_str!("metrics.txt");
        let sync = sync(metrics);
        assert_eq!((sync.pending_changes, sync.failed_services), (5, 1));
        assert_eq!(sync.heard_seconds.len(), 1);
        assert!(sync.silent_seconds > Some(1_000_000_000));
        assert!(sync.last_seconds > Some(1_000_000_000));
    }

    #[test]
    fn the_ways_of_packets_are_read_from_the_settings() {
        let document = config::document(&config::Config::default()).expect("written");
        let chosen = chosen(&serde_json::json!({"kubeproxy.config.k8s.io": document}));
        let told = chosen.iter().map(|(key, value)| format!("{key} {value}"));
        let expected = "forwarding auto, selection random, socketBalancing all, xdp off";
        assert_eq!(told.collect::<Vec<_>>().join(", "), expected);
    }

    #[test]
    fn an_unreachable_agent_server_is_reported_once() {
        let mut problems = Vec::new();
        for (path, count) in [
            ("10249/metrics", 1),
            ("10249/warnings", 1),
            ("10256/healthz", 2),
        ] {
            let text = format!("the agent is not reachable at http://127.0.0.1:{path}: no");
            note(&mut problems, text);
            assert_eq!(problems.len(), count);
        }
    }
}
