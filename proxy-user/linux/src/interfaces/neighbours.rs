// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Follows the kernel's neighbours and the forwarding tables of its bridges by rtnetlink, and asks
//! which neighbours are reached directly by a route. From that, `pods` decides which pods can be
//! handed packets.

use std::{
    collections::{BTreeMap, BTreeSet},
    io, mem,
    net::IpAddr,
    time::Duration,
};

use netlink_packet_core::{NetlinkPayload, Parseable};
use netlink_packet_route::{
    AddressFamily, RouteNetlinkMessage,
    neighbour::{NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState},
};
use netlink_sys::protocols::NETLINK_ROUTE;
use rtnetlink::MulticastGroup;
use tokio::{
    sync::mpsc,
    time::{Instant, sleep},
};

use super::{
    netlink::{aside, subscribe, take_messages, understood},
    pods::{Mac, Neighbours},
};
use crate::{
    answers::none_if,
    netlink::Connection,
    route::{GET_NEIGHBOUR, HEADER, Routed, route},
};

/// How long a change waits for further ones, so that they are sent together.
const SETTLE: Duration = Duration::from_millis(20);
/// How often the tables are listed again, in case a message was not understood.
const LIST_EVERY: Duration = Duration::from_secs(30);
/// Pause before another attempt, after rtnetlink failed.
const PAUSE: Duration = Duration::from_secs(5);

/// Sends the kernel's neighbours at the start and after each change. Ends when the receiver is
/// closed.
pub async fn follow_neighbours(changes: mpsc::Sender<Neighbours>) {
    let mut sent = None;
    let mut tables = Tables::default();
    loop {
        if let Err(error) = follow(&changes, &mut sent, &mut tables).await {
            tracing::warn!(
                "neighbours could not be read by rtnetlink: {error}; packets to pods take the routes meanwhile, it is tried again in {} s",
                PAUSE.as_secs()
            );
            // Without messages it is not known which neighbours have changed.
            if send(&changes, &mut sent, Neighbours::default())
                .await
                .is_err()
            {
                return;
            }
        }
        if changes.is_closed() {
            return;
        }
        sleep(PAUSE).await;
    }
}

/// Follows the tables over rtnetlink subscriptions, until one fails or the receiver is closed.
async fn follow(
    changes: &mpsc::Sender<Neighbours>,
    sent: &mut Option<Neighbours>,
    tables: &mut Tables,
) -> io::Result<()> {
    let groups = [
        MulticastGroup::Neigh,
        MulticastGroup::Ipv4Route,
        MulticastGroup::Ipv6Route,
        MulticastGroup::Ipv4Rule,
        MulticastGroup::Ipv6Rule,
    ];
    loop {
        // The subscription comes before the list: no change in between is lost.
        let mut messages = subscribe(&groups)?;
        tables.aside(Tables::list).await??;
        let list_at = Instant::now() + LIST_EVERY;
        loop {
            tables.aside(Tables::verify).await?;
            if send(changes, sent, tables.described()).await.is_err() {
                return Ok(());
            }
            let take = |message: &_| tables.take_message(message);
            if !take_messages(&mut messages, list_at, (SETTLE, SETTLE), take).await {
                break;
            }
        }
        // A subscription that ends each time must not make this a busy loop.
        sleep(SETTLE).await;
    }
}

/// Returns the index of the bridge's port that leads to this address; None if the address is no
/// known neighbour, or if the bridge does not know the port.
pub fn port_to(bridge: u32, address: IpAddr) -> io::Result<Option<u32>> {
    let mut tables = Tables::default();
    tables.list()?;
    let mac = tables.neighbours.get(&(bridge, address));
    Ok(mac.and_then(|mac| tables.ports.get(&(bridge, *mac)).copied()))
}

