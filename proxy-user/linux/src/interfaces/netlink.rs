// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reads interfaces and addresses by rtnetlink and waits for changes. Makes no decisions.

use std::{io, time::Duration};

use futures_util::{StreamExt, stream::BoxStream};
use netlink_packet_core::{
    NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REQUEST, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::{RouteNetlinkMessage, address::AddressMessage, link::LinkMessage};
use rtnetlink::{Handle, MulticastGroup, new_multicast_connection};
use tokio::time::{Instant, sleep, timeout_at};

use super::{Interface, Patterns, seen::Seen};

/// How long to wait for further messages after a change: a new interface causes several.
const SETTLE: Duration = Duration::from_millis(1);
/// The longest time that a change waits for further ones.
const AT_MOST: Duration = Duration::from_millis(5);
/// How often the interfaces are listed again, in case a message was not understood.
const LIST_EVERY: Duration = Duration::from_secs(30);
/// How many times an interrupted list is requested again at once.
const DUMPS: u32 = 10;
/// Pauses before another attempt: the first, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(5));

/// Follows the interfaces of the network namespace in which [`Self::open`] was called. Needs a
/// tokio runtime.
pub struct Interfaces {
    connection: Connection,
    patterns: Patterns,
    seen: Seen,
    list_at: Instant,
    current: Vec<Interface>,
}

/// A subscription to rtnetlink's messages about changes, and a handle for requests over the same
/// socket.
struct Connection {
    handle: Handle,
    messages: Messages,
}

impl Connection {
    fn open() -> Result<Self, InterfacesError> {
        let groups = [
            MulticastGroup::Link,
            MulticastGroup::Ipv4Ifaddr,
            MulticastGroup::Ipv6Ifaddr,
            MulticastGroup::Tc,
        ];
        let (mut connection, handle, messages) =
            new_multicast_connection(&groups).map_err(|source| InterfacesError {
                attempt: "open a socket",
                source,
            })?;
        // The last message of a list may be the one with the flag that it was interrupted.
        connection.set_forward_done(true);
        tokio::spawn(connection);
        let messages = messages.map(|(message, _)| message.payload);
        Ok(Self {
            handle,
            messages: messages.boxed(),
        })
    }
}

async fn list(mut handle: Handle) -> Result<Seen, InterfacesError> {
    let request = RouteNetlinkMessage::GetLink(LinkMessage::default());
    let links: Vec<LinkMessage> = dump(&mut handle, "list interfaces", request, |one| match one {
        RouteNetlinkMessage::NewLink(link) => Some(link),
        _ => None,
    })
    .await?;
    let request = RouteNetlinkMessage::GetAddress(AddressMessage::default());
    let addresses: Vec<AddressMessage> =
        dump(&mut handle, "list addresses", request, |one| match one {
            RouteNetlinkMessage::NewAddress(address) => Some(address),
            _ => None,
        })
        .await?;
    Ok(Seen::new(&links, &addresses))
}

/// Lists all interfaces and addresses. A known interface that is missing without a message about
/// its removal counts as gone only once two lists agree.
async fn list_again(handle: &Handle, known: &Seen) -> Result<Seen, InterfacesError> {
    let mut seen = list(handle.clone()).await?;
    while seen.lacks(known) {
        let again = list(handle.clone()).await?;
        let agree = !again.lacks(&seen) && !seen.lacks(&again);
        seen = again;
        if agree {
            break;
        }
    }
    Ok(seen)
}

/// Requests a list until it is complete, and returns its elements. The kernel makes a list in
/// several steps; if something changes in between, elements may be missing.
async fn dump<T>(
    handle: &mut Handle,
    attempt: &'static str,
    request: RouteNetlinkMessage,
    pick: impl Fn(RouteNetlinkMessage) -> Option<T>,
) -> Result<Vec<T>, InterfacesError> {
    let failed = |source| InterfacesError { attempt, source };
    for _ in 0..DUMPS {
        let mut request = NetlinkMessage::from(request.clone());
        request.header.flags = NLM_F_REQUEST | NLM_F_DUMP;
        let answers = handle.request(request).map_err(io::Error::other);
        let answers = answers.map_err(failed)?.collect::<Vec<_>>().await;
        if let Some(elements) = whole(answers).map_err(failed)? {
            return Ok(elements.into_iter().filter_map(pick).collect());
        }
    }
    let changing = "it changes faster than the kernel lists it";
    Err(failed(io::Error::new(io::ErrorKind::Interrupted, changing)))
}

/// Returns the elements of a list; None if a change interrupted it or its end is missing.
fn whole(
    answers: Vec<NetlinkMessage<RouteNetlinkMessage>>,
) -> io::Result<Option<Vec<RouteNetlinkMessage>>> {
    let mut elements = Vec::new();
    let (mut interrupted, mut ended) = (false, false);
    for answer in answers {
        interrupted |= answer.header.flags & NLM_F_DUMP_INTR != 0;
        match answer.payload {
            NetlinkPayload::InnerMessage(element) => elements.push(element),
            NetlinkPayload::Error(error) => return Err(error.to_io()),
            NetlinkPayload::Done(done) if done.code < 0 => {
                return Err(io::Error::from_raw_os_error(-done.code));
            }
            NetlinkPayload::Done(_) => ended = true,
            _ => {}
        }
    }
    Ok((ended && !interrupted).then_some(elements))
}

impl Interfaces {
    /// Reads all interfaces and subscribes to their changes.
    pub async fn open(patterns: Patterns) -> Result<Self, InterfacesError> {
        // The subscription comes before the first list: no change in between is lost.
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
    /// Returns all interfaces as last read.
    pub fn current(&self) -> &[Interface] {
        &self.current
    }
    /// Waits until something differs from [`Self::current`]; returns all interfaces. The kernel's
    /// messages say what has changed, so a new interface is known at once even among many. All are
    /// listed only after a message that does not say what has changed.
    pub async fn changed(&mut self) -> &[Interface] {
        loop {
            let messages = &mut self.connection.messages;
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
                let connection = Connection::open()?;
                let seen = list_again(&connection.handle, &self.seen).await?;
                Ok::<_, InterfacesError>((connection, seen))
            };
            match listed.await {
                Ok((connection, seen)) => {
                    self.connection = connection;
                    self.seen = seen;
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

    #[test]
    fn an_interrupted_or_truncated_netlink_dump_is_rejected() {
        use netlink_packet_core::{DoneMessage, NLM_F_MULTIPART, NetlinkHeader};
        let message = |flags, payload| {
            let mut header = NetlinkHeader::default();
            header.flags = NLM_F_MULTIPART | flags;
            NetlinkMessage::new(header, payload)
        };
        let one = |index| link(index, AddressFamily::Unspec, true);
        let done = |code| {
            let mut done = DoneMessage::default();
            done.code = code;
            Message::Done(done)
        };
        let count = |answers| whole(answers).expect("no error").map(|all| all.len());
        let all = vec![message(0, one(1)), message(0, one(2)), message(0, done(0))];
        assert_eq!(count(all.clone()), Some(2));
        assert_eq!(count(all[..2].to_vec()), None, "cut off");
        for interrupted in 0..3 {
            let mut all = all.clone();
            all[interrupted].header.flags |= NLM_F_DUMP_INTR;
            assert_eq!(count(all), None, "message {interrupted}");
        }
        assert!(whole(vec![message(0, one(1)), message(0, done(-12))]).is_err());
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
