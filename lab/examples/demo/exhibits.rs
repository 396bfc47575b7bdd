// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the demo shows: its hosts, and flows as conformance/FORMAT.md describes them, each with the
//! rule of portolan that explains it.

use std::{collections::BTreeMap, net::IpAddr};

use anyhow::{Context, Result};
use lab::{cases::format::Flow, node::layout::Layout};

pub(crate) const NODE: &str = "node-a";

/// The name of each host, for people to read, and its addresses.
const HOSTS: [(&str, &[&str]); 6] = [
    ("node-a", &["192.168.40.2", "fd00:c0::2"]),
    ("client pod", &["10.40.1.9", "fd00:40:0:1::9"]),
    ("web-1", &["10.40.1.10", "fd00:40:0:1::10"]),
    ("web-2", &["10.40.1.11", "fd00:40:0:1::11"]),
    ("web-3 on node-b", &["10.40.2.10", "fd00:40:0:2::10"]),
    ("outside client", &["203.0.113.9", "2001:db8:113::9"]),
];

/// The names in [`HOSTS`] of the pods that run on the node.
pub(crate) const PODS: [&str; 3] = ["client pod", "web-1", "web-2"];

/// One row of the demo's table: what is done, the flow as conformance/FORMAT.md describes it, and
/// the rule that explains its outcome.
pub(crate) struct Exhibit {
    pub(crate) what: &'static str,
    pub(crate) flow: &'static str,
    pub(crate) rule: &'static str,
}

