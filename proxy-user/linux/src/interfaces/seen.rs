// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Links and addresses, kept current by the kernel's messages about changes. Used by `netlink`.

use std::collections::BTreeMap;

use ipnet::IpNet;
use netlink_packet_core::{NetlinkPayload, Nla as _};
use netlink_packet_route::{
    AddressFamily, RouteNetlinkMessage,
    address::{AddressAttribute, AddressFlags, AddressMessage, AddressScope},
    link::{
        InfoBridge, InfoBridgePort, InfoData, InfoKind, InfoPortData, LinkAttribute, LinkInfo,
        LinkLayerType, LinkMessage, LinkProtoInfoBridge,
    },
    tc::{TcAttribute, TcHandle},
};

use super::{Address, Interface, Link, Patterns, describe};

/// Interfaces and addresses as the kernel describes them.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Seen {
    links: BTreeMap<u32, Link>,
    addresses: Vec<Address>,
}

impl Seen {
    /// Reads complete lists of rtnetlink's messages about links and addresses.
    pub(super) fn new(links: &[LinkMessage], addresses: &[AddressMessage]) -> Self {
        let links = links.iter().map(|link| (link.header.index, link_of(link)));
        Self {
            links: links.collect(),
            addresses: addresses.iter().filter_map(address_of).collect(),
        }
    }

    /// True if an interface of `other` is missing here.
    pub(super) fn lacks(&self, other: &Self) -> bool {
        let mut known = other.links.keys();
        known.any(|index| !self.links.contains_key(index))
    }

    pub(super) fn describe(&self, patterns: &Patterns) -> Vec<Interface> {
        let links: Vec<_> = self.links.values().cloned().collect();
        describe(&links, &self.addresses, patterns)
    }

    /// Applies a message of the kernel; false if it does not describe the change fully, so that
    /// everything must be listed again.
    pub(super) fn take(&mut self, message: &NetlinkPayload<RouteNetlinkMessage>) -> bool {
        use RouteNetlinkMessage::{
            DelAddress, DelLink, DelQueueDiscipline, DelTrafficChain, DelTrafficClass,
            DelTrafficFilter, NewAddress, NewLink, NewQueueDiscipline, NewTrafficChain,
            NewTrafficClass, NewTrafficFilter,
        };
        let NetlinkPayload::InnerMessage(message) = message else {
            return false;
        };
        match message {
            NewLink(link) => {
                if is_whole(link) {
                    self.links.insert(link.header.index, link_of(link));
                } else if let Some(isolated) = port_is_isolated(link)
                    && let Some(known) = self.links.get_mut(&link.header.index)
                {
                    known.isolated = isolated;
                }
                true
            }
            DelLink(link) => {
                // The kernel sends separate messages about the addresses of a removed link.
                if is_whole(link) {
                    self.links.remove(&link.header.index);
                }
                true
            }
            NewAddress(address) => {
                let Some(address) = address_of(address) else {
                    return false;
                };
                let is_same = |known: &&mut Address| is_same(known, &address);
                match self.addresses.iter_mut().find(is_same) {
                    Some(known) => *known = address,
                    None => self.addresses.push(address),
                }
                // The first of several addresses decides, and a list may have another order.
                self.has_one(address.link, address.net.addr().is_ipv4())
            }
            DelAddress(address) => {
                let Some(address) = address_of(address) else {
                    return false;
                };
                self.addresses.retain(|known| !is_same(known, &address));
                true
            }
            NewQueueDiscipline(qdisc) => {
                if qdisc.header.parent == TcHandle::ROOT {
                    let link = u32::try_from(qdisc.header.index).ok();
                    let link = link.and_then(|index| self.links.get_mut(&index));
                    let name = qdisc
                        .attributes
                        .iter()
                        .find_map(|attribute| match attribute {
                            TcAttribute::Kind(name) => Some(name),
                            _ => None,
                        });
                    if let (Some(link), Some(name)) = (link, name) {
                        link.qdisc.clone_from(name);
                    }
                }
                true
            }
            // The interface gets its default discipline again, without a message.
            DelQueueDiscipline(qdisc) => qdisc.header.parent != TcHandle::ROOT,
            // Other objects of traffic control do not matter.
            NewTrafficFilter(_) | DelTrafficFilter(_) | NewTrafficChain(_) | DelTrafficChain(_)
            | NewTrafficClass(_) | DelTrafficClass(_) => true,
            _ => false,
        }
    }

    /// True if an interface has at most one address of a family (IPv4 if `v4`).
    fn has_one(&self, link: u32, v4: bool) -> bool {
        let of_link = self.addresses.iter();
        let of_link =
            of_link.filter(|known| known.link == link && known.net.addr().is_ipv4() == v4);
        of_link.count() <= 1
    }
}

/// True if a message is about the link itself. A bridge also sends shorter messages about its
/// ports. One of them says that a port is deleted although the link still exists; the link's own
/// message follows.
fn is_whole(link: &LinkMessage) -> bool {
    link.header.interface_family == AddressFamily::Unspec
}

