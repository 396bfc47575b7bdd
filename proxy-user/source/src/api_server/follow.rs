// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Lists and watches one kind of object until the agent ends; reports faults and tries again.
//! `api_server` starts one such task for each kind. KUBE: what client-go's reflector does.

use std::{ops::RangeInclusive, time::Duration};

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};
use control::{
    causes::chain,
    change::Trigger,
    model::{Converted, Converter, Kind, Object, Original, original},
    object::Warning,
};
use k8s_openapi::api::{
    core::v1::{Namespace, Node, Service},
    discovery::v1::EndpointSlice,
    networking::v1::ServiceCIDR,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{Client, Resource};
use serde::de::DeserializeOwned;
use tokio::{
    sync::mpsc,
    time::{Instant, sleep, timeout},
};

use super::{
    merge::trigger,
    protobuf,
    requests::Requests,
    watch::{Failure, Objects, Selector, Watch},
    wire::{Unread, Watched},
};

const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LAST_PAUSE: Duration = Duration::from_secs(10);
/// A watch that has not failed for this long counts as accepted: without changes the server sends
/// nothing.
const SETTLED: Duration = Duration::from_secs(6);

/// KUBE: how long client-go's watches last, in seconds: drawn, so that the watches of a fleet do
/// not end together.
const WATCH: RangeInclusive<u64> = 300..=600;
/// After this long without an event, in seconds, a kind is listed again: the connection may answer
/// while what stands behind it has stopped, or has forgotten the version. KUBE: a bookmark comes
/// each minute.
const SILENCE: RangeInclusive<u64> = 180..=240;
/// KUBE: a watch that ends sooner than this is asked for again after a pause.
const SHORT: Duration = Duration::from_secs(1);

/// KUBE: client-go's reflector waits this long before it lists again, and doubles the pause while
/// it lists often. All nodes list again when a server has forgotten their version.
const FIRST_RELIST: Duration = Duration::from_millis(800);
const LAST_RELIST: Duration = Duration::from_secs(30);
/// After this long without a new list, the next pause is the first one again.
const CALM: Duration = Duration::from_secs(120);

/// The pause before asking again for a kind of object that the server does not know: the server may
/// have been upgraded by then.
const UPGRADE: Duration = Duration::from_secs(300);

const NOT_FOUND: u16 = 404;

/// A change of the objects of one kind.
pub(super) enum Event {
    /// A list begins.
    Init,
    /// An object was added or changed, or is in the list; the trigger is that of its annotation.
    Apply(Convert, Option<Trigger>),
    /// The same of an object that cannot be read.
    Unread(Unread),
    /// The object with this name and namespace was deleted.
    Delete(Box<ObjectMeta>),
    /// The list ends: what was not in it exists no more.
    InitDone,
}

/// Makes an object in the agent's own form.
type Convert = Box<dyn FnOnce(&mut Converter) -> Result<Converted<Object>, Warning> + Send>;

/// A message from a watch to the merger, which makes batches of changes.
pub(super) enum Message {
    Event(Kind, Event),
    /// The kind cannot be followed, for the reason in the text.
    Fault(Kind, String),
    /// The kind can be followed again.
    Fine(Kind),
}

/// A kind of object that is listed and watched.
pub(super) trait Followed:
    Original + Resource<DynamicType = ()> + DeserializeOwned + Send + 'static
{
    /// What the server sends as protobuf.
    type Protobuf: prost::Message + Default + Into<Self>;
    /// Whether the API server may be too old to know the kind.
    const IS_OPTIONAL: bool = false;
}

macro_rules! followed {
    ($($kind:ty, $protobuf:ident $(, $optional:literal)?;)*) => {
        $(impl Followed for $kind {
            type Protobuf = protobuf::$protobuf;
            $(const IS_OPTIONAL: bool = $optional;)?
        })*
    };
}
followed! {
    Service, Service;
    EndpointSlice, EndpointSlice;
    Node, Node;
    // KUBE: part of `networking.k8s.io/v1` since 1.33.
    ServiceCIDR, ServiceCidr, true;
    Namespace, Named;
    // Custom resources, which may be removed.
    original::GatewayClass, Named, true;
    original::Gateway, Named, true;
    original::TCPRoute, Named, true;
    original::UDPRoute, Named, true;
    original::ReferenceGrant, Named, true;
}

/// Follows the selected objects of a kind until the messages' receiver is gone.
pub(super) fn follow<K: Followed>(
    client: &Client,
    selector: &Selector,
    requests: &Requests,
    sender: &mpsc::Sender<Message>,
) -> impl Future<Output = ()> + use<K> {
    let sender = sender.clone();
    let follower = Follower {
        objects: Objects::<K>::new(client, selector, requests),
        sender: sender.clone(),
        version: None,
        is_streamed: true,
        failing: None,
    };
    async move {
        tokio::select! {
            () = follower.run() => {}
            () = sender.closed() => {}
        }
    }
}

struct Follower<K> {
    objects: Objects<K>,
    sender: mpsc::Sender<Message>,
    /// The version up to which everything was sent; None if the next request is for a list.
    version: Option<String>,
    /// Whether lists are streamed, as by servers since 1.32. Others send them whole.
    is_streamed: bool,
    /// The pauses between attempts, while attempts fail.
    failing: Option<ExponentialBackoff>,
}

impl<K: Followed> Follower<K> {
    async fn run(mut self) {
        let (mut relists, mut rewatches) = (Pauses::default(), Pauses::default());
        loop {
            let begun = Instant::now();
            let failure = match self.once().await {
                Ok(()) if begun.elapsed() >= SHORT => continue,
                Ok(()) => {
                    rewatches.pause().await;
                    continue;
                }
                Err(failure) => failure,
            };
            match failure.code() {
                _ if failure.is_stale() => {
                    self.version = None;
                    relists.pause().await;
                }
                Some(NOT_FOUND) if K::IS_OPTIONAL && self.objects.is_unknown().await => {
                    self.version = None;
                    self.settle().await;
                    self.send(Event::Init).await;
                    self.send(Event::InitDone).await;
                    sleep(UPGRADE).await;
                }
                _ if failure.is_no_streaming() => self.is_streamed = false,
                _ if failure.is_unknown_field() && self.objects.drop_fields() => {}
                _ => self.report(&failure).await,
            }
        }
    }

    /// Lists if nothing is listed yet, and watches until the watch ends.
    async fn once(&mut self) -> Result<(), Failure> {
        if self.version.is_none() && !self.is_streamed {
            self.list().await?;
        }
        let lasts = Duration::from_secs(fastrand::u64(WATCH));
        let version = self.version.as_deref();
        let mut watch = self.objects.watch(version, lasts).await?;
        if self.version.is_none() {
            self.send(Event::Init).await;
        }
        while let Some(event) = self.next(&mut watch).await? {
            let version = match event {
                Watched::Applied(object) => {
                    let metadata = object.as_ref().map_or_else(|it| &*it.metadata, K::meta);
                    let version = metadata.resource_version.clone();
                    self.apply(object).await;
                    version
                }
                Watched::Deleted(metadata) => {
                    let version = metadata.resource_version.clone();
                    self.send(Event::Delete(metadata)).await;
                    version
                }
                Watched::Bookmark { version, ends_list } => {
                    if ends_list && self.version.is_none() {
                        self.send(Event::InitDone).await;
                        self.version = Some(version.clone());
                        self.settle().await;
                    }
                    Some(version)
                }
            };
            // A list that breaks off in the middle has no version: its objects come in any order.
            if self.version.is_some() && version.is_some() {
                self.version = version;
            }
        }
        if self.version.is_none() {
            return Err(Failure::Unfinished);
        }
        Ok(())
    }

    async fn apply(&self, object: Result<K, Unread>) {
        let applied = |object: K| {
            let trigger = trigger(&object);
            Event::Apply(Box::new(move |to| object.convert(to)), trigger)
        };
        self.send(object.map_or_else(Event::Unread, applied)).await;
    }

    async fn list(&mut self) -> Result<(), Failure> {
        let mut more = String::new();
        loop {
            let page = self.objects.list(&more).await?;
            if more.is_empty() {
                self.send(Event::Init).await;
            }
            for object in page.items {
                self.apply(object).await;
            }
            more = page.more;
            if more.is_empty() {
                self.send(Event::InitDone).await;
                self.version = Some(page.version);
                self.settle().await;
                return Ok(());
            }
        }
    }

    /// Returns the next event of a watch; None at its end. While a list arrives, the kind is not
    /// settled: a list that always breaks off would be asked for again and again without growing
    /// pauses.
    async fn next(&mut self, watch: &mut Watch<K>) -> Result<Option<Watched<K>>, Failure> {
        if self.version.is_some() && self.failing.is_some() {
            match timeout(SETTLED, watch.next()).await {
                Err(_) => self.settle().await,
                Ok(next) => {
                    let next = next?;
                    if next.is_some() {
                        self.settle().await;
                    }
                    return Ok(next);
                }
            }
        }
        let silence = Duration::from_secs(fastrand::u64(SILENCE));
        let next = timeout(silence, watch.next()).await;
        next.unwrap_or_else(|_| Err(watch.silent()))
    }

    /// Notes that the kind can be followed.
    async fn settle(&mut self) {
        if self.failing.take().is_some() {
            self.tell(Message::Fine(K::KIND)).await;
        }
    }

    /// Reports a failure, and waits before the next attempt.
    async fn report(&mut self, failure: &Failure) {
        self.tell(Message::Fault(K::KIND, chain(failure))).await;
        let pauses = self
            .failing
            .get_or_insert_with(|| pauses(FIRST_PAUSE, LAST_PAUSE));
        let pause = pauses.next().unwrap_or(LAST_PAUSE);
        sleep(pause + failure.retry_after().unwrap_or_default()).await;
    }

    async fn send(&self, event: Event) {
        self.tell(Message::Event(K::KIND, event)).await;
    }

    /// Sends a message; waits for ever if nobody receives it, as then [`follow`] ends.
    async fn tell(&self, message: Message) {
        if self.sender.send(message).await.is_err() {
            std::future::pending().await
        }
    }
}

/// Growing pauses before something that should not happen often.
#[derive(Default)]
struct Pauses {
    /// The pauses to come, and when the last one ended.
    recent: Option<(ExponentialBackoff, Instant)>,
}

impl Pauses {
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
