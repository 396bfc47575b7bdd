// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which pods of this node can be handed packets past the network stack, and with which Ethernet
//! addresses: from interfaces and the kernel's neighbours. Pure; called by `agent`.

use std::{collections::BTreeMap, net::IpAddr};

use super::{Interface, InterfaceKind};

/// An Ethernet address.
pub type Mac = [u8; 6];

/// The neighbours (hosts on the same link) that the kernel of this node knows.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Neighbours {
    /// The Ethernet address of each known neighbour. Key: interface index and IP address.
    /// Neighbours that routes do not reach directly are left out.
    pub known: BTreeMap<(u32, IpAddr), Mac>,
    /// The index of the bridge port that leads to an Ethernet address. Key: the bridge's index and
    /// the Ethernet address.
    pub ports: BTreeMap<(u32, Mac), u32>,
}

/// How to hand packets to a pod past the network stack.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PodLink {
    pub address: IpAddr,
    /// Index of the host's end of the pod's veth or netkit pair.
    pub interface: u32,
    /// The longest IP packet that can be handed over, in bytes.
    pub mtu: u32,
    pub destination: Mac,
    pub source: Mac,
}

/// Returns how to hand over packets to each pod for which this is possible, sorted by address.
pub fn pod_links(interfaces: &[Interface], neighbours: &Neighbours) -> Vec<PodLink> {
    let by_index: BTreeMap<_, _> = interfaces
        .iter()
        .map(|interface| (interface.index, interface))
        .collect();
    let known = neighbours.known.iter();
    let mut links: BTreeMap<IpAddr, PodLink> = BTreeMap::new();
    for ((index, address), mac) in known {
        let Some(routed) = by_index.get(index) else {
            continue;
        };
        let end = match routed.kind {
            InterfaceKind::PodSide => Some(*routed),
            InterfaceKind::Bridge => {
                let port = neighbours.ports.get(&(*index, *mac));
                let port = port.and_then(|port| by_index.get(port)).copied();
                port.filter(|port| port.bridge == Some(*index) && port.veth_port)
            }
            _ => None,
        };
        let (Some(end), Some(source)) = (end, routed.mac) else {
            continue;
        };
        if why_not(end, routed).is_some() {
            continue;
        }
        let link = PodLink {
            address: *address,
            interface: end.index,
            mtu: end.mtu.min(routed.mtu),
            destination: *mac,
            source,
        };
        links.insert(*address, link);
    }
    links.into_values().collect()
}

/// Returns why packets are not handed to the pod behind `end` past the stack; None if they are.
/// `routed` is the interface that has the pod as its neighbour: `end` itself, or its bridge.
pub fn why_not(end: &Interface, routed: &Interface) -> Option<&'static str> {
    if !end.link_layer {
        Some("its packets carry no Ethernet header")
    } else if !end.peer_elsewhere {
        Some("its other end is not in a pod")
    } else if end.queues {
        Some("it has a queueing discipline, which would not see them")
    } else if routed.filters_vlans {
        Some("its bridge filters VLANs")
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POD: Mac = [2, 0, 0, 0, 0, 9];
    const NODE: Mac = [2, 0, 0, 0, 0, 1];

    fn interface(index: u32, kind: InterfaceKind) -> Interface {
        Interface {
            peer_elsewhere: true,
            mac: Some(NODE),
            mtu: 1500,
            ..crate::testing::interface(index, &format!("if{index}"), kind)
        }
    }

    fn port(index: u32) -> Interface {
        Interface {
            bridge: Some(3),
            veth_port: true,
            mtu: 1400,
            mac: Some([2, 0, 0, 0, 0, 4]),
            ..interface(index, InterfaceKind::BridgePort)
        }
    }

    /// Returns interface and MTU of the link to the pod that is a neighbour at an interface.
    fn links(interfaces: &[Interface], at: u32, ports: &[((u32, Mac), u32)]) -> Vec<(u32, u32)> {
        let address = IpAddr::from([10, 40, 1, 2]);
        let neighbours = Neighbours {
            known: BTreeMap::from([((at, address), POD)]),
            ports: ports.iter().copied().collect(),
        };
        let links = pod_links(interfaces, &neighbours).into_iter();
        let ends = links.map(|link| {
            let macs = (link.address, link.destination, link.source);
            assert_eq!(macs, (address, POD, NODE));
            (link.interface, link.mtu)
        });
        ends.collect()
    }

    #[test]
    fn a_routed_pod_is_behind_its_own_interface() {
        let pod_side = interface(2, InterfaceKind::PodSide);
        assert_eq!(links(&[pod_side], 2, &[]), [(2, 1500)]);
    }

    #[test]
    fn a_bridged_pod_is_reached_by_its_learned_port_from_the_bridges_mac() {
        let all = [interface(3, InterfaceKind::Bridge), port(4), port(5)];
        assert_eq!(links(&all, 3, &[((3, POD), 4)]), [(4, 1400)]);
        assert_eq!(links(&all, 3, &[]), []);
    }

    #[test]
    fn a_pod_behind_an_unsuitable_interface_or_bridge_has_no_pod_link() {
        use InterfaceKind::{Bridge, PodSide, Tunnel, Uplink};
        let changes: [(_, fn(&mut Interface)); 6] = [
            (PodSide, |one| one.peer_elsewhere = false),
            (PodSide, |one| one.queues = true),
            (PodSide, |one| one.link_layer = false),
            (Uplink, |_| {}),
            (Tunnel, |_| {}),
            (Bridge, |one| one.filters_vlans = true),
        ];
        for (kind, change) in changes {
            let mut case = interface(3, kind);
            change(&mut case);
            assert_eq!(links(&[case, port(4)], 3, &[((3, POD), 4)]), [], "{kind:?}");
        }
    }
}
