// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Findings about an installed portolan: its agent, and its programs at interfaces and sockets. A
//! node without portolan's maps has no finding here.

use std::path::Path;

use datapath::{
    Present,
    maps::pins::{self, generations},
    missing_socket_hooks,
};
use linux::interfaces::Interface;

use crate::{
    agent::Agent,
    finding::{Finding, Level},
    frame::some_if_any,
    warnings::{self, WarningRow},
};

/// Returns findings about the installed portolan. `hooks`: those that this kernel supports.
pub(super) fn findings(
    pin_dir: &Path,
    agent: &Agent,
    interfaces: &[Interface],
    hooks: &[&'static str],
) -> Vec<Finding> {
    if generations(pin_dir).is_ok_and(|all| all.is_empty()) {
        return Vec::new();
    }
    let mut found = Vec::from_iter(of_agent(pins::is_held(pin_dir), health(agent)));
    found.extend(of_node(warnings::read(agent).unwrap_or_default()));
    match datapath::present(pin_dir) {
        Ok(present) => found.extend(interfaces_without(&present, interfaces)),
        Err(error) => found.push(Finding::unread("what is attached", &error)),
    }
    match missing_socket_hooks(pin_dir, hooks) {
        Ok(missing) => found.extend(hooks_without(&missing)),
        Err(error) => found.push(Finding::unread("socket hooks", &error)),
    }
    found
}

/// Returns the HTTP status of /healthz and the reason it gives; None if the agent does not answer.
fn health(agent: &Agent) -> Option<(u16, String)> {
    let (status, body) = agent.health("/healthz").ok()?;
    let body: serde_json::Value = serde_json::from_str(&body).unwrap_or_default();
    let reason = body["reason"].as_str().unwrap_or("it does not say why");
    Some((status, reason.to_owned()))
}

fn of_agent(is_held: bool, health: Option<(u16, String)>) -> Option<Finding> {
    match health {
        _ if !is_held => Some(Finding::of("agent-none", &[])),
        Some((200, _)) => None,
        Some((status, reason)) => Some(Finding::of("agent-unhealthy", &[&status, &reason])),
        None => Some(Finding::of("agent-silent", &[])),
    }
}

/// Returns the agent's warnings about the node, which only the agent can know.
fn of_node(warnings: Vec<WarningRow>) -> impl Iterator<Item = Finding> {
    let of_node = warnings.into_iter().filter(|one| one.topic == "node");
    of_node.map(|one| Finding::new(Level::Differs, one.object, one.reason))
}

/// Returns a finding if tc programs are missing at interfaces that should have them.
fn interfaces_without(present: &Present, interfaces: &[Interface]) -> Option<Finding> {
    let wanted = interfaces.iter().filter(|one| one.attach);
    let missing = present.missing(wanted);
    let names = missing.map(|(one, hook)| format!("{hook} of {}", one.name));
    let names = some_if_any(names.collect::<Vec<_>>())?;
    Some(Finding::of("tc-missing", &[&names]))
}

fn hooks_without(missing: &[&'static str]) -> Option<Finding> {
    Some(Finding::of("hooks-missing", &[&some_if_any(missing)?]))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Others: `missing_programs_are_named_while_an_agent_runs` of `proxy-user/tests/node`.
    #[test]
    fn an_unhealthy_agent_is_a_finding() {
        let found = of_agent(true, Some((503, "no Node".to_owned())));
        let found = found.expect("a finding").found;
        assert_eq!(found, "/healthz answers 503: no Node");
    }
}
