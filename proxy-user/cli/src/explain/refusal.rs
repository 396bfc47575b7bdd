// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Findings about the programs' decision: why the policy refuses the connection, what does not
//! agree with Kubernetes' objects, and which programs are missing. Pure.

use datapath::read::{Asked, By, Explained};
use proxy_common::Counter;

use super::{
    endpoints::Listed,
    interfaces::HookedInterface,
    reasons::{self, Reason},
    report::MISSING_PROGRAM,
    resolve::Passage,
};
use crate::{
    finding::{
        Finding,
        Level::{Differs, InTheWay},
    },
    frame::some_if_any,
};

/// Returns why the policy refuses the connection or does not translate it; None if it is served.
/// `listed`: what Kubernetes has of the service.
pub(super) fn of_policy(
    explained: &Explained,
    asked: &Asked,
    listed: Listed<'_>,
) -> Option<Finding> {
    let service = explained.frontend.as_ref().map(|one| &*one.service);
    let about = match service {
        Some(service) => format!("Service {service}"),
        None => format!("{}/{}", asked.to, asked.protocol.name()),
    };
    let finding = |level, found: &str, remedy: &str, page| {
        Some(Finding::new(level, about, found, remedy).explained_by(page))
    };
    match explained.counter {
        Counter::RejectedNoEndpoint => {
            let reason = match listed {
                Some((objects, wanted)) => reasons::no_endpoint(objects, wanted),
                None => unknown(service),
            };
            let found = format!("{}: clients are refused at once", reason.because);
            finding(
                InTheWay,
                &found,
                &reason.remedy,
                "docs/explain.md#no-endpoint",
            )
        }
        Counter::RejectedUnserved => finding(
            InTheWay,
            "its cluster IP serves no such port and protocol: clients are refused at once",
            "ask for one of its ports, or add the port to the Service",
            "docs/explain.md#no-such-port",
        ),
        Counter::DroppedNoLocalEndpoint => {
            let nodes = listed.and_then(|(objects, _)| some_if_any(reasons::nodes(objects)));
            let nodes = nodes.map_or_else(String::new, |nodes| format!(": {nodes}"));
            let remedy = format!(
                "send clients to a node with an endpoint{nodes} (healthCheckNodePort tells balancers), or set the policy to Cluster"
            );
            finding(
                InTheWay,
                "its traffic policy is Local, and no endpoint on this node serves: dropped without an answer",
                &remedy,
                "docs/explain.md#no-local-endpoint",
            )
        }
        Counter::DroppedSource => finding(
            InTheWay,
            "the client is outside its loadBalancerSourceRanges: dropped without an answer",
            "add the client's range to the Service, or ask its cluster IP",
            "docs/explain.md#source-ranges",
        ),
        Counter::DroppedUnallocated => finding(
            InTheWay,
            "it lies in the range of cluster IPs, and no Service has it: dropped (unallocatedClusterIPs)",
            "look the Service's address up: `kubectl get services -A`",
            "docs/explain.md#no-service",
        ),
        Counter::Untouched | Counter::SocketUntouched => match explained.because {
            Some(because) => finding(
                Differs,
                &format!("portolan leaves it alone: {because}"),
                "",
                "docs/explain.md#left-alone",
            ),
            None => finding(
                Differs,
                "no service has this address, port and protocol: portolan leaves it alone",
                "look the service up: `portolan services`; if Kubernetes has it, see the agent's log for a warning about it",
                "docs/explain.md#no-service",
            ),
        },
        _ => None,
    }
}

/// Whether a finding about the followed packet says only what the policy's own finding says.
pub(super) fn is_told(followed: &Finding, explained: &Explained, asked: &Asked) -> bool {
    followed.found.starts_with(explained.counter.name())
        && of_policy(explained, asked, None).is_some()
}

/// Returns the reason for a service without an endpoint, if Kubernetes was not asked.
fn unknown(service: Option<&str>) -> Reason {
    let command = match service.and_then(|service| service.split_once('/')) {
        Some((namespace, name)) => format!(
            ", or see `kubectl -n {namespace} get endpointslices -l kubernetes.io/service-name={name} -o yaml`"
        ),
        None => String::new(),
    };
    Reason::new(
        "no endpoint of it may be used, on any node; the maps do not say why",
        format!("ask with --kubeconfig or --manifests, which names the reason{command}"),
    )
}

/// Returns findings about what Kubernetes has of a service that is served.
pub(super) fn of_objects(explained: &Explained, listed: Listed<'_>) -> Vec<Finding> {
    let (Some((objects, wanted)), false) = (listed, explained.to.is_empty()) else {
        return Vec::new();
    };
    let about = format!("Service {}/{}", wanted.namespace, wanted.name);
    let reason = match objects.service {
        None => Some(reasons::no_endpoint(objects, wanted)),
        Some(_) => reasons::other_target(objects, wanted),
    };
    let differs = reason.map(|one| Finding::differs(about.clone(), one.because, one.remedy));
    let note = reasons::undeclared(objects, wanted).map(|found| Finding::note(about, found));
    let findings = differs.into_iter().chain(note);
    let page = "docs/explain.md#target-port";
    findings.map(|one| one.explained_by(page)).collect()
}

/// Returns findings about portolan's programs that are missing where the packet passes.
pub(super) fn of_programs(passage: &Passage, asked: &Asked) -> Vec<Finding> {
    let mut found = Vec::new();
    if !passage.missing_socket_hooks.is_empty() {
        found.push(Finding::in_the_way(
            "socket hooks",
            format!("not attached: {}", passage.missing_socket_hooks.join(", ")),
            "start the agent: it puts them back within a second, and its log says why if it cannot",
        ));
    }
    let incoming = passage.incoming.iter();
    let incoming = incoming.filter(|_| matches!(asked.by, By::Interface(_)));
    let mut places: Vec<_> = incoming.map(|place| (place, "of the client")).collect();
    for one in passage.outgoing.iter().filter(|one| one.masqueraded) {
        let is_same = |(known, _): &(&HookedInterface, _)| known.index == one.interface.index;
        if !places.iter().any(is_same) {
            places.push((&one.interface, "of an endpoint"));
        }
    }
    for (place, whose) in places {
        found.extend(missing_at(place, whose));
    }
    let found = found.into_iter();
    found.map(|one| one.explained_by(MISSING_PROGRAM)).collect()
}

fn missing_at(place: &HookedInterface, whose: &str) -> Vec<Finding> {
    let about = format!("interface {}", place.link.name);
    if place.link.is_bridge {
        let text = format!(
            "the bridge does not know which of its ports leads there: the hooks {whose} were not looked at"
        );
        return vec![Finding::note(about, text)];
    }
    let hooks = place.ours.iter().zip(["ingress", "egress"]);
    let missing = hooks.filter(|(ours, _)| !**ours).map(|(_, hook)| {
        Finding::in_the_way(
            about.clone(),
            format!("no program of portolan's is attached at {hook} of this interface {whose}"),
            "start the agent: it puts it back within a second; if the interface is left out on purpose, see portolan.interfaces",
        )
    });
    missing.collect()
}

#[cfg(test)]
#[path = "refusal_tests.rs"]
mod tests;
