// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Entries of the table of settings: services, masquerading, sockets and forwarding.

use proxy_common::masquerade::PortRanges;

use crate::{
    Config, Mode, NodePortAddresses,
    setting::{Group, Kind, Read, Setting, Value},
    values,
};

pub(super) const SERVICES: Group = Group {
    title: "Services and masquerading",
    about: "To masquerade is to replace a packet's source address by one of the node, so that the answer comes back \
        to the node.",
    settings: &[
        Setting::new(
            "portolan.serviceProxyName",
            Kind::Special {
                values: "a label's value; empty for none",
                placeholder: "NAME",
                read: Read::Text(|draft, name| draft.set_service_proxy_name(name)),
                write: |config| config.service_proxy_name.clone().map(Value::Text),
            },
        )
        .flag("service-proxy-name")
        .unset("none: Services with the label belong to other proxies")
        .what("Serve only the Services whose label `service.kubernetes.io/service-proxy-name` has this value, beside \
                kube-proxy, which leaves those alone. What is not theirs passes as it came: nothing is reset, \
                `portolan.unallocatedClusterIPs` is `pass`, connections of kube-proxy are not taken over. The \
                servers for health and metrics run only where flags give their addresses, because kube-proxy has the usual ones; \
                these flags and `--kubeconfig` hold beside a file, too.")
        .when("Set it to try portolan with one Service beside kube-proxy, before it gets a node: [docs/migrate.md](migrate.md)."),
        Setting::new(
            "nodePortAddresses",
            Kind::Special {
                values: "list of address ranges, or `primary` alone",
                placeholder: "CIDRS",
                read: Read::List(|draft, list| {
                    values::node_port_addresses(&mut draft.config, list)
                }),
                write: |config| {
                    Some(match &config.node_port_addresses {
                        NodePortAddresses::Every => Value::List(Vec::new()),
                        NodePortAddresses::Primary => Value::list(&["primary"]),
                        NodePortAddresses::Within(ranges) => Value::list(ranges),
                    })
                },
            },
        )
        .flag("nodeport-addresses")
        .unset("every address of the node; with `mode: nftables`, `primary`")
        .what("The node's addresses on which node ports are served: those in the ranges, or with `primary` the \
                InternalIP of each family. An IP family without a range has all its addresses served. Health check node ports are \
                answered at the same addresses.")
        .when("Restrict it if node ports should not be reachable on some of the node's networks."),
        Setting::new(
            "iptables.localhostNodePorts",
            Kind::Bool(|config| &mut config.localhost_node_ports),
        )
        .flag("iptables-localhost-nodeports")
        .what("Serve node ports on IPv4 loopback addresses too, if `nodePortAddresses` lets them. It counts unless `mode` \
                is `nftables`.")
        .when("Switch it off if programs on the node must not reach services by `127.0.0.1`."),
        Setting::new(
            "portolan.unallocatedClusterIPs",
            Kind::Choice(|config| &mut config.unallocated_cluster_ips),
        )
        .unset("`pass`; with `mode: nftables`, `drop`")
        .what("What happens to packets to an address of the cluster's service ranges (ServiceCIDR objects) that no \
                service has: `pass` leaves them to the node's routes, `drop` drops them.")
        .when("Use `drop` if such packets would leave the cluster or loop between routers. The agent must be \
                allowed to list and watch ServiceCIDR objects for it."),
        Setting::new("portolan.answerPing", Kind::Bool(|config| &mut config.answer_ping))
            .what("Answer ICMP echo requests (ping) to cluster IPs, external IPs and load balancer IPs of services, with or \
                without endpoints, when they come from a pod or from outside. As many are answered as packets are \
                rejected: 1000 a second on each CPU. Fragmented requests are not answered, and requests of the node's own \
                processes do not pass here. An answer says that the service exists, not that an endpoint works.")
            .when("Switch it on if monitoring or people ping service addresses, as kube-proxy's mode `ipvs` lets them."),
        Setting::new("portolan.serveLinkLocal", Kind::Bool(|config| &mut config.serve_link_local))
            .what("Serve link-local addresses (169.254.0.0/16, fe80::/10) that a service has as cluster IP, external IP or load \
                balancer IP. Otherwise they are left out, with a warning: who may write services could get what is meant for \
                the cloud's metadata server at 169.254.169.254. Unspecified, loopback, multicast and broadcast addresses are \
                left out in any case.")
            .when("Switch it on if the cluster's service range is link-local."),
        Setting::new("portolan.gatewayAPI", Kind::Bool(|config| &mut config.gateway_api))
            .what("Serve Gateways of the Gateway API whose class names the controller `portolan.dev/l4`, with their TCPRoutes and \
                UDPRoutes. While the API server does not have these kinds, the agent asks for them every five minutes. \
                One agent of the cluster writes the status of these objects. It needs more rights: \
                [docs/gateway.md](gateway.md).")
            .when("Switch it on, on every node alike, to serve Gateways."),
        Setting::new("portolan.gatewayServices", Kind::Bool(|config| &mut config.gateway_services))
            .what("Make a Service of type LoadBalancer, with EndpointSlices, for each Gateway that names no addresses, and serve \
                the Gateway at that Service's addresses. It needs `portolan.gatewayAPI`, and the right to write Services and \
                EndpointSlices in every namespace: [docs/gateway.md](gateway.md#addresses). Without it such a Gateway gets \
                no address, and its status says so. A Service that was made before is still served, but no longer changed; \
                Kubernetes deletes it together with its Gateway.")
            .when("Switch it on, on every node alike, if something in the cluster gives addresses to Services of type \
                LoadBalancer, and Gateways are to have such addresses."),
        Setting::new("portolan.selection", Kind::Choice(|config| &mut config.selection))
            .what("How a new connection gets its endpoint: `random`, any of them; or `maglev`, by a hash of the client's address \
                and port and the service's, so that every node chooses the same, and most connections keep their endpoint \
                where one comes or goes. A service may say otherwise by the annotation `service.portolan.dev/selection`. \
                Connections that are translated at the socket are spread at random in any case. What it costs, and \
                what a second node can do for connections of a first: \
                [docs/tuning.md](tuning.md#which-endpoint-a-connection-gets).")
            .when("Use `maglev`, for all services or some, if a router in front spreads clients over several nodes, and may send \
                a connection to another node than before."),
        Setting::new(
            "portolan.connectionsOfGoneEndpoints",
            Kind::Choice(|config| &mut config.gone_endpoints),
        )
        .what("What becomes of TCP connections to an endpoint whose pod is gone: `reset`, the client gets a reset at its next \
                packet, or its socket is closed, instead of waiting for up to 15 minutes; or `keep`, they stay until the client \
                gives up, as with kube-proxy. A pod counts as gone only if it was on this node, its interface has gone for \
                three seconds, no EndpointSlice of any service lists its address, and no other pod can have the address by \
                now. Connections to pods on other nodes, and to endpoints that are merely not ready or terminating, go on in any \
                case. Details: [docs/tuning.md](tuning.md#when-a-pod-is-gone).")
        .when("Set `keep` if pods move between interfaces of a node with their address and open connections."),
        Setting::new(
            "portolan.ownAddresses",
            Kind::Special {
                values: "list of IP addresses",
                placeholder: "IPS",
                read: Read::List(|draft, texts| {
                    values::own_addresses(texts).map(|all| draft.config.own_addresses = all)
                }),
                write: |config| Some(Value::list(&config.own_addresses)),
            },
        )
        .what("Addresses of this node beside those of its interfaces. A cluster IP that is an address of the node is not served \
                on it, at no port, neither at sockets nor by packets: a process of the node answers there, like NodeLocal DNSCache \
                at the DNS service's address. The log names it. When the address goes, it is served again at once. The addresses \
                of `kube-ipvs0` and `kube-dummy-if`, which proxies with IPVS fill with all cluster IPs, do not count.")
        .when("Set it if such a process gets its packets by a local route or by rules, and no interface has the address."),
        Setting::new(
            "nftables.masqueradeAll",
            Kind::Special {
                values: "`true` or `false`",
                placeholder: "BOOL",
                read: Read::Bool(|draft, on| draft.nftables_masquerade_all = on),
                write: |config| {
                    let is_it = config.mode == Mode::Nftables;
                    Some(Value::Bool(is_it && config.masquerade_all))
                },
            },
        )
        .flag("masquerade-all")
        .what("Masquerade every connection to a cluster IP on the packet path, also those of pods. With a `mode`, only \
                the section of that mode counts.")
        .when("Set it if answers from pods would not come back through this node, for example because the \
                network between pods is not symmetric. Servers then see the node's address instead of the client's."),
        Setting::new(
            "iptables.masqueradeAll",
            Kind::Special {
                values: "`true` or `false`",
                placeholder: "BOOL",
                read: Read::Bool(|draft, on| draft.iptables_masquerade_all = on),
                write: |config| {
                    let is_it = config.mode != Mode::Nftables;
                    Some(Value::Bool(is_it && config.masquerade_all))
                },
            },
        )
        .flag("masquerade-all")
        .what("The same as `nftables.masqueradeAll`, for the other modes. Without a `mode` it is enough to set one of them.")
        .when("Keep what kube-proxy's file says."),
        Setting::new(
            "iptables.masqueradeBit",
            Kind::Special {
                values: "bit number, 0 to 31",
                placeholder: "BIT",
                read: Read::Number(|draft, bit| draft.iptables_masquerade_bit = Some(bit)),
                write: masquerade_bit,
            },
        )
        .flag("iptables-masquerade-bit")
        .what("The bit of the packet mark that asks for masquerading, if `mode` is not `nftables`. The mark is on \
                a packet from one interface of the node to the next.")
        .when("Change it if another program on the node uses this bit of the mark. portolan also uses bit 15 (bit 14 if this setting is 15) for packets to drop, bit 13 for the agent's own sockets, and, instead of this one, bit 12 (bit 11 if this setting is 12) while kube-proxy's rules are on the node."),
        Setting::new(
            "nftables.masqueradeBit",
            Kind::Special {
                values: "bit number, 0 to 31",
                placeholder: "BIT",
                read: Read::Number(|draft, bit| draft.nftables_masquerade_bit = Some(bit)),
                write: masquerade_bit,
            },
        )
        .what("The same for `mode: nftables`, and without a mode if `iptables.masqueradeBit` is not set.")
        .when("See `iptables.masqueradeBit`."),
        Setting::new("portolan.masquerade", Kind::Choice(|config| &mut config.masquerade))
            .what("Who masquerades: with `full` portolan does; with `mark` it only sets the mark, and the node's own \
                netfilter rules must masquerade packets that carry it.")
            .when("Use `mark` if rules on the node already masquerade marked packets, for example with addresses of \
                your choice."),
        Setting::new(
            "portolan.masqueradePorts",
            Kind::Special {
                values: "list of one or two port ranges",
                placeholder: "RANGES",
                read: Read::List(|draft, texts| {
                    values::masquerade_ports(texts).map(|all| draft.config.masquerade_ports = all)
                }),
                write: |config| {
                    let PortRanges([a, b, c, d]) = config.masquerade_ports;
                    let ranges = [(a, b), (c, d)];
                    let used = ranges.iter().filter(|(first, _)| *first != 0);
                    Some(Value::List(
                        used.map(|(first, last)| format!("{first}-{last}"))
                            .collect(),
                    ))
                },
            },
        )
        .what("The source ports that masqueraded connections may have. They must not overlap the node ports. Those in \
                the node's `net.ipv4.ip_local_port_range` are left out; the agent follows that parameter. If fewer than 2048 are left, all \
                are used, with a warning, and kept apart from the node's own connections one by one.")
        .when("Change it if the range of node ports or `ip_local_port_range` is not the usual one \
                (30000-32767 and 32768-60999)."),
    ],
};

