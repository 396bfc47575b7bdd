// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reads interfaces and addresses by rtnetlink and waits for changes. Makes no decisions.

use std::{io, time::Duration};

use futures_util::{StreamExt, stream::BoxStream};
use netlink_packet_core::{DecodeError, NetlinkPayload, Parseable};
use netlink_packet_route::{RouteNetlinkMessage, address::AddressMessage, link::LinkMessage};
use netlink_sys::protocols::NETLINK_ROUTE;
use rtnetlink::{MulticastGroup, new_multicast_connection};
use tokio::{
    task::spawn_blocking,
    time::{Instant, sleep, timeout_at},
};

use super::{Interface, Patterns, seen::Seen};
use crate::{
    netlink::Connection,
    route::{GET_LINK, LINK_HEADER},
};

/// How long to wait for further messages after a change: a new interface causes several.
const SETTLE: Duration = Duration::from_millis(1);
/// The longest time that a change waits for further ones.
const AT_MOST: Duration = Duration::from_millis(5);
/// How often the interfaces are listed again, in case a message was not understood.
const LIST_EVERY: Duration = Duration::from_secs(30);
/// Pauses before another attempt: the first, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(5));

/// Follows the interfaces of the network namespace in which [`Self::open`] was called. Needs a
/// tokio runtime.
pub struct Interfaces {
    messages: Messages,
    patterns: Patterns,
    seen: Seen,
    list_at: Instant,
    current: Vec<Interface>,
}

/// Subscribes to rtnetlink's messages about changes.
pub fn subscribe(groups: &[MulticastGroup]) -> io::Result<Messages> {
    let (connection, handle, messages) = new_multicast_connection(groups)?;
    tokio::spawn(connection);
    let messages = messages.map(move |(message, _)| {
        // The connection's task ends, and closes the socket, when its handle is dropped.
        let _open = &handle;
        message.payload
    });
    Ok(messages.boxed())
}

/// Runs work that waits for the kernel's answers on a thread for such work.
pub(super) async fn aside<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<T> {
    spawn_blocking(work).await.map_err(io::Error::other)
}

/// Returns what a message says; None, with a line in the log, if it is not understood.
pub(super) fn understood<T>(message: Result<T, DecodeError>) -> Option<T> {
    let unknown = |error: &_| tracing::warn!("a message of rtnetlink is not understood: {error}");
    message.inspect_err(unknown).ok()
}

fn failed(attempt: &'static str) -> impl Fn(io::Error) -> InterfacesError {
    move |source| InterfacesError { attempt, source }
}

fn subscribe_to_interfaces() -> Result<Messages, InterfacesError> {
    let groups = [
        MulticastGroup::Link,
        MulticastGroup::Ipv4Ifaddr,
        MulticastGroup::Ipv6Ifaddr,
        MulticastGroup::Tc,
    ];
    subscribe(&groups).map_err(failed("open a socket"))
}

fn list() -> Result<Seen, InterfacesError> {
    const GET_ADDRESS: u16 = 22;
    /// Length of `struct ifaddrmsg`.
    const ADDRESS_HEADER: usize = 8;
    let connection = Connection::open(NETLINK_ROUTE).map_err(failed("open a socket"))?;
    let mut links: Vec<LinkMessage> = Vec::new();
    let listed = connection.list(GET_LINK, &[0; LINK_HEADER], |link| {
        links.extend(understood(LinkMessage::parse(link)));
    });
    listed.map_err(failed("list interfaces"))?;
    let mut addresses: Vec<AddressMessage> = Vec::new();
    let listed = connection.list(GET_ADDRESS, &[0; ADDRESS_HEADER], |address| {
        addresses.extend(understood(AddressMessage::parse(address)));
    });
    listed.map_err(failed("list addresses"))?;
    Ok(Seen::new(&links, &addresses))
}

async fn listed() -> Result<Seen, InterfacesError> {
    aside(list).await.map_err(failed("list interfaces"))?
}

/// Lists all interfaces and addresses. A known interface that is missing without a message about
/// its removal counts as gone only once two lists agree.
async fn list_again(known: &Seen) -> Result<Seen, InterfacesError> {
    let mut seen = listed().await?;
    while seen.lacks(known) {
        let again = listed().await?;
        let agree = !again.lacks(&seen) && !seen.lacks(&again);
        seen = again;
        if agree {
            break;
        }
    }
    Ok(seen)
}

