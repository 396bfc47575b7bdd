// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Lists and watches one kind of object until the agent ends; reports faults and tries again.
//! `api_server` starts one such task for each kind.

use std::{fmt::Debug, ops::RangeInclusive, pin::pin, time::Duration};

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};
use control::{
    causes::chain,
    model::{Kind, Original},
};
use futures_util::StreamExt;
use k8s_openapi::api::{
    core::v1::{Node, Service},
    discovery::v1::EndpointSlice,
    networking::v1::ServiceCIDR,
};
use kube::{
    Api, Resource,
    runtime::watcher::{self, Event, watcher},
};
use serde::de::DeserializeOwned;
use tokio::{
    sync::mpsc,
    time::{Instant, sleep, timeout},
};

const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LAST_PAUSE: Duration = Duration::from_secs(10);
/// A watch that has not failed for this long counts as accepted: without changes the server sends
/// nothing.
const SETTLED: Duration = Duration::from_secs(6);

/// How long a watch lasts, in seconds: drawn, so that the watches of a fleet do not end together.
/// kube allows less than 295.
const WATCH: RangeInclusive<u32> = 150..=290;

/// KUBE: client-go's reflector waits this long before it lists again, and doubles the pause while
/// it lists often. All nodes list again when a server has forgotten their version.
const FIRST_RELIST: Duration = Duration::from_millis(800);
const LAST_RELIST: Duration = Duration::from_secs(30);
/// After this long without a new list, the next pause is the first one again.
const CALM: Duration = Duration::from_secs(120);

/// The pause before asking again for a kind of object that the server does not know: the server may
/// have been upgraded by then.
const UPGRADE: Duration = Duration::from_secs(300);

const GONE: u16 = 410;

/// A change of the objects of one kind.
pub(super) enum News {
    Service(Box<Event<Service>>),
    EndpointSlice(Box<Event<EndpointSlice>>),
    Node(Box<Event<Node>>),
    ServiceCidr(Box<Event<ServiceCIDR>>),
}

/// A message from a watch to the merger, which makes batches of changes.
pub(super) enum Message {
    News(News),
    /// The kind cannot be followed, for the reason in the text.
    Fault(Kind, String),
    /// The kind can be followed again.
    Fine(Kind),
}

/// Selects the objects of a kind to follow; empty texts select all.
#[derive(Default)]
pub(super) struct Selector {
    pub(super) labels: String,
    pub(super) fields: String,
}

/// A kind of object that is listed and watched.
pub(super) trait Followed:
    Original + Resource + Clone + Debug + DeserializeOwned + Send + 'static
{
    /// Whether the API server may be too old to know the kind.
    const IS_OPTIONAL: bool = false;
}
impl Followed for Service {}
impl Followed for EndpointSlice {}
impl Followed for Node {}
/// KUBE: part of `networking.k8s.io/v1` since 1.33.
impl Followed for ServiceCIDR {
    const IS_OPTIONAL: bool = true;
}

/// Follows a kind of object until the messages' receiver is gone.
pub(super) async fn follow<K: Followed>(
    api: Api<K>,
    selector: Selector,
    news: fn(Box<Event<K>>) -> News,
    sender: mpsc::Sender<Message>,
) {
    let mut config = watcher::Config::default();
    if !selector.labels.is_empty() {
        config = config.labels(&selector.labels);
    }
    if !selector.fields.is_empty() {
        config = config.fields(&selector.fields);
    }
    config = config.timeout(fastrand::u32(WATCH));
    // Uses streamed lists if the server has them (KUBE: 1.32 and later), otherwise lists by pages.
    let mut streamed = true;
    let mut relists = Relists::default();
    loop {
        let config = if streamed {
            config.clone().streaming_lists()
        } else {
            config.clone()
        };
        match until_stuck(watcher(api.clone(), config), news, &sender, &mut relists).await {
            Ended::Unheard => return,
            Ended::NotStreamed => streamed = false,
            Ended::Gone => relists.pause().await,
            Ended::Unknown => {
                for event in [Event::Init, Event::InitDone] {
                    let none = Message::News(news(event.into()));
                    if sender.send(none).await.is_err() {
                        return;
                    }
                }
                sleep(UPGRADE).await;
            }
        }
    }
}

/// Why a watcher was dropped.
enum Ended {
    /// The receiver of the messages is gone.
    Unheard,
    /// The server does not stream lists.
    NotStreamed,
    /// The server no longer has the version of the list to continue from. The watcher would ask for
    /// that version again and again.
    Gone,
    /// The server does not know the kind of object, which is an optional one.
    Unknown,
}

