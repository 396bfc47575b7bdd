// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reads links and addresses by rtnetlink and waits for changes. Decides nothing.

use std::{io, time::Duration};

use futures_util::{StreamExt, TryStreamExt, stream::BoxStream};
use ipnet::IpNet;
use netlink_packet_route::{
    AddressFamily,
    address::{AddressAttribute, AddressFlags, AddressHeaderFlags, AddressMessage, AddressScope},
    link::{InfoKind, LinkAttribute, LinkInfo, LinkLayerType, LinkMessage},
};
use rtnetlink::{Handle, MulticastGroup, new_multicast_connection};

use super::{Address, Interface, Link, Patterns, describe};

/// How long to wait for more after a change: a new interface causes several messages.
const SETTLE: Duration = Duration::from_millis(20);

/// Follows the interfaces of the network namespace in which it was opened. Needs a tokio runtime.
pub struct Interfaces {
    handle: Handle,
    changes: BoxStream<'static, ()>,
    patterns: Patterns,
    current: Vec<Interface>,
}

impl Interfaces {
    /// Reads all interfaces.
    pub async fn open(patterns: Patterns) -> Result<Self, InterfacesError> {
        let groups = [
            MulticastGroup::Link,
            MulticastGroup::Ipv4Ifaddr,
            MulticastGroup::Ipv6Ifaddr,
        ];
        let (connection, handle, messages) =
            new_multicast_connection(&groups).map_err(|source| InterfacesError {
                attempt: "open a socket",
                source,
            })?;
        tokio::spawn(connection);
        // Subscribed before the first read: no change in between is lost.
        let changes = messages.map(|_| ()).boxed();
        let current = read(&handle, &patterns).await?;
        Ok(Self {
            handle,
            changes,
            patterns,
            current,
        })
    }
    /// All interfaces as last read.
    pub fn current(&self) -> &[Interface] {
        &self.current
    }
    /// Waits until something differs from [`Self::current`]; returns all interfaces.
    pub async fn changed(&mut self) -> Result<&[Interface], InterfacesError> {
        loop {
            if self.changes.next().await.is_none() {
                let source = io::ErrorKind::ConnectionReset.into();
                return Err(InterfacesError {
                    attempt: "listen for changes",
                    source,
                });
            }
            while let Ok(Some(())) = tokio::time::timeout(SETTLE, self.changes.next()).await {}
            let fresh = read(&self.handle, &self.patterns).await?;
            if fresh != self.current {
                self.current = fresh;
                return Ok(&self.current);
            }
        }
    }
}

async fn read(handle: &Handle, patterns: &Patterns) -> Result<Vec<Interface>, InterfacesError> {
    let failed = |attempt| {
        move |error: rtnetlink::Error| InterfacesError {
            attempt,
            source: io::Error::other(error),
        }
    };
    let links: Vec<LinkMessage> = handle
        .link()
        .get()
        .execute()
        .try_collect()
        .await
        .map_err(failed("list interfaces"))?;
    let addresses: Vec<AddressMessage> = handle
        .address()
        .get()
        .execute()
        .try_collect()
        .await
        .map_err(failed("list addresses"))?;
    let links: Vec<_> = links.iter().map(link_of).collect();
    let addresses: Vec<_> = addresses.iter().filter_map(address_of).collect();
    Ok(describe(&links, &addresses, patterns))
}

fn link_of(message: &LinkMessage) -> Link {
    let kind = message.header.link_layer_type;
    let mut link = Link {
        index: message.header.index,
        loopback: kind == LinkLayerType::Loopback,
        ethernet: matches!(kind, LinkLayerType::Ether | LinkLayerType::Loopback),
        ..Link::default()
    };
    for attribute in &message.attributes {
        match attribute {
            LinkAttribute::IfName(name) => link.name.clone_from(name),
            LinkAttribute::Address(mac) => link.mac.clone_from(mac),
            LinkAttribute::Controller(master) => link.master = Some(*master),
            LinkAttribute::LinkInfo(infos) => {
                let kind = infos.iter().find_map(|info| match info {
                    LinkInfo::Kind(kind) => Some(InfoKind::to_string(kind)),
                    _ => None,
                });
                link.kind = kind.unwrap_or_default();
            }
            _ => {}
        }
    }
    link
}

fn address_of(message: &AddressMessage) -> Option<Address> {
    let header = &message.header;
    let is_v4 = header.family == AddressFamily::Inet;
    let mut address = None;
    let mut usable = true;
    for attribute in &message.attributes {
        match attribute {
            // On point-to-point links, LOCAL is ours and ADDRESS the other end's.
            AddressAttribute::Local(local) => address = Some(*local),
            AddressAttribute::Address(other) => address = address.or(Some(*other)),
            AddressAttribute::Flags(flags) => {
                let mut unusable = AddressFlags::Deprecated | AddressFlags::Dadfailed;
                if is_v4 {
                    unusable |= AddressFlags::Secondary;
                }
                usable &= !flags.intersects(unusable);
            }
            _ => {}
        }
    }
    // For IPv6 the same bit says "temporary".
    usable &= !is_v4 || !header.flags.contains(AddressHeaderFlags::Secondary);
    Some(Address {
        link: header.index,
        net: IpNet::new(address?, header.prefix_len).ok()?,
        preferred: usable && header.scope == AddressScope::Universe,
    })
}

/// rtnetlink failed.
#[derive(Debug, thiserror::Error)]
#[error("{attempt} by rtnetlink")]
pub struct InterfacesError {
    attempt: &'static str,
    source: io::Error,
}
