// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Merges the messages of all watches into batches of changes. Called by the loop in `api_server`.

use std::{
    any::Any,
    collections::{BTreeMap, HashSet},
    time::Duration,
};

use control::{
    causes::chain,
    change::{Batch, Change, Trigger},
    model::{Converter, Kind, Object, ObjectKey, annotation},
    object::{ObjectName, Warning},
    warnings::Topic,
};
use k8s_openapi::{api::discovery::v1::EndpointSlice, jiff::Timestamp};
use tokio::time::Instant;

use super::{
    follow::{Event, Message},
    wire::Unread,
};

/// KUBE: the annotation of an EndpointSlice with the time of the change that caused its endpoints
/// to change, for the latency metric.
pub(super) const ANNOTATION_TRIGGER: &str = "endpoints.kubernetes.io/last-change-trigger-time";

/// The kinds that every agent reads.
const KINDS: [Kind; 4] = [
    Kind::Service,
    Kind::EndpointSlice,
    Kind::Node,
    Kind::ServiceCidr,
];

/// How long services wait for kinds of the Gateway API that cannot be listed.
const WAIT: Duration = Duration::from_secs(15);

/// The names of the known objects of one kind. They show which objects a new list lacks.
#[derive(Debug, Default)]
struct Known {
    names: HashSet<ObjectName>,
    /// The names so far in the list that is arriving; None if no list is arriving.
    listing: Option<HashSet<ObjectName>>,
    /// Whether the list that is arriving has an object that cannot be read and has no name. Any
    /// object that the list lacks may be that one.
    has_nameless: bool,
    listed: bool,
}

/// Turns messages of the watches into batches.
#[derive(Default)]
pub(super) struct Merger {
    converter: Converter,
    server: String,
    started: Timestamp,
    /// The kinds of which something came, or that are left out.
    known: BTreeMap<Kind, Known>,
    /// Objects with warnings, noted so that the warnings can be removed later.
    warned: HashSet<ObjectKey>,
    /// For each kind that cannot be followed at present, the reason.
    faults: BTreeMap<Kind, String>,
    batch: Batch,
    /// Whether a batch has ended the first list of all objects.
    listed: bool,
    /// Since when some kind of the Gateway API cannot be followed.
    gateways_fail: Option<Instant>,
    /// True if the next batch says that everything is listed, which must be sent even without
    /// changes.
    news: bool,
}

impl Merger {
    pub(super) fn new(converter: Converter, server: String) -> Self {
        Self {
            converter,
            server,
            started: Timestamp::now(),
            ..Self::default()
        }
    }

    /// Treats the list of this kind as complete, because the kind is not followed.
    pub(super) fn leave_out(&mut self, kind: Kind) {
        self.known(kind).listed = true;
    }

    /// Returns how many changes the next batch has so far.
    pub(super) fn changes(&self) -> usize {
        self.batch.changes.len()
    }

    /// Returns everything since the last batch; None if there is nothing.
    pub(super) fn batch(&mut self) -> Option<Batch> {
        if !self.news && self.batch.changes.is_empty() && self.batch.warnings.is_empty() {
            return None;
        }
        self.news = false;
        let complete = self.batch.complete;
        let batch = std::mem::take(&mut self.batch);
        self.batch.complete = complete;
        Some(batch)
    }

    pub(super) fn take(&mut self, message: Message) {
        match message {
            Message::Event(kind, event) => self.event(kind, event),
            Message::Fault(kind, reason) => {
                if self.faults.insert(kind, reason.clone()) != Some(reason) {
                    self.warn_of_faults();
                }
                self.note_listed();
            }
            Message::Fine(kind) => {
                if self.faults.remove(&kind).is_some() {
                    self.warn_of_faults();
                }
            }
        }
    }

    fn warn_of_faults(&mut self) {
        let server = &self.server;
        let warnings = self.faults.iter().map(|(kind, reason)| Warning {
            object: format!("API server {server}"),
            reason: format!(
                "its {kind}s cannot be followed: {reason}; services stay as last known, will retry with growing pauses: check the server and the network to it"
            ),
        });
        let warnings = warnings.collect();
        self.batch.warnings.push((Topic::ApiServer, warnings));
    }

    fn known(&mut self, kind: Kind) -> &mut Known {
        self.known.entry(kind).or_default()
    }

