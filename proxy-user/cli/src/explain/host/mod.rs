// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the host does to a packet beside us. In: what `look` has read. Out: findings, each with a
//! remedy and a page. Pure.

mod hooks;
mod ways;

use std::net::{IpAddr, SocketAddr};

use datapath::{ForeignVerdict, HookState};
use linux::{Incoming, LinkFacts, NftChain, Routed};

use super::report::Pointed;
use crate::check::{finding::Finding, foreign::kube_proxys};

/// The host, as far as it matters for one client and the endpoints that it may be sent to.
#[derive(Clone, Debug, Default)]
pub(super) struct Host {
    pub(super) v6: bool,
    /// The client's packets carry the endpoint's address from the start: a socket hook has put it
    /// there.
    pub(super) by_socket: bool,
    /// The interface that the client's packets come in by; none for a process of this node.
    pub(super) incoming: Option<HookedInterface>,
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

impl Host {
    /// Every endpoint is this node itself.
    pub(super) fn is_own(&self) -> bool {
        let mut all = self.endpoints.iter();
        !self.endpoints.is_empty() && all.all(|one| one.routed == Routed::Here)
    }
}

/// An interface with its hooks.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct HookedInterface {
    pub(super) index: u32,
    pub(super) link: LinkFacts,
    /// Ingress and egress.
    pub(super) hooks: [HookState; 2],
    /// What foreign programs before ours at ingress do with the client's packet, if they were
    /// asked; in their order.
    pub(super) verdicts: Vec<ForeignVerdict>,
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
    pub(super) outgoing: Option<HookedInterface>,
    /// The MTU of the way.
    pub(super) mtu: Option<u32>,
    /// The neighbour that does not answer.
    pub(super) silent: Option<IpAddr>,
    /// The packet is masqueraded there.
    pub(super) masqueraded: bool,
    /// Why nobody answers there, as far as that was looked at.
    pub(super) deaf: Option<String>,
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
    found.extend(hooks::findings(host));
    found.extend(sources(host));
    found.extend(forwarding(host));
    found.extend(
        host.endpoints
            .iter()
            .flat_map(|endpoint| ways::findings(host, endpoint)),
    );
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

/// The way back to the client, and whether the kernel believes its source.
fn sources(host: &Host) -> Option<Pointed> {
    match host.to_client.as_ref()? {
        Routed::Here => None,
        Routed::Leaves { interface, .. } => {
            let incoming = host.incoming.as_ref()?;
            let finding = if *interface == incoming.stack_index {
                return None;
            } else if host.rp_filter == 1 && !host.redirected {
                Finding::in_the_way(
                    format!("net.ipv4.conf.{}.rp_filter", incoming.link.name),
                    "is 1 (strict), and the node's route to the client leads elsewhere: the kernel drops what comes in here",
                    "set it to 2 (loose) there and for `all`, or correct the route",
                )
            } else {
                Finding::note(
                    format!("interface {}", incoming.link.name),
                    "the node's route to the client leads through another one: answers leave there",
                )
            };
            Some(Pointed::new(finding, "docs/explain.md#rp-filter"))
        }
        other => {
            let finding = Finding::in_the_way(
                "the client",
                format!("the node has no way back to it: {}", of_route(other)),
                "correct the node's routes: `ip route get ADDRESS`",
            );
            Some(Pointed::new(finding, "docs/explain.md#no-route"))
        }
    }
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
        let SentElsewhere {
            client,
            to,
            sent_to,
        } = first;
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
mod tests;