fn link_of(message: &LinkMessage) -> Link {
    let kind = message.header.link_layer_type;
    let mut link = Link {
        index: message.header.index,
        loopback: kind == LinkLayerType::Loopback,
        ethernet: matches!(kind, LinkLayerType::Ether | LinkLayerType::Loopback),
        infiniband: kind == LinkLayerType::Infiniband,
        ..Link::default()
    };
    for attribute in &message.attributes {
        match attribute {
            LinkAttribute::IfName(name) => link.name.clone_from(name),
            LinkAttribute::Address(mac) => link.mac.clone_from(mac),
            LinkAttribute::Mtu(mtu) => link.mtu = *mtu,
            LinkAttribute::Qdisc(name) => link.qdisc.clone_from(name),
            LinkAttribute::LinkNetNsId(_) => link.peer_elsewhere = true,
            LinkAttribute::Controller(master) => link.master = Some(*master),
            LinkAttribute::Link(lower) => link.lower = Some(*lower),
            LinkAttribute::LinkInfo(infos) => {
                let kind = infos.iter().find_map(|info| match info {
                    LinkInfo::Kind(kind) => Some(InfoKind::to_string(kind)),
                    _ => None,
                });
                link.kind = kind.unwrap_or_default();
                link.filters_vlans = infos.iter().any(filters_vlans);
                link.isolated = infos.iter().any(is_isolated);
            }
            _ => {}
        }
    }
    link
}

fn filters_vlans(info: &LinkInfo) -> bool {
    let on = InfoBridge::VlanFiltering(true);
    matches!(info, LinkInfo::Data(InfoData::Bridge(all)) if all.contains(&on))
}

fn is_isolated(info: &LinkInfo) -> bool {
    let on = InfoBridgePort::Isolated(true);
    matches!(info, LinkInfo::PortData(InfoPortData::BridgePort(all)) if all.contains(&on))
}

/// Returns whether a bridge's port is isolated, from the bridge's message about it; None if the
/// message does not say it.
fn port_is_isolated(message: &LinkMessage) -> Option<bool> {
    // linux/if_link.h
    const IFLA_BRPORT_ISOLATED: u16 = 33;
    let properties = message.attributes.iter().filter_map(|one| match one {
        LinkAttribute::ProtoInfoBridge(properties) => Some(properties),
        _ => None,
    });
    properties.flatten().find_map(|property| match property {
        LinkProtoInfoBridge::Other(other)
            if other.kind() == IFLA_BRPORT_ISOLATED && other.value_len() == 1 =>
        {
            let mut value = [0];
            other.emit_value(&mut value);
            Some(value != [0])
        }
        _ => None,
    })
}

/// True if both are the same address, with the same subnet, of the same interface.
fn is_same(a: &Address, b: &Address) -> bool {
    (a.link, a.net, a.subnet) == (b.link, b.net, b.subnet)
}

fn address_of(message: &AddressMessage) -> Option<Address> {
    let header = &message.header;
    let is_v4 = header.family == AddressFamily::Inet;
    let (mut local, mut other) = (None, None);
    let mut flags = AddressFlags::from_bits_retain(header.flags.bits().into());
    for attribute in &message.attributes {
        match attribute {
            // On point-to-point links, LOCAL is ours and ADDRESS the other end's.
            AddressAttribute::Local(address) => local = Some(*address),
            AddressAttribute::Address(address) => other = Some(*address),
            AddressAttribute::Flags(all) => flags |= *all,
            _ => {}
        }
    }
    // In IPv6 this bit means "temporary".
    let mut unusable = AddressFlags::Secondary;
    if !is_v4 {
        unusable |= AddressFlags::Deprecated | AddressFlags::Dadfailed | AddressFlags::Tentative;
    }
    let address = local.or(other)?;
    let of_subnet = if is_v4 { other.or(local)? } else { address };
    let prefix = |address| IpNet::new(address, header.prefix_len).ok();
    Some(Address {
        link: header.index,
        net: prefix(address)?,
        subnet: prefix(of_subnet)?.trunc(),
        preferred: !flags.intersects(unusable) && header.scope == AddressScope::Universe,
        duplicate: !is_v4 && flags.contains(AddressFlags::Dadfailed),
    })
}

#[cfg(test)]
pub(super) mod tests {
    use netlink_packet_route::link::LinkHeader;

    use super::*;

    type Message = NetlinkPayload<RouteNetlinkMessage>;

    pub(in super::super) fn link(index: u32, family: AddressFamily, is_new: bool) -> Message {
        let mut message = LinkMessage::default();
        message.header = LinkHeader {
            index,
            interface_family: family,
            ..LinkHeader::default()
        };
        message.attributes = vec![LinkAttribute::IfName(format!("pod{index}"))];
        NetlinkPayload::InnerMessage(if is_new {
            RouteNetlinkMessage::NewLink(message)
        } else {
            RouteNetlinkMessage::DelLink(message)
        })
    }

    #[test]
    fn a_link_that_the_other_state_has_is_reported_as_lacking() {
        let (mut both, mut one) = (Seen::default(), Seen::default());
        for (seen, indices) in [(&mut both, &[1, 2][..]), (&mut one, &[1])] {
            for index in indices {
                assert!(seen.take(&link(*index, AddressFamily::Unspec, true)));
            }
        }
        assert!(one.lacks(&both) && !both.lacks(&one) && !both.lacks(&both));
    }

    #[test]
    fn a_port_that_leaves_its_bridge_is_still_an_interface() {
        let mut seen = Seen::default();
        assert!(seen.take(&link(7, AddressFamily::Unspec, true)));
        assert!(seen.take(&link(7, AddressFamily::Bridge, false)));
        assert!(seen.links.contains_key(&7));
        assert!(seen.take(&link(7, AddressFamily::Unspec, false)));
        assert!(seen.links.is_empty());
    }
}
