// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the host does to a packet in addition to portolan. Takes what `look` has read, and returns
//! findings, each with a remedy and a page. Pure.

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
    /// True if a socket hook has translated the connection, so its packets carry the endpoint's
    /// address from the start.
    pub(super) by_socket: bool,
    /// The interface that the client's packets come in by; None for a process of this node.
    pub(super) incoming: Option<HookedInterface>,
    /// The node's route to the client.
    pub(super) to_client: Option<Routed>,
    /// The socket hooks, of pods or of the node, that are not attached.
    pub(super) missing_socket_hooks: Vec<&'static str>,
    pub(super) endpoints: Vec<Endpoint>,
    /// The setting that turns forwarding off, if one does.
    pub(super) not_forwarding: Option<String>,
    /// rp_filter of the interface that packets come in by: 0 off, 1 strict, 2 loose.
    pub(super) rp_filter: u8,
    /// True if translated packets are redirected past the stack.
    pub(super) redirected: bool,
    pub(super) chains: Vec<Chain>,
    pub(super) kube_proxy: Vec<NftChain>,
    /// Connections of the client that nf_conntrack translates elsewhere.
    pub(super) tracked: Vec<SentElsewhere>,
    /// Findings about what could not be read.
    pub(super) unread: Vec<Finding>,
    /// True if the pinned programs are a shadow's, which only count.
    pub(super) shadow: bool,
}

impl Host {
    /// Returns whether every endpoint is this node itself.
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
    /// The state of the ingress and the egress hook.
    pub(super) hooks: [HookState; 2],
    /// The verdicts of foreign programs before portolan's at ingress on the client's packet, in
    /// their order. Empty if they were not run.
    pub(super) verdicts: Vec<ForeignVerdict>,
    /// The interface index that the stack uses: the bridge's, if the interface is a port of one.
    pub(super) stack_index: u32,
}

/// An endpoint that the packet may go to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Endpoint {
    pub(super) address: SocketAddr,
    /// True if it is the destination that the client asks for, and no service has that address.
    pub(super) asked_for: bool,
    pub(super) routed: Routed,
    /// The interface that packets to it leave by.
    pub(super) outgoing: Option<HookedInterface>,
    /// The MTU of the route.
    pub(super) mtu: Option<u32>,
    /// The neighbour, if it does not answer.
    pub(super) silent: Option<IpAddr>,
    /// True if the packet is masqueraded on its way there.
    pub(super) masqueraded: bool,
    /// The reason why nobody answers there, if one was found.
    pub(super) deaf: Option<String>,
}

/// A chain that forwarded packets pass.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Chain {
    pub(super) name: String,
    pub(super) drops: bool,
    /// True if the chain has rules other than portolan's.
    pub(super) rules: bool,
    /// True if portolan's rules accept packets with its mark and the packets that follow them.
    pub(super) accepts_ours: bool,
}

/// A connection of nf_conntrack that is translated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct SentElsewhere {
    pub(super) client: SocketAddr,
    pub(super) to: SocketAddr,
    pub(super) sent_to: SocketAddr,
}

/// Returns all findings about the host.
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

/// Returns a finding if the node has no route to the client, or a route by another interface.
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

/// Returns a finding if the stack does not forward.
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

/// Returns whether the stack forwards the packet.
fn is_forwarded(host: &Host) -> bool {
    let leaves = |one: &Endpoint| matches!(one.routed, Routed::Leaves { .. } | Routed::Refused);
    host.incoming.is_some() && !host.redirected && host.endpoints.iter().any(leaves)
}

/// Returns a finding for each chain that drops forwarded packets.
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

/// Returns findings about rules and connections that another proxy has left.
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

/// Returns the packet as the kernel's route lookup sees it; None for a process of this node.
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
