// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reads links and addresses by rtnetlink and waits for changes. Decides nothing.

use std::{io, time::Duration};

use futures_util::{StreamExt, TryStreamExt, stream::BoxStream};
use netlink_packet_core::NetlinkPayload;
use netlink_packet_route::{RouteNetlinkMessage, address::AddressMessage, link::LinkMessage};
use rtnetlink::{Handle, MulticastGroup, new_multicast_connection};
use tokio::time::{Instant, sleep, timeout_at};

use super::{Interface, Patterns, seen::Seen};

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
            MulticastGroup::Tc,
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
    Ok(Seen::new(&links, &addresses))
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
            let messages = &mut self.connection.messages;
            let known = take_messages(messages, &mut self.seen, self.list_at).await;
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

/// Takes the messages of some milliseconds, after waiting for the first until `list_at`; whether they say everything.
async fn take_messages(
    messages: &mut BoxStream<'static, NetlinkPayload<RouteNetlinkMessage>>,
    seen: &mut Seen,
    list_at: Instant,
) -> bool {
    let Ok(first) = timeout_at(list_at, messages.next()).await else {
        return false;
    };
    let mut known = first.is_some_and(|first| seen.take(&first));
    let end = Instant::now() + AT_MOST;
    while known && Instant::now() < end {
        let settled = end.min(Instant::now() + SETTLE);
        match timeout_at(settled, messages.next()).await {
            Ok(next) => known = next.is_some_and(|next| seen.take(&next)),
            Err(_) => break,
        }
    }
    known
}

/// rtnetlink failed.
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

    #[tokio::test]
    async fn a_new_interface_does_not_wait_until_the_kernel_falls_silent() {
        let without_end = stream::unfold(1, |index| async move {
            tokio::task::yield_now().await;
            Some((link(index, AddressFamily::Unspec, true), index + 1))
        });
        let mut seen = Seen::default();
        let list_at = Instant::now() + LIST_EVERY;
        let taking = async { take_messages(&mut without_end.boxed(), &mut seen, list_at).await };
        let taken = timeout(Duration::from_secs(1), taking).await;
        assert_eq!(taken, Ok(true));
        assert!(!seen.describe(&Patterns::default()).is_empty());
    }

    #[tokio::test]
    async fn what_is_not_understood_or_missing_asks_for_a_list() {
        let list_at = Instant::now() + LIST_EVERY;
        for message in [Message::Overrun(Vec::new()), Message::Noop] {
            let mut messages = stream::iter([message]).boxed();
            assert!(!take_messages(&mut messages, &mut Seen::default(), list_at).await);
        }
        let mut ended = stream::empty().boxed();
        assert!(!take_messages(&mut ended, &mut Seen::default(), list_at).await);
        let mut silent = stream::pending().boxed();
        assert!(!take_messages(&mut silent, &mut Seen::default(), Instant::now()).await);
    }
}
