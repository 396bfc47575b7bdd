// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the host does to a packet beside us. In: what `look` has read. Out: findings, each with a remedy and a page. Pure.

use std::net::{IpAddr, SocketAddr};

use crate::{
    cli::check::{beside::kube_proxys, finding::Finding},
    datapath::{
        HookState, NftChain,
        sys::{Incoming, LinkFacts, Routed},
    },
};

use super::report::Pointed;

/// The host, as far as it matters for one client and the endpoints that it may be sent to.
#[derive(Clone, Debug, Default)]
pub(super) struct Host {
    pub(super) v6: bool,
    /// The interface that the client's packets come in by; none for a process of this node.
    pub(super) incoming: Option<Place>,
    /// The node's route to the client.
    pub(super) to_client: Option<Routed>,
    /// Its pods' or the node's socket hooks that are not attached.
    pub(super) missing_socket_hooks: Vec<&'static str>,
    pub(super) endpoints: Vec<Endpoint>,
    /// Forwarding is off: the setting that says so.
    pub(super) not_forwarding: Option<String>,
    /// rp_filter of the interface that packets come in by: 0 off, 1 strict, 2 loose.
    pub(super) rp_filter: u8,
    /// Translated packets leave past the stack.
    pub(super) redirected: bool,
    pub(super) chains: Vec<Chain>,
    pub(super) kube_proxy: Vec<NftChain>,
    /// Connections of the client that nf_conntrack translates elsewhere.
    pub(super) tracked: Vec<SentElsewhere>,
    /// What could not be read.
    pub(super) unread: Vec<Finding>,
    /// The pinned programs only count.
    pub(super) shadow: bool,
}

/// An interface with its hooks.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Place {
    pub(super) index: u32,
    pub(super) link: LinkFacts,
    /// Ingress and egress.
    pub(super) hooks: [HookState; 2],
    /// What the stack calls it: its bridge, if it is a port of one.
    pub(super) stack_index: u32,
}

/// An endpoint that the packet may go to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Endpoint {
    pub(super) address: SocketAddr,
    /// It is what the client asks for: no service has it.
    pub(super) asked_for: bool,
    pub(super) routed: Routed,
    /// Where it leaves.
    pub(super) outgoing: Option<Place>,
    /// The MTU of the way.
    pub(super) mtu: Option<u32>,
    /// The neighbour that does not answer.
    pub(super) silent: Option<IpAddr>,
    /// The packet is masqueraded there.
    pub(super) masqueraded: bool,
    /// Why a connection from this node to it failed, if one was tried.
    pub(super) refused: Option<String>,
}

/// A chain that forwarded packets pass.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Chain {
    pub(super) name: String,
    pub(super) drops: bool,
    /// Rules beside portolan's.
    pub(super) rules: bool,
    /// Portolan's rules accept packets with its mark and those that follow.
    pub(super) accepts_ours: bool,
}

/// A connection of nf_conntrack that is translated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct SentElsewhere {
    pub(super) client: SocketAddr,
    pub(super) to: SocketAddr,
    pub(super) sent_to: SocketAddr,
}

/// Everything that the host has to say.
pub(super) fn findings(host: &Host) -> Vec<Pointed> {
    let mut found = Vec::new();
    found.extend(shadow(host));
    found.extend(hooks(host));
    found.extend(sources(host));
    found.extend(forwarding(host));
    found.extend(host.endpoints.iter().flat_map(|endpoint| ways(host, endpoint)));
    found.extend(chains(host));
    found.extend(others(host));
    let unread = host.unread.iter().cloned();
    found.extend(unread.map(|finding| Pointed::new(finding, "docs/explain.md#not-read")));
    found
}

fn shadow(host: &Host) -> Option<Pointed> {
    host.shadow.then(|| {
        let finding = Finding::in_the_way(
            "portolan",
            "the programs here are a shadow's: they only count what they would do",
            "run an agent without --shadow",
        );
        Pointed::new(finding, "docs/migrate.md#a-shadow-beside-kube-proxy")
    })
}