    fn event(&mut self, kind: Kind, event: Event) {
        match event {
            Event::Init => {
                let known = self.known(kind);
                (known.listing, known.has_nameless) = (Some(HashSet::new()), false);
            }
            Event::Unread(unread) => self.keep(kind, &unread),
            Event::Apply(convert, trigger) => {
                // A list repeats objects that changed long ago. KUBE: changes from before the
                // agent's start say nothing about its latency.
                let is_news = self.known(kind).listing.is_none();
                let trigger = trigger.filter(|trigger| is_news && trigger.time > self.started);
                self.batch.triggers.extend(trigger);
                match convert(&mut self.converter) {
                    Ok((object, warnings)) => self.upsert(kind, object, warnings),
                    // The object has no name. A real server never sends such an object, and no
                    // topic would identify the warning.
                    Err(warning) => tracing::warn!("{warning}"),
                }
            }
            Event::Delete(metadata) => {
                if let Ok(name) = self.converter.object_name(kind, &metadata) {
                    self.delete(kind, name);
                }
            }
            Event::InitDone => {
                let known = self.known(kind);
                known.listed = true;
                let listed = known.listing.take().unwrap_or_default();
                let gone = known.names.difference(&listed).cloned();
                let gone: Vec<_> = gone.filter(|_| !known.has_nameless).collect();
                for name in gone {
                    self.delete(kind, name);
                }
                self.note_listed();
            }
        }
    }

    /// Notes whether all objects are listed. Those of the Gateway API are not waited for when they
    /// cannot be read for a while: services need not stand still for them.
    fn note_listed(&mut self) {
        let are_listed = |kinds: &[Kind]| {
            let mut known = kinds.iter().map(|kind| self.known.get(kind));
            known.all(|known| known.is_some_and(|known| known.listed))
        };
        let mut of_gateways = Kind::OF_GATEWAYS.iter();
        if of_gateways.any(|kind| self.faults.contains_key(kind)) {
            self.gateways_fail.get_or_insert_with(Instant::now);
        } else {
            self.gateways_fail = None;
        }
        if !are_listed(&KINDS) {
            return;
        }
        let complete = are_listed(&Kind::OF_GATEWAYS);
        let listed = complete || self.gateways_fail.is_some_and(|at| at.elapsed() >= WAIT);
        if (complete && !self.batch.complete) || (listed && !self.listed) {
            self.news = true;
            self.batch.listed |= !self.listed;
            self.batch.complete |= complete;
            self.listed = true;
        }
    }

    fn upsert(&mut self, kind: Kind, object: Object, warnings: Vec<Warning>) {
        let name = object.name().clone();
        let key = object.key();
        if warnings.is_empty() {
            self.forget_warnings(&key);
        } else {
            self.warned.insert(key.clone());
            self.batch.warnings.push((Topic::Object(key), warnings));
        }
        let known = self.known(kind);
        if let Some(listing) = &mut known.listing {
            listing.insert(name.clone());
        }
        known.names.insert(name);
        self.batch.changes.push(Change::Upsert(object));
    }

    /// Warns of an object that cannot be read, and leaves it as last known.
    fn keep(&mut self, kind: Kind, unread: &Unread) {
        let reason = format!(
            "it cannot be read ({}); it stays as last known, and all others go on: write it anew or delete it",
            chain(&unread.error)
        );
        let Ok(name) = self.converter.object_name(kind, &unread.metadata) else {
            self.known(kind).has_nameless = true;
            tracing::warn!("a {kind} without a readable name: {reason}");
            return;
        };
        if let Some(listing) = &mut self.known(kind).listing {
            listing.insert(name.clone());
        }
        let key = ObjectKey { kind, name };
        let object = key.to_string();
        self.warned.insert(key.clone());
        let warnings = vec![Warning { object, reason }];
        self.batch.warnings.push((Topic::Object(key), warnings));
    }

    fn delete(&mut self, kind: Kind, name: ObjectName) {
        self.known(kind).names.remove(&name);
        let key = ObjectKey { kind, name };
        self.forget_warnings(&key);
        self.batch.changes.push(Change::Delete(key));
    }

    fn forget_warnings(&mut self, key: &ObjectKey) {
        if self.warned.remove(key) {
            let topic = Topic::Object(key.clone());
            self.batch.warnings.push((topic, Vec::new()));
        }
    }
}

/// Returns the time in a slice's annotation, from which the latency is computed.
pub(super) fn trigger(object: &dyn Any) -> Option<Trigger> {
    let slice: &EndpointSlice = object.downcast_ref()?;
    let time = annotation(&slice.metadata, ANNOTATION_TRIGGER)?
        .parse()
        .ok()?;
    let v6 = slice.address_type == "IPv6";
    Some(Trigger { time, v6 })
}
