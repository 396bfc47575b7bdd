// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Asks `portolan explain` about a flow before the flow is opened: its answer must be what the
//! conformance case expects. Called by `run`.

use std::{collections::BTreeSet, net::SocketAddr, path::Path, process::Command};

use anyhow::{Context, Result};
use lab::{
    cases::format::{Backends, Expect, Flow, SourcePorts},
    node::{layout::Host, settings::SocketBalancing, topology::Topology},
};
use proxy_common::Protocol;
use serde_json::Value;

use crate::run::Settings;

/// The program and the node that `portolan explain` is asked on.
pub(crate) struct Explainer<'a> {
    pub(crate) settings: &'a Settings,
    pub(crate) pins: &'a Path,
    pub(crate) topology: &'a Topology,
}

impl Explainer<'_> {
    /// Returns Ok, or explain's answer if the case expects another one. Three kinds of flows are
    /// not asked about: those that continue a connection of an earlier flow, those after a pause,
    /// and SCTP of the node's own processes, for which services do not work.
    pub(crate) fn check(&self, flow: &Flow) -> Result<Result<(), String>> {
        let (Some(to), Some(expect)) = (flow.to, &flow.expect) else {
            return Ok(Ok(()));
        };
        let owner = self.topology.layout.owner(flow.from);
        let is_node = matches!(owner, Some(Host::Node));
        let goes_on = flow.source_ports == Some(SourcePorts::Same) || flow.wait.is_some();
        if goes_on || is_node && flow.protocol == Protocol::SCTP {
            return Ok(Ok(()));
        }
        let is_pod = matches!(owner, Some(Host::Pod(_)));
        let at_the_socket = is_node || is_pod && self.settings.balancing == SocketBalancing::All;
        let report = self.ask(flow, to, at_the_socket && !is_node)?;
        let agrees = match expect {
            // The client calls the endpoint itself, not a service.
            Expect::Backends(expected) if is_untouched(&report) && expected.backends == [to] => {
                Ok(())
            }
            Expect::Backends(expected) => is_answered(expected, &report),
            // The node itself rejects: no service has the destination, no longer or not yet.
            Expect::Reject if is_untouched(&report) => Ok(()),
            Expect::Reject => outcome(&report, "rejected_"),
            Expect::Drop => outcome(&report, "dropped_"),
            Expect::Untouched if is_untouched(&report) => Ok(()),
            Expect::Untouched => outcome(&report, "untouched"),
        };
        Ok(agrees.map_err(|reason| format!("explained otherwise: {reason}: {report}")))
    }

    fn ask(&self, flow: &Flow, to: SocketAddr, socket: bool) -> Result<Value> {
        let mut command = Command::new(&self.settings.binary);
        command
            .args(["explain", "--output", "json"])
            .args(["--from", &flow.from.to_string()])
            .args(["--to", &to.to_string()])
            .args(["--protocol", flow.protocol.name()])
            .arg("--pin-dir")
            .arg(self.pins)
            .args(socket.then_some("--socket"))
            .env_remove("KUBECONFIG");
        let output = self.topology.node.enter(|| command.output())?;
        let output = output.context("run portolan explain")?;
        let said = String::from_utf8_lossy(&output.stderr);
        let report = serde_json::from_slice(&output.stdout);
        report.with_context(|| format!("portolan explain: {said}"))
    }
}

fn outcome(report: &Value, start: &str) -> Result<(), String> {
    let outcome = report["outcome"].as_str().unwrap_or_default();
    match outcome.starts_with(start) {
        true => Ok(()),
        false => Err(format!("{outcome} where {start} is expected")),
    }
}

fn is_untouched(report: &Value) -> bool {
    let outcome = report["outcome"].as_str();
    matches!(outcome, Some("untouched" | "socket_untouched"))
}

fn is_answered(expected: &Backends, report: &Value) -> Result<(), String> {
    if report["verdict"] != "notLookedAt" {
        return Err(format!("verdict {}", report["verdict"]));
    }
    let rows = report["endpoints"].as_array().into_iter().flatten();
    let able = rows.filter(|row| row["canAnswer"] == true);
    let able = able.filter_map(|row| row["address"].as_str()?.parse().ok());
    let able = BTreeSet::<SocketAddr>::from_iter(able);
    let listed: BTreeSet<_> = expected.backends.iter().copied().collect();
    // Session affinity of a pod's own sockets is by network namespace, which explain does not know.
    let affinity = report["affinity"].as_str().unwrap_or_default();
    let may_be_held = affinity.contains("by its network namespace");
    if able != listed && !(may_be_held && listed.is_subset(&able)) {
        return Err(format!("to {able:?} where {listed:?} are listed"));
    }
    let source = report["source"].as_str().unwrap_or_default();
    let other = |is| if is { "kept" } else { "masqueraded" };
    match expected.masquerade.map(other) {
        Some(other) if source.starts_with(other) => Err(format!("its source is {source}")),
        _ => Ok(()),
    }
}