impl Interfaces {
    /// Reads all interfaces and subscribes to their changes.
    pub async fn open(patterns: Patterns) -> Result<Self, InterfacesError> {
        // The subscription comes before the first list: no change in between is lost.
        let messages = subscribe_to_interfaces()?;
        let seen = listed().await?;
        let current = seen.describe(&patterns);
        Ok(Self {
            messages,
            patterns,
            seen,
            list_at: Instant::now() + LIST_EVERY,
            current,
        })
    }
    /// Returns all interfaces as last read.
    pub fn current(&self) -> &[Interface] {
        &self.current
    }
    /// Waits until something differs from [`Self::current`]; returns all interfaces. The kernel's
    /// messages say what has changed, so a new interface is known at once even among many. All are
    /// listed only after a message that does not say what has changed.
    pub async fn changed(&mut self) -> &[Interface] {
        loop {
            let messages = &mut self.messages;
            let take = |message: &_| self.seen.take(message);
            let known = take_messages(messages, self.list_at, (SETTLE, AT_MOST), take).await;
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

    /// Lists everything over a new subscription, again and again until it works. Programs stay
    /// attached meanwhile.
    async fn list(&mut self) {
        let (mut pause, last) = PAUSES;
        loop {
            let listed = async {
                let messages = subscribe_to_interfaces()?;
                Ok::<_, InterfacesError>((messages, list_again(&self.seen).await?))
            };
            match listed.await {
                Ok((messages, seen)) => {
                    (self.messages, self.seen) = (messages, seen);
                    self.list_at = Instant::now() + LIST_EVERY;
                    return;
                }
                Err(error) => {
                    tracing::warn!(
                        "interfaces: {error}: {}; new ones are not served until it works, it is tried again",
                        error.source
                    );
                    sleep(pause).await;
                    pause = (2 * pause).min(last);
                }
            }
        }
    }
}

/// The messages of a subscription.
pub(super) type Messages = BoxStream<'static, NetlinkPayload<RouteNetlinkMessage>>;

/// Waits for a message until `list_at` and applies it, and those that follow within the first time
/// each, for the second time at most. False if everything must be listed again, because time is
/// over or `take` does not understand a message.
pub(super) async fn take_messages(
    messages: &mut Messages,
    list_at: Instant,
    (settle, at_most): (Duration, Duration),
    mut take: impl FnMut(&NetlinkPayload<RouteNetlinkMessage>) -> bool,
) -> bool {
    let Ok(first) = timeout_at(list_at, messages.next()).await else {
        return false;
    };
    let mut known = first.is_some_and(|first| take(&first));
    let end = Instant::now() + at_most;
    while known && Instant::now() < end {
        let settled = end.min(Instant::now() + settle);
        match timeout_at(settled, messages.next()).await {
            Ok(next) => known = next.is_some_and(|next| take(&next)),
            Err(_) => break,
        }
    }
    known
}

/// The error of a failed request to rtnetlink.
#[derive(Debug, thiserror::Error)]
#[error("{attempt} by rtnetlink")]
pub struct InterfacesError {
    attempt: &'static str,
    source: io::Error,
}

#[cfg(test)]
mod tests {
    use futures_util::stream;
    use netlink_packet_route::AddressFamily;
    use tokio::time::timeout;

    use super::{super::seen::tests::link, *};

    type Message = NetlinkPayload<RouteNetlinkMessage>;

    async fn take(messages: &mut Messages, seen: &mut Seen, list_at: Instant) -> bool {
        let times = (SETTLE, AT_MOST);
        take_messages(messages, list_at, times, |message| seen.take(message)).await
    }

    #[tokio::test]
    async fn a_new_interface_is_seen_during_an_endless_stream_of_messages() {
        let without_end = stream::unfold(1, |index| async move {
            tokio::task::yield_now().await;
            Some((link(index, AddressFamily::Unspec, true), index + 1))
        });
        let mut seen = Seen::default();
        let list_at = Instant::now() + LIST_EVERY;
        let taking = async { take(&mut without_end.boxed(), &mut seen, list_at).await };
        let taken = timeout(Duration::from_secs(1), taking).await;
        assert_eq!(taken, Ok(true));
        assert!(!seen.describe(&Patterns::default()).is_empty());
    }

    #[tokio::test]
    async fn unknown_or_lost_messages_and_a_timeout_require_a_new_netlink_dump() {
        let list_at = Instant::now() + LIST_EVERY;
        for message in [Message::Overrun(Vec::new()), Message::Noop] {
            let mut messages = stream::iter([message]).boxed();
            assert!(!take(&mut messages, &mut Seen::default(), list_at).await);
        }
        let mut ended = stream::empty().boxed();
        assert!(!take(&mut ended, &mut Seen::default(), list_at).await);
        let mut silent = stream::pending().boxed();
        assert!(!take(&mut silent, &mut Seen::default(), Instant::now()).await);
    }
}
