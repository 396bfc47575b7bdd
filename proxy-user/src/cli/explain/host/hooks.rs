// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Programs that are missing where the packet meets them, and those of others beside ours. Pure.

use super::{Host, Pointed};
use crate::cli::check::finding::Finding;

/// Programs that are missing, and those of others.
pub(super) fn findings(host: &Host) -> Vec<Pointed> {
    let mut found = Vec::new();
    if !host.missing_socket_hooks.is_empty() {
        let finding = Finding::in_the_way(
            "socket hooks",
            format!("not attached: {}", host.missing_socket_hooks.join(", ")),
            "start the agent: it puts them back within a second, and its log says why if it cannot",
        );
        found.push(Pointed::new(finding, "docs/explain.md#missing-program"));
    }
    let incoming = host.incoming.iter().filter(|_| !host.by_socket);
    let mut places: Vec<_> = incoming.map(|place| (place, "of the client")).collect();
    for endpoint in host.endpoints.iter().filter(|one| one.masqueraded) {
        if let Some(place) = &endpoint.outgoing
            && !places.iter().any(|(known, _)| known.index == place.index)
        {
            places.push((place, "of an endpoint"));
        }
    }
    for (place, whose) in places {
        let name = &place.link.name;
        for (state, hook) in place.hooks.iter().zip(["ingress", "egress"]) {
            if !state.ours {
                let finding = Finding::in_the_way(
                    format!("interface {name}"),
                    format!(
                        "no program of portolan's is attached at {hook} of this interface {whose}"
                    ),
                    "start the agent: it puts it back within a second; if the interface is left out on purpose, see portolan.interfaces",
                );
                found.push(Pointed::new(finding, "docs/explain.md#missing-program"));
            } else if !state.before.is_empty() {
                let finding = Finding::differs(
                    format!("tc programs at {name}"),
                    format!(
                        "{} runs before portolan's at {hook}: if it drops or ends the chain, portolan does not see the packet",
                        state.before.join(", ")
                    ),
                    "attach it behind portolan's: with a later preference, or by tcx after portolan has started",
                );
                found.push(Pointed::new(
                    finding,
                    "docs/coexistence.md#other-ebpf-programs",
                ));
            }
            if !state.behind.is_empty() {
                let finding = Finding::note(
                    format!("tc programs at {name}"),
                    format!(
                        "{} runs behind portolan's at {hook}, and may drop it",
                        state.behind.join(", ")
                    ),
                );
                found.push(Pointed::new(
                    finding,
                    "docs/coexistence.md#other-ebpf-programs",
                ));
            }
        }
        if !place.link.up {
            let finding = Finding::in_the_way(
                format!("interface {name}"),
                "is down",
                &format!("`ip link set {name} up`"),
            );
            found.push(Pointed::new(finding, "docs/explain.md#no-route"));
        }
    }
    found
}
