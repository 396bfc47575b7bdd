// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Why a pod is not ready, from its status. Pure.

use control::model::parse;
use k8s_openapi::api::core::v1::{Container, ContainerPort, ContainerStatus, Pod};
use proxy_common::Protocol;

use super::Reason;

/// Returns why a pod is not ready.
pub(super) fn not_ready(pod: &Pod) -> Reason {
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    let namespace = pod.metadata.namespace.as_deref().unwrap_or("default");
    let describe = format!("see why: `kubectl -n {namespace} describe pod {name}`");
    if pod.metadata.deletion_timestamp.is_some() {
        return Reason::new("terminating, and no longer serving", "");
    }
    let status = pod.status.clone().unwrap_or_default();
    let statuses = status.container_statuses.unwrap_or_default();
    let mut unready = statuses.iter().filter(|one| !one.ready).peekable();
    if unready.peek().is_none() {
        return match unmet_gate(pod) {
            Some(gate) => {
                let because = format!("not ready: its readiness gate {gate} is not met");
                Reason::new(because, "see the controller that sets this condition")
            }
            None => match status.phase.as_deref() {
                Some("Pending") => Reason::new("not ready: its pod is Pending", describe),
                _ => Reason::new("not ready", describe),
            },
        };
    }
    let logs = |container: &str| {
        format!("see its log: `kubectl -n {namespace} logs {name} -c {container} --previous`")
    };
    for one in unready.clone() {
        let container = &one.name;
        if let Some(reason) = waiting(one) {
            let because = format!("not ready: container {container} waits: {reason}");
            let remedy = match reason {
                "CrashLoopBackOff" => logs(container),
                _ => describe,
            };
            return Reason::new(because, remedy);
        }
        if let Some(code) = exit_code(one) {
            let because = format!("not ready: container {container} has ended with status {code}");
            return Reason::new(because, logs(container));
        }
    }
    for one in unready {
        let container = &one.name;
        let spec = spec_of(pod, container);
        if one.started == Some(false) && spec.is_some_and(|spec| spec.startup_probe.is_some()) {
            let because = format!(
                "not ready: the startup probe of container {container} has not succeeded yet"
            );
            return Reason::new(because, describe);
        }
        if spec.is_some_and(|spec| spec.readiness_probe.is_some()) {
            let because = format!("not ready: the readiness probe of container {container} fails");
            return Reason::new(because, describe);
        }
    }
    let names: Vec<_> = statuses
        .iter()
        .filter(|one| !one.ready)
        .map(|one| &*one.name)
        .collect();
    let because = format!("not ready: so is its container {}", names.join(", "));
    Reason::new(because, describe)
}

/// Returns why the kubelet has not started a container, as `ImagePullBackOff`.
fn waiting(container: &ContainerStatus) -> Option<&str> {
    let waiting = container.state.as_ref()?.waiting.as_ref()?;
    waiting.reason.as_deref()
}

fn exit_code(container: &ContainerStatus) -> Option<i32> {
    let ended = container.state.as_ref()?.terminated.as_ref()?;
    Some(ended.exit_code)
}

fn spec_of<'a>(pod: &'a Pod, container: &str) -> Option<&'a Container> {
    let mut containers = pod.spec.as_ref()?.containers.iter();
    containers.find(|one| one.name == container)
}

/// Returns the first of the pod's readiness gates that is not met.
fn unmet_gate(pod: &Pod) -> Option<&str> {
    let conditions = pod
        .status
        .as_ref()
        .and_then(|status| status.conditions.as_ref());
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
