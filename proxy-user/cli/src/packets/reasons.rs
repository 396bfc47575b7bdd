// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the kernel's reasons for freeing a packet mean to an operator, and what to do. Names are
//! those of `enum skb_drop_reason` without their prefix; which there are depends on the kernel.
//! Pure.

use std::iter;

use serde::Serialize;

/// What a reason means, and the remedy.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub(crate) struct Meaning {
    pub(crate) means: &'static str,
    pub(crate) remedy: &'static str,
}

/// Reasons that say nothing about a loss: the frame was for another host or was a copy, or its
/// socket has been closed since.
pub(crate) fn is_harmless(reason: &str) -> bool {
    matches!(
        reason,
        "OTHERHOST" | "SKB_CONSUMED" | "CONSUMED" | "QUEUE_PURGE"
    )
}

/// Returns what a reason means. `place`: the function that freed the packet, which decides where
/// the kernel gives no reason.
pub(crate) fn meaning(reason: &str, place: &str) -> Meaning {
    let by_place = || match place {
        _ if place.starts_with("ip_forward") || place.starts_with("ip6_forward") => "not forwarded",
        _ if place.starts_with("ip_error") || place.contains("route") => "IP_OUTNOROUTES",
        _ if place.starts_with("arp_error") || place.contains("neigh") => "NEIGH_FAILED",
        _ => "unknown",
    };
    let found = named(reason).or_else(|| named(by_place()));
    found.unwrap_or_default()
}

/// Finds a reason in the table.
fn named(reason: &str) -> Option<Meaning> {
    let mut rows = rows();
    rows.find_map(|(names, meaning)| {
        names
            .split(", ")
            .any(|one| one == reason)
            .then_some(meaning)
    })
}

/// Returns the rows of the table, each with the names of its reasons.
fn rows() -> impl Iterator<Item = (&'static str, Meaning)> {
    let mut lines = REASONS.lines().skip(1).map(str::trim);
    iter::from_fn(move || {
        let names = lines.next()?;
        let [means, remedy] = [lines.next()?, lines.next()?];
        Some((names, Meaning { means, remedy }))
    })
}

/// Names of reasons; what they mean; the remedy.
const REASONS: &str = "
NETFILTER_DROP
    a netfilter hook drops it
    `portolan explain --follow` names the rule
TC_INGRESS, TC_EGRESS, XDP, BPF_CGROUP_EGRESS
    a program drops it
    `portolan explain --follow` names the program
NO_SOCKET
    no process listens there
    correct the Service's targetPort, or see the pod's log
IP_RPFILTER
    reverse path filtering: the route back to its source leads elsewhere
    set net.ipv4.conf.INTERFACE.rp_filter (and `all`) to 2 or 0, or correct the route to the \
     client
IP_LOCAL_SOURCE, IP_INVALID_SOURCE, IP_LOCALNET
    its source address cannot come from there: it is one of the node's own, loopback, or invalid \
     (a martian source)
    see what address the client sends from, and which interface has it: `ip address`
IP_OUTNOROUTES, IP_INNOROUTES, IP_INADDRERRORS, IP_INVALID_DEST
    there is no route for it, or one that refuses it
    correct the routes and routing rules: `ip route get ADDRESS from CLIENT iif INTERFACE`, `ip \
     rule`
NEIGH_FAILED, NEIGH_QUEUEFULL, NEIGH_DEAD, NEIGH_CREATEFAIL, NEIGH_HH_FILLFAIL
    the next hop does not answer for its address (ARP or neighbour discovery)
    see whether the pod or the next node is there and has the address: `ip neighbour`; an address \
     that is no pod's any more stands in an EndpointSlice that somebody must correct
PKT_TOO_BIG
    it is larger than the MTU of the way
    give pods the smallest MTU on the way, and let the ICMP errors pass that say so
IP_CSUM, TCP_CSUM, UDP_CSUM, ICMP_CSUM
    its checksum is wrong
    look for a device or driver with broken checksum offload: `ethtool -K INTERFACE tx off` \
     proves it
IP_INHDR
    its IP header is not acceptable, for example its hop limit has expired
    see the TTL that the client sends, and whether packets go in a circle: `ip route get`
DEV_READY
    the interface is down, or its other end is
    `ip link set INTERFACE up`, at both ends
DEV_HDR, HDR_TRUNC, SKB_UCOPY_FAULT
    the interface cannot build or read its header
    see the interface and its driver: `ip -d link show INTERFACE`
FULL_RING, QDISC_DROP, CPU_BACKLOG, QDISC_OVERLIMIT, QDISC_CONGESTED, NOMEM
    a queue is full
    see `tc -s qdisc show dev INTERFACE` and /proc/net/softnet_stat; shaped traffic drops what \
     exceeds its rate
SOCKET_FILTER, TCP_MINTTL, XFRM_POLICY
    a filter of the receiving socket, or an IPsec policy, does not let it in
    see the server's own settings, and `ip xfrm policy`
SOCKET_RCVBUFF, SOCKET_BACKLOG
    the receiving socket's buffer is full: the process does not read fast enough
    see the process at the endpoint
IP_NOPROTO, UNHANDLED_PROTO, PTYPE_ABSENT
    nothing on the receiving host takes this protocol
    see whether the interface has an address of this IP family
BRIDGE_INGRESS_STP_STATE, LOCAL_MAC, UNICAST_IN_L2_MULTICAST
    the bridge does not forward it
    see the state of its ports: `bridge -d link`
TCP_LISTEN_OVERFLOW, TCP_REQQFULLDROP
    the server's queue of connections is full
    let the server accept faster, or give it a longer queue (listen's backlog, net.core.somaxconn)
not forwarded
    the node does not forward it: its hop limit has expired, or forwarding is off there
    see net.ipv4.ip_forward, the interface's forwarding, and the TTL that the client sends
unknown
    the kernel freed it for a reason that portolan has no words for
    look the reason and the function up in the kernel's include/net/dropreason-core.h
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_or_else_the_place_decides_about_the_meaning() {
        assert!(meaning("IP_RPFILTER", "x").remedy.contains("rp_filter"));
        assert!(
            meaning("NOT_SPECIFIED", "ip_forward")
                .means
                .contains("hop limit")
        );
        assert!(meaning("NOT_SPECIFIED", "ip_error").means.contains("route"));
        assert!(meaning("BRAND_NEW", "somewhere").means.contains("no words"));
        assert!(is_harmless("OTHERHOST") && !is_harmless("NO_SOCKET"));
    }

    #[test]
    fn no_reason_stands_twice() {
        let mut all: Vec<_> = rows().flat_map(|(names, _)| names.split(", ")).collect();
        let count = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), count);
    }
}
