// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reads links and addresses by rtnetlink and waits for changes. Decides nothing.

use std::{collections::BTreeMap, io, time::Duration};

use futures_util::{StreamExt, TryStreamExt, stream::BoxStream};
use ipnet::IpNet;
use netlink_packet_core::NetlinkPayload;
use netlink_packet_route::{
    AddressFamily, RouteNetlinkMessage,
    address::{AddressAttribute, AddressFlags, AddressHeaderFlags, AddressMessage, AddressScope},
    link::{InfoKind, LinkAttribute, LinkInfo, LinkLayerType, LinkMessage},
};
use rtnetlink::{Handle, MulticastGroup, new_multicast_connection};
use tokio::time::{Instant, sleep, timeout_at};

use super::{Address, Interface, Link, Patterns, describe};

/// How long to wait for more after a change: a new interface causes several messages.
const SETTLE: Duration = Duration::from_millis(1);
/// The longest time that a change waits for others.
const AT_MOST: Duration = Duration::from_millis(5);
/// How often everything is listed anew, in case that a message was not understood.
const LIST_EVERY: Duration = Duration::from_secs(30);
/// Pauses before another attempt, the first and the last.
const PAUSES: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(5));

/// Follows the interfaces of the network namespace in which it was opened. Needs a tokio runtime.
pub struct Interfaces {
    connection: Connection,
    patterns: Patterns,
    seen: Seen,
    list_at: Instant,
    current: Vec<Interface>,
}

/// A subscription, and requests over the same socket.
struct Connection {
    handle: Handle,
    messages: BoxStream<'static, NetlinkPayload<RouteNetlinkMessage>>,
}

impl Connection {
    fn open() -> Result<Self, InterfacesError> {
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
        let messages = messages.map(|(message, _)| message.payload);
        Ok(Self {
            handle,
            messages: messages.boxed(),
        })
    }
}

async fn list(handle: Handle) -> Result<Seen, InterfacesError> {
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
    let links = links.iter().map(|link| (link.header.index, link_of(link)));
    Ok(Seen {
        links: links.collect(),
        addresses: addresses.iter().filter_map(address_of).collect(),
    })
}

impl Interfaces {
    /// Reads all interfaces.
    pub async fn open(patterns: Patterns) -> Result<Self, InterfacesError> {
        // Subscribed before the first list: no change in between is lost.
        let connection = Connection::open()?;
        let seen = list(connection.handle.clone()).await?;
        let current = seen.describe(&patterns);
        Ok(Self {
            connection,
            patterns,
            seen,
            list_at: Instant::now() + LIST_EVERY,
            current,
        })
    }
    /// All interfaces as last read.
    pub fn current(&self) -> &[Interface] {
        &self.current
    }
    /// Waits until something differs from [`Self::current`]; returns all interfaces. The kernel's messages say what has changed, so
    /// a new interface is there at once, however many there are; a list comes only after a message that does not.
    pub async fn changed(&mut self) -> &[Interface] {
        loop {
            let known = self.take_messages().await;
            if !known {
                self.list().await;
            }
            let fresh = self.seen.describe(&self.patterns);
            if fresh != self.current {
                self.current = fresh;
                return &self.current;
            }
        }
    }

    /// Takes the messages of some milliseconds; whether they say everything.
    async fn take_messages(&mut self) -> bool {
        let messages = &mut self.connection.messages;
        let Ok(first) = timeout_at(self.list_at, messages.next()).await else {
            return false;
        };
        let mut known = first.is_some_and(|first| self.seen.take(&first));
        let end = Instant::now() + AT_MOST;
        while known {
            let settled = end.min(Instant::now() + SETTLE);
            match timeout_at(settled, messages.next()).await {
                Ok(next) => known = next.is_some_and(|next| self.seen.take(&next)),
                Err(_) => break,
            }
        }
        known
    }

    /// Lists everything over a new subscription, however long it takes: programs stay where they are meanwhile.
    async fn list(&mut self) {
        let (mut pause, last) = PAUSES;
        loop {
            let listed = match Connection::open() {
                Ok(connection) => {
                    let listed = list(connection.handle.clone()).await;
                    listed.map(|seen| (connection, seen))
                }
                Err(error) => Err(error),
            };
            match listed {
                Ok((connection, seen)) => {
                    self.connection = connection;
                    self.seen = seen;
                    self.list_at = Instant::now() + LIST_EVERY;
                    return;
                }
                Err(error) => {
                    tracing::warn!(
                        "interfaces: {}; new ones are not served until it works, it is tried again",
                        crate::causes::chain(&error)
                    );
                    sleep(pause).await;
                    pause = (2 * pause).min(last);
                }
            }
        }
    }
}

/// Links and addresses as the kernel has described them.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Seen {
    links: BTreeMap<u32, Link>,
    addresses: Vec<Address>,
}

impl Seen {
    fn describe(&self, patterns: &Patterns) -> Vec<Interface> {
        let links: Vec<_> = self.links.values().cloned().collect();
        describe(&links, &self.addresses, patterns)
    }

    /// Takes a message in; whether it says all about the change.
    fn take(&mut self, message: &NetlinkPayload<RouteNetlinkMessage>) -> bool {
        match message {
            NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewLink(link)) => {
                if is_whole(link) {
                    self.links.insert(link.header.index, link_of(link));
                }
                true
            }
            NetlinkPayload::InnerMessage(RouteNetlinkMessage::DelLink(link)) => {
                // Its addresses go by messages of their own.
                if is_whole(link) {
                    self.links.remove(&link.header.index);
                }
                true
            }
            NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewAddress(address)) => {
                let Some(address) = address_of(address) else {
                    return false;
                };
                let is_same =
                    |known: &&mut Address| (known.link, known.net) == (address.link, address.net);
                match self.addresses.iter_mut().find(is_same) {
                    Some(known) => *known = address,
                    None => self.addresses.push(address),
                }
                // The first of several decides, and a list may order them otherwise.
                self.has_one(address.link, address.net.addr().is_ipv4())
            }
            NetlinkPayload::InnerMessage(RouteNetlinkMessage::DelAddress(address)) => {
                let Some(address) = address_of(address) else {
                    return false;
                };
                self.addresses
                    .retain(|known| (known.link, known.net) != (address.link, address.net));
                true
            }
            _ => false,
        }
    }

    /// Whether an interface has one address of a family at most.
    fn has_one(&self, link: u32, v4: bool) -> bool {
        let of_link = self.addresses.iter();
        let of_link =
            of_link.filter(|known| known.link == link && known.net.addr().is_ipv4() == v4);
        of_link.count() <= 1
    }
}

/// Whether a message is about the link itself. A bridge tells of its ports as well, in shorter messages, of which one says that a
/// port is deleted when the link lives on; the link's own message follows.
fn is_whole(link: &LinkMessage) -> bool {
    link.header.interface_family == AddressFamily::Unspec
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
