// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Lists and watches one kind of object, for ever: what goes wrong is told and tried again. Started by
//! the source, one for each kind.

use std::{fmt::Debug, pin::pin, time::Duration};

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};
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
    time::{sleep, timeout},
};

use crate::{
    causes::chain,
    model::{Kind, Original},
};

const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LAST_PAUSE: Duration = Duration::from_secs(10);
/// A watch that has not failed for so long has been accepted: it need not have anything to tell.
const SETTLED: Duration = Duration::from_secs(6);

/// When to look whether the server has come to know a kind.
const UPGRADE: Duration = Duration::from_secs(300);

const GONE: u16 = 410;

/// What happened to objects of a kind.
pub(super) enum News {
    Service(Box<Event<Service>>),
    EndpointSlice(Box<Event<EndpointSlice>>),
    Node(Box<Event<Node>>),
    ServiceCidr(Box<Event<ServiceCIDR>>),
}

/// What a watch tells.
pub(super) enum Told {
    News(News),
    /// It cannot follow, and why.
    Fault(Kind, String),
    /// It follows again.
    Fine(Kind),
}

/// Which objects are asked for.
pub(super) enum Selector {
    All,
    Labels(String),
    Fields(String),
}

/// A kind of object that is followed.
pub(super) trait Followed:
    Original + Resource + Clone + Debug + DeserializeOwned + Send + 'static
{
    /// Servers that do not know the kind have none of it.
    const IS_OPTIONAL: bool = false;
}
impl Followed for Service {}
impl Followed for EndpointSlice {}
impl Followed for Node {}
/// KUBE: of `networking.k8s.io/v1` from 1.33 on.
impl Followed for ServiceCIDR {
    const IS_OPTIONAL: bool = true;
}

/// Follows until nobody listens any more.
pub(super) async fn follow<K: Followed>(
    api: Api<K>,
    selector: Selector,
    news: fn(Box<Event<K>>) -> News,
    sender: mpsc::Sender<Told>,
) {
    let config = match &selector {
        Selector::All => watcher::Config::default(),
        Selector::Labels(labels) => watcher::Config::default().labels(labels),
        Selector::Fields(fields) => watcher::Config::default().fields(fields),
    };
    // Streamed lists where the server has them (KUBE: 1.32 and later), else page by page.
    let mut streamed = true;
    loop {
        let config = if streamed {
            config.clone().streaming_lists()
        } else {
            config.clone()
        };
        match until_stuck(watcher(api.clone(), config), news, &sender).await {
            Ended::Unheard => return,
            Ended::NotStreamed => streamed = false,
            Ended::Gone => {}
            Ended::Unknown => {
                for event in [Event::Init, Event::InitDone] {
                    let none = Told::News(news(event.into()));
                    if sender.send(none).await.is_err() {
                        return;
                    }
                }
                sleep(UPGRADE).await;
            }
        }
    }
}

/// Why a watcher was given up.
enum Ended {
    /// Nobody listens any more.
    Unheard,
    /// The server does not stream lists.
    NotStreamed,
    /// What it wants to go on from is gone, and it would ask for the same again and again.
    Gone,
    /// The server does not know the kind, which it need not.
    Unknown,
}

async fn until_stuck<K: Followed>(
    events: impl futures_util::Stream<Item = watcher::Result<Event<K>>>,
    news: fn(Box<Event<K>>) -> News,
    sender: &mpsc::Sender<Told>,
) -> Ended {
    let mut events = pin!(events);
    // The pauses between attempts, while they fail.
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
        let told = match next {
            Err(_) => {
                failing = None;
                Told::Fine(K::KIND)
            }
            // A watcher never ends by itself.
            Ok(None) => return Ended::Gone,
            Ok(Some(Ok(event))) => {
                // An announced list has not come yet.
                if !matches!(event, Event::Init)
                    && failing.take().is_some()
                    && sender.send(Told::Fine(K::KIND)).await.is_err()
                {
                    return Ended::Unheard;
                }
                Told::News(news(event.into()))
            }
            Ok(Some(Err(error))) => match judge(&error) {
                Fault::NotStreamed => return Ended::NotStreamed,
                Fault::Gone => return Ended::Gone,
                Fault::Unknown if K::IS_OPTIONAL => return Ended::Unknown,
                // The watcher lists anew by itself; nothing is wrong.
                Fault::Relist => continue,
                Fault::Unknown | Fault::Other => {
                    let fault = Told::Fault(K::KIND, chain(&error));
                    if sender.send(fault).await.is_err() {
                        return Ended::Unheard;
                    }
                    let pause = failing.get_or_insert_with(pauses).next();
                    sleep(pause.unwrap_or(LAST_PAUSE)).await;
                    continue;
                }
            },
        };
        if sender.send(told).await.is_err() {
            return Ended::Unheard;
        }
    }
}

/// Growing, and not the same on every node: a server that comes back shall not be met by all at once.
fn pauses() -> ExponentialBackoff {
    ExponentialBuilder::default()
        .with_min_delay(FIRST_PAUSE)
        .with_max_delay(LAST_PAUSE)
        .with_factor(2.0)
        .with_jitter()
        .without_max_times()
        .build()
}

enum Fault {
    NotStreamed,
    /// The request itself was answered so: the watcher would repeat it.
    Gone,
    /// Told within a watch: the watcher lists anew.
    Relist,
    /// The server does not know the kind.
    Unknown,
    Other,
}

fn judge(error: &watcher::Error) -> Fault {
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
        // A page of a list that has become too old.
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
