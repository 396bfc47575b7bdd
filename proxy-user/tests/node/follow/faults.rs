// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Faults that lose packets: rules of others, routes, neighbours, links and kernel parameters. Each
//! has words of the sentence that must name it, and the lines that set it up and remove it again.

/// Words of the sentence, and lines for `Node::run`: to make the fault, and to undo it.
pub(super) type Fault = [&'static str; 3];

const NO_IP_TABLE: &str = "node nft delete table ip firewall";
const NO_INET_TABLE: &str = "node nft delete table inet firewall";
const NO_ROUTE: &str = "there is no route for it, or one that refuses it";

/// Rules that refuse packets of the packet path.
pub(super) const BY_RULES: &[Fault] = &[
    [
        "chain ip firewall filter: `tcp dport 8080 reject",
        "node chain ip forward: tcp dport 8080 reject",
        NO_IP_TABLE,
    ],
    [
        "chain netdev firewall filter: `tcp dport 8080 drop`",
        "node chain netdev ingress device $in: tcp dport 8080 drop",
        "node nft delete table netdev firewall",
    ],
    // An answer.
    [
        "chain inet firewall filter: `tcp sport 8080 drop`",
        "node chain inet forward: tcp sport 8080 drop",
        NO_INET_TABLE,
    ],
    [
        "the policy of chain inet firewall filter drops it",
        "node chain inet forward: policy drop",
        NO_INET_TABLE,
    ],
    [
        "chain inet firewall shop: `ip daddr @pods drop`",
        "node echo 'table inet firewall { set pods { type ipv4_addr; elements = { 10.40.1.20 }; }; chain shop { ip daddr @pods drop; }; }' | nft -f -
node nft 'add chain inet firewall filter { type filter hook forward priority 0; }; add rule inet firewall filter jump shop'",
        NO_INET_TABLE,
    ],
    // nf_conntrack has not seen the request, so the answer is of no connection.
    [
        "chain inet firewall filter: `ct state invalid drop`",
        "node chain inet forward: ct state invalid drop
node nft 'add chain inet firewall untracked { type filter hook prerouting priority raw; }; add rule inet firewall untracked ip saddr 10.40.1.10 notrack'",
        NO_INET_TABLE,
    ],
    [
        "netfilter in the endpoint's network namespace",
        "server chain inet input: tcp dport 8080 drop",
        "server nft delete table inet firewall",
    ],
    [
        "iptables-legacy, table filter: `-A FORWARD -d 10.40.1.20/32 -p tcp -m tcp --dport 8080 -j DROP` refuses it",
        "node iptables-legacy -A FORWARD -p tcp -d 10.40.1.20 --dport 8080 -j DROP",
        "node iptables-legacy -D FORWARD -p tcp -d 10.40.1.20 --dport 8080 -j DROP",
    ],
];

/// Routes, neighbours, links and parameters that lose packets of the packet path.
pub(super) const ON_THE_ROUTE: &[Fault] = &[
    [
        NO_ROUTE,
        "node ip route del 10.40.1.20/32",
        "node ip route add 10.40.1.20/32 dev $out",
    ],
    [
        NO_ROUTE,
        "node ip rule add from 10.40.1.10 blackhole",
        "node ip rule del from 10.40.1.10 blackhole",
    ],
    [
        "the next hop does not answer for its address",
        "server ip link set eth0 arp off\nnode ip neighbour flush dev $out",
        "server ip link set eth0 arp on\nnode ip neighbour flush dev $out",
    ],
    [
        "interface $out",
        "server ip link set eth0 down",
        "server ip link set eth0 up; ip route replace 169.254.1.1/32 dev eth0; ip route replace default via 169.254.1.1 dev eth0
node ip neighbour flush dev $out",
    ],
    [
        "its hop limit has expired",
        "client echo 1 > /proc/sys/net/ipv4/ip_default_ttl",
        "client echo 64 > /proc/sys/net/ipv4/ip_default_ttl",
    ],
    [
        "the kernel",
        "node echo 0 > /proc/sys/net/ipv4/ip_forward",
        "node echo 1 > /proc/sys/net/ipv4/ip_forward",
    ],
];

/// A fault of packets that are translated at the client's socket.
pub(super) const BY_SOCKET: &[Fault] = &[[
    "the client's own network stack: it does not send it",
    "client ip route del default",
    "client ip route add default via 169.254.1.1 dev eth0",
]];