pub(crate) const EXHIBITS: [Exhibit; 15] = [
    Exhibit {
        what: "A pod calls a cluster IP",
        flow: "{from: 10.40.1.9, to: '172.30.0.10:80', expect: {masquerade: false,
                backends: ['10.40.1.10:8080', '10.40.1.11:8080', '10.40.2.10:8080']}}",
        rule: "Any ready endpoint, by chance. Pods keep their source: answers find their way back.",
    },
    Exhibit {
        what: "The same over IPv6",
        flow: "{from: 'fd00:40:0:1::9', to: '[fd00:30::10]:80', expect: {masquerade: false,
                backends: ['[fd00:40:0:1::10]:8080', '[fd00:40:0:1::11]:8080', '[fd00:40:0:2::10]:8080']}}",
        rule: "Both families of a dual-stack service are served alike.",
    },
    Exhibit {
        what: "A pod asks a name server over UDP",
        flow: "{from: 10.40.1.9, to: '172.30.0.53:53', protocol: UDP, expect: {masquerade: false,
                backends: ['10.40.1.11:5353', '10.40.2.10:5353']}}",
        rule: "Each socket's datagrams are one flow with one endpoint; the answer comes from the address asked.",
    },
    Exhibit {
        what: "An outside client calls the node port",
        flow: "{from: 203.0.113.9, to: '192.168.40.2:30080', expect: {masquerade: true,
                backends: ['10.40.1.10:8080', '10.40.1.11:8080', '10.40.2.10:8080']}}",
        rule: "externalTrafficPolicy Cluster: any endpoint on any node, so the source becomes the node's.",
    },
    Exhibit {
        what: "... and the load balancer address",
        flow: "{from: 203.0.113.9, to: '198.51.100.10:80', expect: {masquerade: true,
                backends: ['10.40.1.10:8080', '10.40.1.11:8080', '10.40.2.10:8080']}}",
        rule: "The node accepts the load balancer's address itself; policy Cluster again.",
    },
    Exhibit {
        what: "... and over IPv6",
        flow: "{from: '2001:db8:113::9', to: '[2001:db8:51::10]:80', expect: {masquerade: true,
                backends: ['[fd00:40:0:1::10]:8080', '[fd00:40:0:1::11]:8080', '[fd00:40:0:2::10]:8080']}}",
        rule: "Masquerading is done in eBPF, for both families.",
    },
    Exhibit {
        what: "An outside client calls a service of policy Local",
        flow: "{from: 203.0.113.9, to: '198.51.100.30:80', expect: {masquerade: false,
                backends: ['10.40.1.11:8080']}}",
        rule: "externalTrafficPolicy Local: only pods on this node, which see the client's own address.",
    },
    Exhibit {
        what: "A pod calls the same address",
        flow: "{from: 10.40.1.9, to: '198.51.100.30:80', expect: {
                backends: ['10.40.1.11:8080', '10.40.2.10:8080']}}",
        rule: "From inside the cluster the address stands for the cluster IP: all endpoints.",
    },
    Exhibit {
        what: "A pod calls a service with client affinity",
        flow: "{from: 10.40.1.9, to: '172.30.0.20:80', repeat: 40, expect: {sticky: true,
                backends: ['10.40.1.10:8080', '10.40.1.11:8080', '10.40.2.10:8080']}}",
        rule: "sessionAffinity ClientIP: the endpoint of the first connection, for 600 s after the last.",
    },
    Exhibit {
        what: "A pod calls a service without endpoints",
        flow: "{from: 10.40.1.9, to: '172.30.0.40:80', expect: reject}",
        rule: "Nobody can answer: the kernel program does, with a refusal, at once.",
    },
    Exhibit {
        what: "An outside client calls its node port",
        flow: "{from: 203.0.113.9, to: '192.168.40.2:30040', expect: reject}",
        rule: "The same at a node port: no waiting for a time-out.",
    },
    Exhibit {
        what: "A pod calls a cluster IP's other port",
        flow: "{from: 10.40.1.9, to: '172.30.0.10:81', protocol: UDP, expect: reject}",
        rule: "A port that a cluster IP does not serve is refused: ICMP port unreachable for UDP.",
    },
    Exhibit {
        what: "A pod reaches itself through its service",
        flow: "{from: 10.40.1.10, to: '172.30.0.50:80', expect: {masquerade: true,
                backends: ['10.40.1.10:8080']}}",
        rule: "Hairpin: masqueraded, else the pod would answer itself without passing the node.",
    },
    Exhibit {
        what: "A process on the node calls a cluster IP",
        flow: "{from: 192.168.40.2, to: '172.30.0.10:80', expect: {
                backends: ['10.40.1.10:8080', '10.40.1.11:8080', '10.40.2.10:8080']}}",
        rule: "Translated once, at its socket: the packets carry the endpoint's address from the start.",
    },
    Exhibit {
        what: "... and a service without endpoints",
        flow: "{from: 192.168.40.2, to: '172.30.0.40:80', expect: reject}",
        rule: "connect fails with ECONNREFUSED; no packet leaves.",
    },
];

pub(crate) fn layout(flows: &[Flow]) -> Result<Layout> {
    let addresses = |wanted: &str| -> Result<Vec<IpAddr>> {
        let host = HOSTS.iter().find(|(name, _)| *name == wanted);
        let (_, texts) = host.with_context(|| format!("no host {wanted}"))?;
        texts
            .iter()
            .map(|text| text.parse().context(*text))
            .collect()
    };
    let mut layout = Layout {
        node: addresses(NODE)?,
        pods: PODS
            .iter()
            .map(|pod| addresses(pod))
            .collect::<Result<_>>()?,
        remote: addresses("web-3 on node-b")?.into_iter().collect(),
        outside: addresses("outside client")?.into_iter().collect(),
        ..Layout::default()
    };
    let called = flows.iter().filter_map(|flow| flow.to).map(|to| to.ip());
    layout.unowned = called.filter(|ip| layout.owner(*ip).is_none()).collect();
    Ok(layout)
}

pub(crate) fn names() -> Result<BTreeMap<IpAddr, &'static str>> {
    let mut names = BTreeMap::new();
    for (name, addresses) in HOSTS {
        for text in addresses {
            names.insert(text.parse().context(*text)?, name);
        }
    }
    Ok(names)
}
