// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Findings about interfaces that are down or have no carrier, and about a client that nobody
//! answers for. Pure.

use linux::LinkFacts;

use super::{Host, Pointed};
use crate::check::finding::Finding;

/// Returns why an interface carries no packet, and what to do; None if it carries packets.
pub(super) fn fault(link: &LinkFacts) -> Option<(String, String)> {
    let name = &link.name;
    if !link.up {
        return Some((
            format!("interface {name} is down"),
            format!("`ip link set {name} up`"),
        ));
    }
    if link.is_bridge && !link.carrier {
        return Some((
            format!("none of the ports of bridge {name} is up"),
            format!("bring the pods' ends up: `bridge link`, `ip link show master {name}`"),
        ));
    }
    (!link.carrier).then(|| {
        (
            format!("interface {name} has no carrier: its other end is down or gone"),
            "bring the other end up: a pod's is eth0 in its network namespace, which the CNI sets up".to_owned(),
        )
    })
}

/// Returns findings about the client's side: its interface, and whether somebody answers for it.
pub(super) fn of_client(host: &Host) -> Option<Pointed> {
    let down = host.incoming.as_ref().and_then(|place| fault(&place.link));
    let (found, remedy) = match (down, &host.client_silence) {
        (Some((found, remedy)), _) => (found, remedy),
        (None, Some(silence)) => (
            format!("{}: answers do not reach it", silence.describe()),
            "see whether the client is there and has this address".to_owned(),
        ),
        (None, None) => return None,
    };
    let finding = Finding::in_the_way("the client", found, &remedy);
    Some(Pointed::new(finding, "docs/explain.md#nobody-answers"))
}
