// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Findings about hooks where portolan's programs are missing, and about foreign programs at the
//! same hooks. Pure.

use datapath::{ChainMember, ForeignVerdict, HookState};

use super::{super::report::MISSING_PROGRAM, HookedInterface, Host, Pointed};
use crate::check::finding::Finding;

/// Returns findings about portolan's missing programs and about foreign ones.
pub(super) fn findings(host: &Host) -> Vec<Pointed> {
    let mut found = Vec::new();
    if !host.missing_socket_hooks.is_empty() {
        let finding = Finding::in_the_way(
            "socket hooks",
            format!("not attached: {}", host.missing_socket_hooks.join(", ")),
            "start the agent: it puts them back within a second, and its log says why if it cannot",
        );
        found.push(Pointed::new(finding, MISSING_PROGRAM));
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
        if place.link.is_bridge {
            let text = format!(
                "the bridge {name} does not know which of its ports leads there: the hooks {whose} were not looked at"
            );
            let finding = Finding::note(format!("interface {name}"), text);
            found.push(Pointed::new(finding, MISSING_PROGRAM));
            continue;
        }
        for (state, hook) in place.hooks.iter().zip(["ingress", "egress"]) {
            if !state.ours {
                let finding = Finding::in_the_way(
                    format!("interface {name}"),
                    format!(
                        "no program of portolan's is attached at {hook} of this interface {whose}"
                    ),
                    "start the agent: it puts it back within a second; if the interface is left out on purpose, see portolan.interfaces",
                );
                found.push(Pointed::new(finding, MISSING_PROGRAM));
            } else if !state.before.is_empty() {
                let ingress = hook == "ingress";
                found.extend(before(place, state, hook, ingress));
            }
            if !state.behind.is_empty() {
                let finding = Finding::note(
                    format!("tc programs at {name}"),
                    format!(
                        "{} runs behind portolan's at {hook}, and may drop it",
                        names(&state.behind)
                    ),
                );
                found.push(Pointed::new(
                    finding,
                    "docs/coexistence.md#other-ebpf-programs",
                ));
            }
        }
    }
    found
}

/// Returns findings about foreign programs that run before portolan's at this hook. If they were
/// run on the client's packet, their verdicts decide the level.
fn before(place: &HookedInterface, state: &HookState, hook: &str, ingress: bool) -> Vec<Pointed> {
    let name = &place.link.name;
    let page = "docs/coexistence.md#other-ebpf-programs";
    let remedy = "attach it behind portolan's: with a later preference, or by tcx after portolan has started";
    let about = format!("tc programs at {name}");
    let asked = ingress && place.verdicts.len() == state.before.len();
    if !asked {
        let found = format!(
            "{} runs before portolan's at {hook}: if it drops or ends the chain, portolan does not see the packet (--probe asks it)",
            names(&state.before)
        );
        return vec![Pointed::new(Finding::differs(about, found, remedy), page)];
    }
    let both = state.before.iter().zip(&place.verdicts);
    let stopping = both.filter_map(|(one, verdict)| {
        let what = match verdict {
            ForeignVerdict::Next => return None,
            ForeignVerdict::Ends => "ends the chain, so portolan does not see the packet",
            ForeignVerdict::Drops => "drops the packet",
            ForeignVerdict::Redirects => "sends the packet elsewhere",
        };
        let found = format!("{} before portolan's at {hook} {what}", one.name);
        Some(Pointed::new(
            Finding::in_the_way(about.clone(), found, remedy),
            page,
        ))
    });
    let stopping: Vec<_> = stopping.collect();
    if !stopping.is_empty() {
        return stopping;
    }
    let found = format!(
        "{} runs before portolan's at {hook}, and passes this packet on",
        names(&state.before)
    );
    vec![Pointed::new(Finding::note(about, found), page)]
}

fn names(standing: &[ChainMember]) -> String {
    let names: Vec<_> = standing.iter().map(|one| one.name.as_str()).collect();
    names.join(", ")
}
