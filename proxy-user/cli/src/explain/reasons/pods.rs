// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Why a pod is not ready, from its status. Pure.

use std::fmt::Display;

use control::model::parse;
use k8s_openapi::api::core::v1::{ContainerPort, ContainerStatus, Pod};
use proxy_common::Protocol;

use super::Reason;

pub(super) fn not_ready(pod: &Pod) -> Reason {
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    let namespace = pod.metadata.namespace.as_deref().unwrap_or("default");
    if pod.metadata.deletion_timestamp.is_some() {
        return Reason::of("not-serving", &[]);
    }
    let describe = format!("see why: `kubectl -n {namespace} describe pod {name}`");
    let logs = |container: &str| {
        format!("see its log: `kubectl -n {namespace} logs {name} -c {container} --previous`")
    };
    let by_state = |one: &&ContainerStatus| {
        let (container, state) = (&one.name, one.state.as_ref()?);
        let waiting = state.waiting.as_ref();
        if let Some(reason) = waiting.and_then(|waiting| waiting.reason.as_deref()) {
            let remedy = match reason {
                "CrashLoopBackOff" => logs(container),
                _ => describe.clone(),
            };
            let words: [&dyn Display; 3] = [container, &reason, &remedy];
            return Some(Reason::of("container-waits", &words));
        }
        let code = state.terminated.as_ref()?.exit_code;
        let words: [&dyn Display; 3] = [container, &code, &logs(container)];
        Some(Reason::of("container-ended", &words))
    };
    let by_probe = |one: &&ContainerStatus| {
        let mut specs = pod.spec.as_ref()?.containers.iter();
        let spec = specs.find(|spec| spec.name == one.name)?;
        let code = match &spec.readiness_probe {
            _ if one.started == Some(false) && spec.startup_probe.is_some() => "startup-probe",
            Some(_) => "readiness-probe",
            None => return None,
        };
        Some(Reason::of(code, &[&one.name, &describe]))
    };
    let status = pod.status.clone().unwrap_or_default();
    let statuses = status.container_statuses.unwrap_or_default();
    let unready: Vec<_> = statuses.iter().filter(|one| !one.ready).collect();
    let known = unready.iter().find_map(by_state);
    match known.or_else(|| unready.iter().find_map(by_probe)) {
        Some(known) => known,
        None if !unready.is_empty() => {
            let names: Vec<_> = unready.iter().map(|one| &*one.name).collect();
            Reason::of("container-unready", &[&names.join(", "), &describe])
        }
        None => match (unmet_gate(pod), status.phase.as_deref()) {
            (Some(gate), _) => Reason::of("gate-unmet", &[&gate]),
            (None, Some("Pending")) => Reason::of("pod-pending", &[&describe]),
            (None, _) => Reason::of("unready", &[&describe]),
        },
    }
}

/// Returns the first of the pod's readiness gates that is not met.
fn unmet_gate(pod: &Pod) -> Option<&str> {
    let status = pod.status.as_ref();
    let conditions = status.and_then(|status| status.conditions.as_ref());
    let is_met = |gate: &str| {
        let mut all = conditions.into_iter().flatten();
        all.any(|one| one.type_ == gate && one.status == "True")
    };
    let gates = pod.spec.as_ref()?.readiness_gates.iter().flatten();
    let mut types = gates.map(|gate| &*gate.condition_type);
    types.find(|gate| !is_met(gate))
}

/// Returns the ports of this protocol that the containers of a pod declare.
pub(super) fn ports(pod: &Pod, protocol: Protocol) -> impl Iterator<Item = &ContainerPort> {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let all = containers.flat_map(|container| container.ports.iter().flatten());
    all.filter(move |port| parse::protocol(port.protocol.as_deref()) == Some(protocol))
}
