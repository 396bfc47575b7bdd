// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Findings about the programs' decision: why the policy refuses the connection, what does not
//! agree with Kubernetes' objects, and which programs are missing. Pure.

use std::fmt::Display;

use datapath::read::{Asked, By, Explained};
use proxy_common::Counter;

use super::{
    interfaces::HookedInterface,
    reasons::{Reason, Wanted},
    resolve::Passage,
};
use crate::{finding::Finding, frame::some_if_any};

/// Returns why the policy refuses the connection or does not translate it; None if it is served.
pub(super) fn of_policy(
    explained: &Explained,
    asked: &Asked,
    listed: Option<Wanted<'_>>,
) -> Option<Finding> {
    let service = explained.frontend.as_ref().map(|one| &*one.service);
    let about = match service {
        Some(service) => format!("Service {service}"),
        None => format!("{}/{}", asked.to, asked.protocol.name()),
    };
    Some(match explained.counter {
        Counter::RejectedNoEndpoint => {
            let reason = match listed {
                Some(wanted) => wanted.no_endpoint(),
                None => unknown(service),
            };
            Finding::of("no-endpoint", &[&about, &reason.because, &reason.remedy])
        }
        Counter::RejectedUnserved => Finding::of("no-such-port", &[&about]),
        Counter::DroppedNoLocalEndpoint => {
            let nodes = listed.and_then(|wanted| some_if_any(wanted.nodes()));
            let nodes = nodes.map_or_else(String::new, |nodes| format!(": {nodes}"));
            Finding::of("no-local-endpoint", &[&about, &nodes])
        }
        Counter::DroppedSource => Finding::of("source-ranges", &[&about]),
        Counter::DroppedUnallocated => Finding::of("unallocated", &[&about]),
        Counter::Untouched | Counter::SocketUntouched => match explained.because {
            Some(because) => Finding::of("left-alone", &[&about, &because]),
            None => Finding::of("no-service", &[&about]),
        },
        _ => return None,
    })
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
    Reason::of("endpoint-unknown", &[&command])
}

/// Returns findings about what Kubernetes has of a service that is served.
pub(super) fn of_objects(explained: &Explained, listed: Option<Wanted<'_>>) -> Vec<Finding> {
    let Some(wanted) = listed.filter(|_| !explained.to.is_empty()) else {
        return Vec::new();
    };
    let reason = match wanted.objects.service {
        None => Some(wanted.no_endpoint()),
        Some(_) => wanted.other_target(),
    };
    let about = format!("{}/{}", wanted.namespace, wanted.name);
    let differs = |one: Reason| Finding::of("other-target", &[&about, &one.because, &one.remedy]);
    let note = wanted.undeclared();
    reason.map(differs).into_iter().chain(note).collect()
}

/// Returns findings about portolan's programs that are missing where the packet passes.
pub(super) fn of_programs(passage: &Passage, asked: &Asked) -> Vec<Finding> {
    let mut found = Vec::new();
    if !passage.missing_socket_hooks.is_empty() {
        let missing = passage.missing_socket_hooks.join(", ");
        found.push(Finding::of("hooks-unattached", &[&missing]));
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
    for (HookedInterface { link, ours, .. }, whose) in places {
        if link.is_bridge {
            found.push(Finding::of("bridge-port-unknown", &[&link.name, &whose]));
            continue;
        }
        let missing = ours.iter().zip(["ingress", "egress"]);
        for (_, hook) in missing.filter(|(ours, _)| !**ours) {
            let words: [&dyn Display; 3] = [&link.name, &whose, &hook];
            found.push(Finding::of("program-unattached", &words));
        }
    }
    found
}

#[cfg(test)]
#[path = "refusal_tests.rs"]
mod tests;