fn masquerade_bit(config: &Config) -> Option<Value> {
    Some(Value::Number(
        config.marks.masquerade.trailing_zeros().into(),
    ))
}

pub(super) const SOCKETS: Group = Group {
    title: "Sockets",
    about: "Where a process runs on the node itself or in a pod that shares the node's kernel, a connection can be \
        translated once, when the socket connects, instead of in every packet.",
    settings: &[
        Setting::new(
            "portolan.socketBalancing",
            Kind::Choice(|config| &mut config.socket_balancing),
        )
        .flag("socket-balancing")
        .what("Whose connections are translated at the socket: those of pods and of the node's own processes (`all`), or only \
                those of the node's own processes (`host`). All others are translated packet by packet. One \
                difference to kube-proxy with `all`: a UDP client closes its socket and binds the same source port in \
                a new socket, after its first endpoint began to terminate. Here the new socket gets a ready endpoint \
                at once; kube-proxy keeps the old endpoint, because addresses and ports are the same.")
        .when("Use `host` if a service mesh or another program in pods must see the service's address in the \
                packets that pods send, or if network policies of the CNI match that address."),
        Setting::new(
            "portolan.socketExceptions",
            Kind::Patterns(|config| &mut config.socket_exceptions),
        )
        .what("Cgroups of pods whose sockets are not translated; their packets are. The node's own processes are \
                always translated at the socket. A pattern matches the path below the root of the cgroup2 hierarchy, like `kubepods*/mesh*`, and covers all cgroups below.")
        .when("Use it instead of `socketBalancing: host` if only some pods need the packet path."),
        Setting::new(
            "portolan.reserveNodePorts",
            Kind::Bool(|config| &mut config.reserve_node_ports),
        )
        .what("No process of the node can bind a port that is a served node port: bind fails with EADDRINUSE.")
        .when("Switch it on to notice such a clash at once. Without it the process starts, but clients of that \
                port reach the service."),
    ],
};