/// Sends the neighbours if they differ from those sent last; fails if the receiver is closed.
async fn send(
    changes: &mpsc::Sender<Neighbours>,
    sent: &mut Option<Neighbours>,
    neighbours: Neighbours,
) -> Result<(), ()> {
    if sent.as_ref() == Some(&neighbours) {
        return Ok(());
    }
    changes.send(neighbours.clone()).await.map_err(drop)?;
    *sent = Some(neighbours);
    Ok(())
}

/// The kernel's neighbours and bridge tables, and the routes to the neighbours.
#[derive(Debug, Default)]
struct Tables {
    neighbours: BTreeMap<(u32, IpAddr), Mac>,
    ports: BTreeMap<(u32, Mac), u32>,
    /// The interface of the on-link route to the address; None if no such route exists.
    routed: BTreeMap<IpAddr, Option<u32>>,
}

impl Tables {
    /// Runs work that waits for the kernel's answers on a thread for such work.
    async fn aside<T: Send + 'static>(&mut self, work: fn(&mut Self) -> T) -> io::Result<T> {
        let mut tables = mem::take(self);
        let (tables, result) = aside(move || {
            let result = work(&mut tables);
            (tables, result)
        })
        .await?;
        *self = tables;
        Ok(result)
    }
    /// Reads the complete tables. Bridge ports that a bridge has forgotten are kept: frames of pods
    /// that go past the stack do not reach the bridge, so it cannot remember their ports.
    fn list(&mut self) -> io::Result<()> {
        let mut listed = Self::default();
        let connection = Connection::open(NETLINK_ROUTE)?;
        for family in [libc::AF_UNSPEC, libc::AF_BRIDGE] {
            let mut request = [0; HEADER];
            request[0] = family as u8;
            let answered = connection.list(GET_NEIGHBOUR, &request, |answer| {
                if let Some(message) = understood(NeighbourMessage::parse(answer)) {
                    listed.take(&message, true);
                }
            });
            // A kernel without bridges has no such table.
            none_if(&[libc::EAFNOSUPPORT, libc::EOPNOTSUPP], answered)?;
        }
        self.neighbours = listed.neighbours;
        let used: BTreeSet<_> = self
            .neighbours
            .iter()
            .map(|((link, _), mac)| (*link, *mac))
            .collect();
        self.ports.retain(|place, _| used.contains(place));
        self.ports.extend(listed.ports);
        self.routed.clear();
        Ok(())
    }

    fn take_message(&mut self, message: &NetlinkPayload<RouteNetlinkMessage>) -> bool {
        use RouteNetlinkMessage::{
            DelNeighbour, DelRoute, DelRule, NewNeighbour, NewRoute, NewRule,
        };
        let NetlinkPayload::InnerMessage(message) = message else {
            return false;
        };
        match message {
            NewNeighbour(neighbour) => self.take(neighbour, true),
            DelNeighbour(neighbour) => self.take(neighbour, false),
            // Any address may be routed elsewhere now.
            NewRoute(_) | DelRoute(_) | NewRule(_) | DelRule(_) => self.routed.clear(),
            _ => return false,
        }
        true
    }

    fn take(&mut self, message: &NeighbourMessage, is_there: bool) {
        use NeighbourAddress::{Inet, Inet6};
        use NeighbourAttribute::{Controller, Destination, LinkLayerAddress};
        let header = &message.header;
        let (mut mac, mut bridge, mut address) = (None, None, None);
        for attribute in &message.attributes {
            match attribute {
                LinkLayerAddress(octets) => mac = Mac::try_from(octets.as_slice()).ok(),
                Controller(index) => bridge = Some(*index),
                Destination(Inet(v4)) => address = Some(IpAddr::from(*v4)),
                Destination(Inet6(v6)) => address = Some(IpAddr::from(*v6)),
                _ => {}
            }
        }
        if header.family == AddressFamily::Bridge {
            // A permanent entry is the port's own address.
            if let (true, Some(bridge), Some(mac)) = (is_there, bridge, mac)
                && header.state != NeighbourState::Permanent
            {
                self.ports.insert((bridge, mac), header.ifindex);
            }
            return;
        }
        let Some(address) = address else {
            return;
        };
        let place = (header.ifindex, address);
        match mac {
            Some(mac) if is_there && is_usable(header.state) => {
                self.neighbours.insert(place, mac);
            }
            _ => drop(self.neighbours.remove(&place)),
        }
    }

    /// Asks the kernel for the routes to neighbours whose route is not known.
    fn verify(&mut self) {
        let known = self.neighbours.keys();
        let known: BTreeSet<_> = known.map(|(_, address)| *address).collect();
        for address in &known {
            let direct = || direct_route(*address);
            self.routed.entry(*address).or_insert_with(direct);
        }
        self.routed.retain(|address, _| known.contains(address));
    }

    fn described(&self) -> Neighbours {
        let known = self.neighbours.iter();
        let known = known.filter(|((interface, address), _)| {
            self.routed.get(address) == Some(&Some(*interface))
        });
        Neighbours {
            known: known.map(|(place, mac)| (*place, *mac)).collect(),
            ports: self.ports.clone(),
        }
    }
}