/// Programs that are missing, and those of others.
fn hooks(host: &Host) -> Vec<Pointed> {
    let mut found = Vec::new();
    if !host.missing_socket_hooks.is_empty() {
        let finding = Finding::in_the_way(
            "socket hooks",
            format!("not attached: {}", host.missing_socket_hooks.join(", ")),
            "start the agent: it puts them back within a second, and its log says why if it cannot",
        );
        found.push(Pointed::new(finding, "docs/explain.md#missing-program"));
    }
    let mut places: Vec<_> = host.incoming.iter().map(|place| (place, "of the client")).collect();
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
                    format!("no program of portolan's is attached at {hook} of this interface {whose}"),
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
                found.push(Pointed::new(finding, "docs/coexistence.md#other-ebpf-programs"));
            }
            if !state.behind.is_empty() {
                let finding = Finding::note(
                    format!("tc programs at {name}"),
                    format!("{} runs behind portolan's at {hook}, and may drop it", state.behind.join(", ")),
                );
                found.push(Pointed::new(finding, "docs/coexistence.md#other-ebpf-programs"));
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

/// The way back to the client, and whether the kernel believes its source.
fn sources(host: &Host) -> Vec<Pointed> {
    let (Some(incoming), Some(to_client)) = (&host.incoming, &host.to_client) else {
        return Vec::new();
    };
    let name = &incoming.link.name;
    let mut found = Vec::new();
    match to_client {
        Routed::Leaves { interface, .. } if *interface != incoming.stack_index => {
            let finding = match host.rp_filter {
                1 if !host.redirected => Finding::in_the_way(
                    format!("net.ipv4.conf.{name}.rp_filter"),
                    "is 1 (strict), and the node's route to the client leads elsewhere: the kernel drops what comes in here",
                    "set it to 2 (loose) there and for `all`, or correct the route",
                ),
                _ => Finding::note(
                    format!("interface {name}"),
                    "the node's route to the client leads through another one: answers leave there",
                ),
            };
            found.push(Pointed::new(finding, "docs/explain.md#rp-filter"));
        }
        Routed::Leaves { .. } | Routed::Here => {}
        other => {
            let finding = Finding::in_the_way(
                "the client",
                format!("the node has no way back to it: {}", of_route(other)),
                "correct the node's routes: `ip route get ADDRESS`",
            );
            found.push(Pointed::new(finding, "docs/explain.md#no-route"));
        }
    }
    found
}

fn of_route(routed: &Routed) -> String {
    match routed {
        Routed::Ended(kind) => format!("a route of kind {kind} ends it"),
        Routed::None => "there is no route".into(),
        Routed::Refused => "the kernel does not forward it".into(),
        Routed::Here => "it is this node's own".into(),
        Routed::Leaves { interface, .. } => format!("it leaves by interface {interface}"),
    }
}

/// Whether the stack forwards at all.
fn forwarding(host: &Host) -> Option<Pointed> {
    let setting = host.not_forwarding.as_ref()?;
    is_forwarded(host).then(|| {
        let finding = Finding::in_the_way(
            setting.clone(),
            "is 0: the node forwards no packet",
            "set it to 1, as every Kubernetes node has it",
        );
        Pointed::new(finding, "docs/explain.md#ip-forward")
    })
}

/// The packet passes the stack's forwarding.
fn is_forwarded(host: &Host) -> bool {
    let leaves = |one: &Endpoint| matches!(one.routed, Routed::Leaves { .. } | Routed::Refused);
    host.incoming.is_some() && !host.redirected && host.endpoints.iter().any(leaves)
}

/// What is wrong with the way to one endpoint. Where others can be reached, it is only a difference.
fn ways(host: &Host, endpoint: &Endpoint) -> Vec<Pointed> {
    let is_bad = |one: &Endpoint| {
        let has_way = matches!(one.routed, Routed::Leaves { .. } | Routed::Here);
        !has_way || one.silent.is_some() || one.refused.is_some()
    };
    let all_bad = host.endpoints.iter().all(is_bad);
    let finding = |found: String, remedy: &str| {
        let about = name_of(endpoint);
        if all_bad {
            Finding::in_the_way(about, found, remedy)
        } else {
            Finding::differs(about, found, remedy)
        }
    };
    let mut found = Vec::new();
    match &endpoint.routed {
        Routed::Leaves { .. } | Routed::Here => {}
        // Named by its cause.
        Routed::Refused if host.not_forwarding.is_some() => {}
        Routed::Refused => {
            let reason = "there is a route, and the kernel refuses to forward from this client and interface: its source is not believed \
                          there";
            let remedy = "see rp_filter and the routes: `ip route get ENDPOINT from CLIENT iif INTERFACE`";
            found.push(Pointed::new(finding(reason.into(), remedy), "docs/explain.md#rp-filter"));
        }
        other => {
            let remedy = "correct the route, or see why the CNI has not set it: `ip route get ENDPOINT`";
            found.push(Pointed::new(finding(of_route(other), remedy), "docs/explain.md#no-route"));
        }
    }
    if let Some(neighbour) = endpoint.silent {
        let reason = format!("nobody answers for its neighbour {neighbour} (state FAILED)");
        let remedy = "see whether the pod or the next node is there: `ip neighbour`";
        found.push(Pointed::new(finding(reason, remedy), "docs/explain.md#no-route"));
    }
    if let Some(reason) = &endpoint.refused {
        let remedy = "see the pod's log and its containerPort; a network policy may drop it, too";
        let reason = format!("a connection from this node failed: {reason}");
        found.push(Pointed::new(finding(reason, remedy), "docs/explain.md#deaf-endpoint"));
    }
    let client_mtu = host.incoming.as_ref().map(|place| place.link.mtu);
    if let (Some(client), Some(way)) = (client_mtu, endpoint.mtu)
        && way < client
    {
        let finding = Finding::differs(
            name_of(endpoint),
            format!(
                "the way has an MTU of {way}, the client's interface one of {client}: larger packets need the ICMP error that says so"
            ),
            "give pods the smallest MTU on the way, and let ICMP pass",
        );
        found.push(Pointed::new(finding, "docs/explain.md#mtu"));
    }
    found
}

fn name_of(endpoint: &Endpoint) -> String {
    let word = if endpoint.asked_for {
        "destination"
    } else {
        "endpoint"
    };
    format!("{word} {}", endpoint.address)
}

/// Chains that drop what is forwarded.
fn chains(host: &Host) -> Vec<Pointed> {
    if !is_forwarded(host) {
        return Vec::new();
    }
    let masqueraded = host.endpoints.iter().all(|endpoint| endpoint.masqueraded);
    let dropping = host.chains.iter().filter(|chain| chain.drops);
    let dropping = dropping.filter(|chain| !(chain.accepts_ours && masqueraded));
    let findings = dropping.map(|chain| {
        let remedy = "accept pods' packets there, or set portolan.acceptForward: true for those that portolan masquerades";
        let about = format!("chain {}", chain.name);
        let finding = if chain.rules {
            Finding::differs(about, "its policy drops what is forwarded, unless one of its rules accepts it", remedy)
        } else {
            Finding::in_the_way(about, "its policy drops what is forwarded, and it has no rule that accepts", remedy)
        };
        Pointed::new(finding, "docs/explain.md#forward-policy")
    });
    findings.collect()
}

/// What another proxy has left.
fn others(host: &Host) -> Vec<Pointed> {
    let rules = kube_proxys(&host.kube_proxy).into_iter();
    let mut found: Vec<_> = rules
        .map(|finding| Pointed::new(finding, "docs/migrate.md#clean-up-after-kube-proxy"))
        .collect();
    if let Some(first) = host.tracked.first() {
        let SentElsewhere { client, to, sent_to } = first;
        let finding = Finding::differs(
            "nf_conntrack",
            format!(
                "holds {} connections of this client that somebody else translates, for example {client} -> {to}, sent to {sent_to}",
                host.tracked.len()
            ),
            "let them end, or remove them: `conntrack -D -s CLIENT -d ADDRESS`",
        );
        found.push(Pointed::new(finding, "docs/explain.md#conntrack"));
    }
    found
}

/// The packet as the kernel's routes see it, for a client beyond an interface.
pub(super) fn incoming(host: &Host, source: IpAddr, mark: u32) -> Option<Incoming> {
    let place = host.incoming.as_ref()?;
    Some(Incoming {
        source,
        interface: place.stack_index,
        mark,
    })
}

#[cfg(test)]
#[path = "host_tests.rs"]
mod tests;
