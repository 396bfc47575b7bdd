// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The kinds of interfaces, as commands of iproute2. In the commands, a lane replaces these words:
//! UPLINK and TUNNEL by names of interfaces, OUTSIDE by the client's network namespace, OWN and
//! OTHER by the addresses of the two nodes.

use rtnetlink::packet_route::link::NetkitMode;

/// The interfaces between a client, a node, its pods and another node.
#[derive(Clone, Copy)]
pub(super) struct Kind {
    pub(super) name: &'static str,
    pub(super) uplink: Uplink,
    /// The tunnel that encapsulates packets between the nodes over IPv4; None: the nodes have
    /// routes to each other's pods.
    pub(super) tunnel: Option<&'static str>,
    /// Whether the lane carries IPv6 packets.
    pub(super) v6: bool,
    /// Whether the tunnel's ends need each other's keys.
    pub(super) keys: bool,
    /// The interfaces that join each pod to its node.
    pub(super) pods: Pods,
    /// The MTU of the pods' interfaces and of the tunnel, in bytes.
    pub(super) mtu: u32,
    pub(super) by_stack: ByStack,
}

/// The packets that pass the node's stack even with `forwarding: auto`.
#[derive(Clone, Copy)]
pub(super) enum ByStack {
    Nothing,
    /// Packets into the tunnel, because it has no link layer.
    IntoTunnel,
    /// Packets into pods, because their interfaces have no link-layer address.
    IntoPods,
}

impl ByStack {
    /// Whether packets of one direction of a flow pass the stack.
    pub(super) const fn is_of(self, from_outside: bool, to_near_pod: bool) -> bool {
        match self {
            Self::Nothing => false,
            Self::IntoTunnel => !(from_outside && to_near_pod),
            Self::IntoPods => !from_outside || to_near_pod,
        }
    }
}

/// The kind of interface pair of each pod.
#[derive(Clone, Copy)]
pub(super) enum Pods {
    Veth,
    Netkit(NetkitMode),
}

/// The interface towards the outside, by its name at each end. Both ends have the same name.
#[derive(Clone, Copy)]
pub(super) struct Uplink {
    pub(super) at_the_node: &'static str,
    pub(super) outside: &'static str,
}

const PLAIN: Uplink = Uplink {
    at_the_node: "link add UPLINK type veth peer name UPLINK netns OUTSIDE\n",
    outside: "",
};

const OVER_PLAIN: Kind = Kind {
    name: "",
    uplink: PLAIN,
    tunnel: None,
    v6: true,
    keys: false,
    pods: Pods::Veth,
    mtu: 1500,
    by_stack: ByStack::Nothing,
};

const fn tunnelled(name: &'static str, link: &'static str, mtu: u32) -> Kind {
    Kind {
        name,
        tunnel: Some(link),
        mtu,
        ..OVER_PLAIN
    }
}

const fn without_link_layer(name: &'static str, link: &'static str, mtu: u32) -> Kind {
    Kind {
        by_stack: ByStack::IntoTunnel,
        ..tunnelled(name, link, mtu)
    }
}

pub(super) const VXLAN: Kind = tunnelled(
    "vxlan",
    "link add TUNNEL type vxlan id 7 dstport 4789 local OWN remote OTHER\n",
    1450,
);

pub(super) const GENEVE: Kind = tunnelled(
    "geneve",
    "link add TUNNEL type geneve id 7 dstport 6081 remote OTHER\n",
    1450,
);

pub(super) const GRE: Kind = without_link_layer(
    "gre",
    "link add TUNNEL type gre local OWN remote OTHER ttl 64\n",
    1476,
);

pub(super) const IPIP: Kind = Kind {
    v6: false,
    ..without_link_layer(
        "ipip",
        "link add TUNNEL type ipip local OWN remote OTHER ttl 64\n",
        1480,
    )
};

pub(super) const WIREGUARD: Kind = Kind {
    keys: true,
    ..without_link_layer("wireguard", "link add TUNNEL type wireguard\n", 1420)
};

pub(super) const VLAN: Kind = Kind {
    name: "vlan uplink",
    uplink: Uplink {
        at_the_node: "link add UPLINK-below type veth peer name UPLINK-below netns OUTSIDE
link set UPLINK-below up
link add link UPLINK-below name UPLINK type vlan id 7
",
        outside: "link set UPLINK-below up
link add link UPLINK-below name UPLINK type vlan id 7
",
    },
    ..OVER_PLAIN
};

pub(super) const BOND: Kind = Kind {
    name: "bond uplink",
    uplink: Uplink {
        at_the_node: "link add UPLINK type bond mode balance-xor
link add UPLINK-1 type veth peer name UPLINK-1 netns OUTSIDE
link add UPLINK-2 type veth peer name UPLINK-2 netns OUTSIDE
link set UPLINK-1 master UPLINK
link set UPLINK-2 master UPLINK
",
        outside: "link add UPLINK type bond mode balance-xor
link set UPLINK-1 master UPLINK
link set UPLINK-2 master UPLINK
",
    },
    ..OVER_PLAIN
};

const fn netkit(name: &'static str, mode: NetkitMode) -> Kind {
    Kind {
        name,
        pods: Pods::Netkit(mode),
        ..OVER_PLAIN
    }
}

pub(super) const NETKIT_L2: Kind = netkit("netkit, mode L2", NetkitMode::L2);
pub(super) const NETKIT_L3: Kind = Kind {
    by_stack: ByStack::IntoPods,
    ..netkit("netkit, mode L3", NetkitMode::L3)
};
