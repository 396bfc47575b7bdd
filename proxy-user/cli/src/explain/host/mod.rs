// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the host itself does to a packet, besides portolan. Takes the facts that `look` has read,
//! and returns findings, each with a remedy and a documentation page. Pure.

mod hooks;
mod links;
mod silence;
mod unasked;
mod ways;

use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
};

use datapath::{ForeignVerdict, HookState};
use linux::{ChainRules, Incoming, LegacyRules, LinkFacts, NftChain, Routed};

use super::report::Pointed;
use crate::check::{finding::Finding, foreign::kube_proxys};

pub(super) use silence::Silence;
pub(super) use unasked::{PassedHooks, Unasked, places};

/// Facts about the host, as far as they matter for one client and the endpoints that its packet may
/// go to.
#[derive(Clone, Debug, Default)]
pub(super) struct Host {
    pub(super) v6: bool,
    /// True if a socket hook has translated the connection, so that its packets have the endpoint's
    /// address from the start.
    pub(super) by_socket: bool,
    /// The interface that the client's packets come in by; None if the client is a process of this
    /// node.
    pub(super) incoming: Option<HookedInterface>,
    /// The node's route to the client; None if the client is a process of this node.
    pub(super) to_client: Option<Routed>,
    /// The socket hooks that this client needs and that are not attached.
    pub(super) missing_socket_hooks: Vec<&'static str>,
    pub(super) endpoints: Vec<Endpoint>,
    /// The kernel parameter that turns IP forwarding off, if one does.
    pub(super) not_forwarding: Option<String>,
    /// rp_filter (reverse path filter) of the interface that the client's packets come in by: 0
    /// off, 1 strict, 2 loose.
    pub(super) rp_filter: u8,
    /// True if the first translated packet bypasses the stack already.
    pub(super) redirected: bool,
    /// How packets go on, in words; None if every packet takes the stack.
    pub(super) path: Option<&'static str>,
    pub(super) chains: Vec<Chain>,
    pub(super) kube_proxy: Vec<NftChain>,
    /// The chains of nf_tables that the packet passes, with rules of others.
    pub(super) rules: Vec<ChainRules>,
    /// The tables of legacy iptables that it passes, with rules of others.
    pub(super) legacy_rules: Vec<LegacyRules>,
    /// The names of foreign programs at the socket hooks that the client's process may pass.
    pub(super) at_sockets: BTreeSet<String>,
    /// The next hop to the client, if it does not answer.
    pub(super) client_silence: Option<Silence>,
    /// The client's connections that nf_conntrack translates to another destination.
    pub(super) tracked: Vec<SentElsewhere>,
    /// Findings about facts that could not be read.
    pub(super) unread: Vec<Finding>,
}

impl Host {
    /// Returns whether every endpoint is at an address of this node itself.
    pub(super) fn is_own(&self) -> bool {
        let mut all = self.endpoints.iter();
        !self.endpoints.is_empty() && all.all(|one| one.routed == Routed::Here)
    }
}

/// An interface, and the programs at its tc hooks.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct HookedInterface {
    pub(super) index: u32,
    pub(super) link: LinkFacts,
    /// The programs at the ingress hook, then those at the egress hook.
    pub(super) hooks: [HookState; 2],
    /// The verdicts on the client's packet of the foreign programs before portolan's at ingress, in
    /// their order. Empty if they were not run.
    pub(super) verdicts: Vec<ForeignVerdict>,
    /// The interface index that the kernel's route lookup sees: the bridge's, if the interface is a
    /// port of one.
    pub(super) stack_index: u32,
    /// The name of the interface with that index.
    pub(super) stack_name: String,
    /// The name of the foreign XDP program there, if there is one.
    pub(super) xdp: Option<String>,
}

/// An endpoint that the client's packet may go to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Endpoint {
    pub(super) address: SocketAddr,
    /// True if this is no endpoint, but the destination that the client asks for: no service has
    /// that address.
    pub(super) asked_for: bool,
    pub(super) routed: Routed,
    /// The interface that packets to the endpoint leave by; None if they do not leave the node.
    pub(super) outgoing: Option<HookedInterface>,
    /// The smallest MTU of the route to the endpoint and the interfaces on this node; None if
    /// packets do not leave the node.
    pub(super) mtu: Option<u32>,
    /// The next hop to the endpoint, if it does not answer.
    pub(super) silent: Option<Silence>,
    /// True if the packet to this endpoint is masqueraded.
    pub(super) masqueraded: bool,
    /// Why nobody answers at the endpoint, if a reason was found.
    pub(super) deaf: Option<String>,
}

impl Endpoint {
    /// Whether it is behind a next hop, and so no pod or process of this node.
    pub(super) fn is_beyond(&self) -> bool {
        matches!(self.routed, Routed::Leaves { neighbour, .. } if neighbour != self.address.ip())
    }
}

/// A firewall chain that forwarded packets pass.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Chain {
    pub(super) name: String,
    pub(super) drops: bool,
    /// True if the chain has rules other than portolan's.
    pub(super) rules: bool,
    /// True if portolan's rules in the chain accept packets with its mark, and those of established
    /// connections.
    pub(super) accepts_ours: bool,
}

/// A connection that nf_conntrack translates: the client addressed `to`, and its packets go to
/// `sent_to`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct SentElsewhere {
    pub(super) client: SocketAddr,
    pub(super) to: SocketAddr,
    pub(super) sent_to: SocketAddr,
}

/// Returns all findings about what the host does to the packet.
pub(super) fn findings(host: &Host) -> Vec<Pointed> {
    let mut found = Vec::new();
    found.extend(hooks::findings(host));
    found.extend(sources(host));
    found.extend(links::of_client(host));
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

/// Returns a finding if the node has no route to the client, or one by another interface than the
/// client's packets come in by.
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

/// Returns a finding if the kernel does not forward, but the packet needs it.
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

/// Returns whether the packet is one that the stack must forward.
fn is_forwarded(host: &Host) -> bool {
    let leaves = |one: &Endpoint| matches!(one.routed, Routed::Leaves { .. } | Routed::Refused);
    host.incoming.is_some() && !host.redirected && host.endpoints.iter().any(leaves)
}

/// Returns a finding for each firewall chain that would drop the forwarded packet.
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

/// Returns findings about firewall rules and connections that another proxy has left.
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

/// Returns the packet as the kernel's route lookup sees it; None if the client is a process of this
/// node.
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