fn is_usable(state: NeighbourState) -> bool {
    use NeighbourState::{Delay, Permanent, Probe, Reachable, Stale};
    matches!(state, Reachable | Stale | Delay | Probe | Permanent)
}

/// Returns the interface of a unicast route without a gateway; None for other routes.
fn direct_route(address: IpAddr) -> Option<u32> {
    match route(address, None) {
        Ok(Routed::Leaves {
            interface,
            neighbour,
        }) if neighbour == address => Some(interface),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POD: Mac = [2, 0, 0, 0, 0, 9];

    fn message(family: AddressFamily, index: u32, state: NeighbourState) -> NeighbourMessage {
        let mut message = NeighbourMessage::default();
        message.header.family = family;
        message.header.ifindex = index;
        message.header.state = state;
        message.attributes = vec![NeighbourAttribute::LinkLayerAddress(POD.to_vec())];
        message
    }

    fn pod(state: NeighbourState) -> NeighbourMessage {
        let mut message = message(AddressFamily::Inet, 3, state);
        let address = NeighbourAddress::Inet([10, 40, 1, 2].into());
        let address = NeighbourAttribute::Destination(address);
        message.attributes.push(address);
        message
    }

    #[test]
    fn a_neighbour_is_known_while_it_has_a_mac_and_a_route_by_its_interface() {
        let place = (3, IpAddr::from([10, 40, 1, 2]));
        let mut tables = Tables::default();
        tables.take(&pod(NeighbourState::Reachable), true);
        // Nobody has asked for its route.
        assert_eq!(tables.described(), Neighbours::default());
        tables.routed.insert(place.1, Some(3));
        assert_eq!(tables.described().known, BTreeMap::from([(place, POD)]));
        tables.routed.insert(place.1, Some(4));
        assert!(tables.described().known.is_empty());
        tables.routed.insert(place.1, Some(3));
        use NeighbourState::{Failed, Stale};
        for (state, is_there, known) in [(Failed, true, 0), (Stale, true, 1), (Stale, false, 0)] {
            tables.take(&pod(state), is_there);
            assert_eq!(tables.described().known.len(), known);
        }
    }

    #[test]
    fn a_learned_bridge_port_is_kept_after_it_expires_and_follows_a_moved_mac() {
        let learned = |port, state| {
            let mut message = message(AddressFamily::Bridge, port, state);
            message.attributes.push(NeighbourAttribute::Controller(3));
            message
        };
        let mut tables = Tables::default();
        tables.take(&learned(5, NeighbourState::Permanent), true);
        assert!(tables.ports.is_empty(), "the port's own address");
        tables.take(&learned(5, NeighbourState::Reachable), true);
        tables.take(&learned(5, NeighbourState::Reachable), false);
        assert_eq!(tables.ports, BTreeMap::from([((3, POD), 5)]));
        tables.take(&learned(6, NeighbourState::Reachable), true);
        assert_eq!(tables.ports, BTreeMap::from([((3, POD), 6)]));
    }
}