pub(super) const FORWARDING: Group = Group {
    title: "Forwarding",
    about: "How packets that portolan has translated leave the node.",
    settings: &[
        Setting::new("portolan.forwarding", Kind::Choice(|config| &mut config.forwarding))
            .what("With `auto`, the node's network stack decides about the beginning of every connection, both ways: its routes, netfilter \
            rules and policies. Once a packet of a direction has come out of the stack as it went in, those that follow leave past the stack by the same \
            interface. Every 9 to 13 seconds, of datagrams every 4, a packet of each direction takes the stack again; if it does not come out unchanged, none of \
            that direction leaves past it any more. So a rule that is added later holds within 20 seconds. The stack also gets the packets that begin and end a TCP connection, \
            fragments, and what is too large. It is the same for TCP and UDP between two pods of this node that were translated at their socket. Where no netfilter hook sees \
            forwarded packets at all, packets leave past the stack from a connection's first on. If connection tracking sees them and \
            `net.netfilter.nf_conntrack_tcp_be_liberal` is 0, or `nf_conntrack_tcp_timeout_unacknowledged` less than 7440 seconds and than `nf_conntrack_tcp_timeout_established`, TCP takes the \
            stack; `portolan init` sets both as needed. Packets that come in by some interface take the stack \
            while something there needs it: another tc program behind portolan's or at its bridge, IPsec policies, routing rules \
            by mark, TOS, user or tunnel, or a tun or tap device. The log says which. With `stack`, every packet takes the stack. \
            `redirect` is the earlier name of `auto`.")
            .when("Set it to `stack` if rules on the node count, log, limit, inspect or change every packet of forwarded connections, and not their beginnings (also SYNPROXY and \
            conntrack's helpers): past the stack they see one packet in ten seconds. `portolan status` shows what is left to the stack, and why."),
        Setting::new("portolan.xdp", Kind::Choice(|config| &mut config.xdp))
            .what("With `native` or `generic`, an XDP program at the node's uplinks takes packets of known masqueraded flows \
            between a client and a backend that are both beyond uplinks: it translates both ends at once and sends them on, \
            before the kernel has made packet buffers of them. All others, the first packets of each flow included, go on to the other programs. \
            It takes a direction only while the stack has let a packet of it pass within the last 13 seconds, as `portolan.forwarding: auto` does, which it needs. \
            `native` runs in the device's driver, `generic` behind it, with any device and slower. The node's netfilter rules, qdiscs, \
            `rp_filter` and packet captures do not see what XDP takes. It is not used at bonds, VLANs and devices that carry them, ports of \
            bridges, tunnels, with large receive offload, IPsec policies, routing rules, or other tc programs at the interface: a warning \
            names each and says why.")
            .when("Use it on nodes that pass much traffic from outside on to other nodes, as for node ports and load balancers with \
            `externalTrafficPolicy: Cluster`. With some \
            devices the link is down for a moment when a native program comes or goes."),
        Setting::new("portolan.xdpInterfaces", Kind::Patterns(|config| &mut config.xdp_interfaces))
            .unset("`[]`: uplinks are detected")
            .what("The names of the interfaces at which XDP may take packets, instead of the detected uplinks. A leading `!` \
            excludes names.")
            .when("Set it to leave an uplink out, or if an uplink is a veth, as where the node itself is a container. Packets of a veth have \
            no checksum unless its other end has been told to compute them (`ethtool -K ... tx off`), and XDP cannot know."),
        Setting::new("portolan.acceptForward", Kind::Bool(|config| &mut config.accept_forward))
            .what("Add two rules to each chain of nftables that sees forwarded packets and whose policy is `drop`, iptables' FORWARD \
            included if it is of the kind nf_tables: accept packets with the mark of `masqueradeBit`, and packets of connections \
            already seen. They are those of kube-proxy's chain KUBE-FORWARD. They go when the policy or the setting does, and with \
            `portolan cleanup`. Without the setting a warning names such a chain. For iptables of the kind legacy it says what to run.")
            .when("Switch it on if the node's firewall drops forwarded packets, as docker and ufw set it up, and clients of node ports \
            get no answer. Packets of pods to cluster IPs do not carry the mark: as with kube-proxy, the CNI has to accept them."),
    ],
};