async fn until_stuck<K: Followed>(
    events: impl futures_util::Stream<Item = watcher::Result<Event<K>>>,
    news: fn(Box<Event<K>>) -> News,
    sender: &mpsc::Sender<Message>,
    relists: &mut Relists,
) -> Ended {
    let mut events = pin!(events);
    // The pauses between attempts, while attempts fail.
    let mut failing: Option<ExponentialBackoff> = None;
    loop {
        let wait = if failing.is_some() {
            SETTLED
        } else {
            Duration::MAX
        };
        let next = tokio::select! {
            next = timeout(wait, events.next()) => next,
            () = sender.closed() => return Ended::Unheard,
        };
        let message = match next {
            Err(_) => {
                failing = None;
                Message::Fine(K::KIND)
            }
            // A watcher never ends by itself.
            Ok(None) => return Ended::Gone,
            Ok(Some(Ok(event))) => {
                // `Init` only announces a list: the server has not answered yet.
                if !matches!(event, Event::Init)
                    && failing.take().is_some()
                    && sender.send(Message::Fine(K::KIND)).await.is_err()
                {
                    return Ended::Unheard;
                }
                Message::News(news(event.into()))
            }
            Ok(Some(Err(error))) => match fault_of(&error) {
                Fault::NotStreamed => return Ended::NotStreamed,
                Fault::Gone => return Ended::Gone,
                Fault::Unknown if K::IS_OPTIONAL => return Ended::Unknown,
                // This is no fault: the watcher lists again by itself.
                Fault::Relist => {
                    relists.pause().await;
                    continue;
                }
                Fault::Unknown | Fault::Other => {
                    let fault = Message::Fault(K::KIND, in_words(&error));
                    if sender.send(fault).await.is_err() {
                        return Ended::Unheard;
                    }
                    let pause = failing
                        .get_or_insert_with(|| pauses(FIRST_PAUSE, LAST_PAUSE))
                        .next();
                    sleep(pause.unwrap_or(LAST_PAUSE)).await;
                    continue;
                }
            },
        };
        if sender.send(message).await.is_err() {
            return Ended::Unheard;
        }
    }
}

/// The pauses before lists that are asked for again.
#[derive(Default)]
struct Relists {
    /// The pauses to come, and when the last one ended.
    recent: Option<(ExponentialBackoff, Instant)>,
}

impl Relists {
    async fn pause(&mut self) {
        let recent = self.recent.take();
        let mut pauses = recent
            .filter(|(_, last)| last.elapsed() < CALM)
            .map_or_else(|| pauses(FIRST_RELIST, LAST_RELIST), |(pauses, _)| pauses);
        sleep(pauses.next().unwrap_or(LAST_RELIST)).await;
        self.recent = Some((pauses, Instant::now()));
    }
}

/// Returns growing pauses with jitter, so that not all nodes ask at once when a server comes back.
fn pauses(first: Duration, last: Duration) -> ExponentialBackoff {
    ExponentialBuilder::default()
        .with_min_delay(first)
        .with_max_delay(last)
        .with_factor(2.0)
        .with_jitter()
        .without_max_times()
        .build()
}

enum Fault {
    NotStreamed,
    /// The request itself was answered with HTTP status 410 (gone). The watcher would repeat the
    /// same request.
    Gone,
    /// A message within a watch has the code 410 (gone). The watcher then lists again by itself.
    Relist,
    /// The server does not know the kind of object.
    Unknown,
    Other,
}

/// Describes an error of a watch for operators. A server, or a proxy before it, may end a watch
/// with a Status in which nothing is set; that gets a text of its own.
fn in_words(error: &watcher::Error) -> String {
    let (attempt, status) = match error {
        watcher::Error::WatchError(status) => ("watching", status),
        watcher::Error::WatchStartFailed(kube::Error::Api(status)) => ("starting to watch", status),
        watcher::Error::InitialListFailed(kube::Error::Api(status)) => ("listing", status),
        watcher::Error::WatchFailed(kube::Error::Api(status)) => ("watching", status),
        _ => return chain(error),
    };
    if status.code != 0 || !status.message.is_empty() || !status.reason.is_empty() {
        return chain(error);
    }
    format!(
        "{attempt} ended with an error in which the server says neither a code nor a reason (an empty Status), as servers do that stop or are overloaded"
    )
}

fn fault_of(error: &watcher::Error) -> Fault {
    const NOT_FOUND: u16 = 404;
    const BAD_REQUEST: u16 = 400;
    const INVALID: u16 = 422;
    match error {
        watcher::Error::WatchStartFailed(kube::Error::Api(status)) => match status.code {
            GONE => Fault::Gone,
            BAD_REQUEST | INVALID if status.message.contains("sendInitialEvents") => {
                Fault::NotStreamed
            }
            NOT_FOUND => Fault::Unknown,
            _ => Fault::Other,
        },
        // The server refused the next page of a list, because the list is too old by now.
        watcher::Error::InitialListFailed(kube::Error::Api(status)) if status.code == GONE => {
            Fault::Gone
        }
        watcher::Error::InitialListFailed(kube::Error::Api(status)) if status.code == NOT_FOUND => {
            Fault::Unknown
        }
        watcher::Error::WatchError(status) if status.code == GONE => Fault::Relist,
        _ => Fault::Other,
    }
}

#[cfg(test)]
mod tests {
    use kube::core::Status;

    use super::*;

    #[test]
    fn a_watch_error_without_a_message_is_described() {
        let empty = watcher::Error::WatchError(Box::default());
        let said = in_words(&empty);
        assert!(
            said.starts_with("watching ended with an error in which"),
            "{said}"
        );
        let full = Status {
            code: 500,
            message: "etcd is away".into(),
            ..Status::default()
        };
        let said = in_words(&watcher::Error::WatchError(Box::new(full)));
        assert!(said.contains("etcd is away"), "{said}");
    }
}
