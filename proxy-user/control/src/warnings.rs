// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The warnings that hold at present, by topic. Sources, the syncer, the agent and its servers add
//! them. A new warning is logged, all that hold can be listed, and those about objects are reported
//! for Kubernetes events.

#[cfg(test)]
mod tests;

use std::{
    collections::{HashMap, HashSet},
    fmt::Debug,
    sync::{Arc, Mutex, PoisonError},
};

use crate::{
    gateway::names,
    model::{Kind, ObjectKey},
    object::{ObjectName, Warning},
};

/// The topic of a set of warnings. A new set replaces the previous set of its topic.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Topic {
    /// A file of the manifest folder, and the objects in it.
    File(Arc<str>),
    /// An object that several files define.
    Duplicate(ObjectKey),
    /// A service's plan.
    Plan(ObjectName),
    /// Publishing plans in the kernel's maps.
    Apply,
    /// This node's settings and addresses.
    Node,
    /// Attaching to interfaces.
    Interfaces,
    /// Foreign programs that run before portolan's own on the node with this name.
    ForeignPrograms(Arc<str>),
    /// Listing the connections of another proxy.
    ForeignConnections,
    /// What others removed or changed of portolan's work in the kernel; the agent repairs it.
    Repairs,
    /// Packets that are left to the network stack.
    Forwarding,
    /// Who in the node's network stack decides about forwarded packets, such as netfilter rules.
    Stack,
    /// Uplinks where XDP takes no packets.
    Uplinks,
    /// Chains whose policy drops forwarded packets.
    ForwardPolicy,
    /// The flow tables, which are maps in the kernel.
    Flows,
    /// Taking over the content of maps that have another layout or other sizes.
    Succession,
    /// Maps that are nearly full.
    Growth,
    /// The socket hooks.
    Sockets,
    Config,
    /// The configuration file was changed and cannot be used.
    ConfigFile,
    /// The address of the kubelet's probes.
    Probes,
    /// A health check node port.
    HealthPort(u16),
    /// The manifest folder itself.
    Folder,
    /// An object that the API server has sent.
    Object(ObjectKey),
    /// What an object of the Gateway API means in the cluster, such as a route whose backend is
    /// missing.
    Gateway(ObjectKey),
    /// The HTTP server that answers for the agent's own health.
    Health,
    /// The HTTP server for metrics.
    Metrics,
    /// The connection to the API server.
    ApiServer,
}

impl Topic {
    /// Returns the topic's name, as the agent's HTTP page `/warnings` shows it, and the page of the
    /// documentation that explains it, as a path from the top of the clone with the anchor of a
    /// section.
    fn name_and_page(&self) -> (&'static str, &'static str) {
        match self {
            Self::File(_) => ("file", "docs/runbooks.md#objects"),
            Self::Duplicate(_) => ("duplicate", "docs/runbooks.md#objects"),
            Self::Plan(_) => ("plan", "docs/runbooks.md#objects"),
            Self::Apply => ("apply", "docs/runbooks.md#services-failed"),
            Self::Node => ("node", "docs/runbooks.md#settings"),
            Self::Interfaces => ("interfaces", "docs/runbooks.md#programs-missing"),
            Self::ForeignPrograms(_) => ("foreign-programs", "docs/runbooks.md#foreign-programs"),
            Self::ForeignConnections => ("foreign-connections", "docs/runbooks.md#import"),
            Self::Repairs => ("repairs", "docs/runbooks.md#repairs"),
            Self::Forwarding => ("forwarding", "docs/runbooks.md#left-to-stack"),
            Self::Stack => ("stack", "docs/runbooks.md#left-to-stack"),
            Self::Uplinks => ("xdp", "docs/runbooks.md#xdp"),
            Self::ForwardPolicy => ("forward-policy", "docs/runbooks.md#forward-policy"),
            Self::Flows => ("flows", "docs/runbooks.md#flow-table-full"),
            Self::Succession => ("succession", "docs/runbooks.md#succession"),
            Self::Growth => ("growth", "docs/runbooks.md#maps-full"),
            Self::Sockets => ("sockets", "docs/runbooks.md#programs-missing"),
            Self::Config => ("config", "docs/runbooks.md#settings"),
            Self::ConfigFile => ("config-file", "docs/runbooks.md#settings"),
            Self::HealthPort(_) => ("health-port", "docs/runbooks.md#ports-in-use"),
            Self::Folder => ("folder", "docs/runbooks.md#source-outage"),
            Self::Object(_) => ("object", "docs/runbooks.md#objects"),
            Self::Gateway(_) => ("gateway", "docs/runbooks.md#objects"),
            Self::Health => ("health", "docs/runbooks.md#ports-in-use"),
            Self::Probes => ("probes", "docs/runbooks.md#ports-in-use"),
            Self::Metrics => ("metrics", "docs/runbooks.md#ports-in-use"),
            Self::ApiServer => ("api-server", "docs/runbooks.md#source-outage"),
        }
    }

    /// Returns the object that gets a Kubernetes event about a warning of this topic; None if no
    /// object does.
    fn object(&self) -> Option<ObjectKey> {
        match self {
            Self::Plan(name) => Some(names::owner(name)),
            Self::ForeignPrograms(node) => Some(ObjectKey::new(Kind::Node, "", node)),
            Self::Object(key) | Self::Gateway(key) if key.kind.is_namespaced() => Some(key.clone()),
            _ => None,
        }
    }
}

/// A warning as the agent's HTTP page `/warnings` shows it.
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize)]
pub struct NamedWarning {
    pub topic: &'static str,
    /// The page of the documentation that explains the topic.
    pub page: &'static str,
    pub object: String,
    pub reason: String,
}

/// News about an object, on the way to the object's owner as a Kubernetes event.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Report {
    pub object: ObjectKey,
    /// `object::uid_hash` of a Service or EndpointSlice; 0 of other kinds, or if it is not known.
    pub uid_hash: u64,
    pub news: News,
    pub reason: String,
}

/// What happened to the object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum News {
    /// The object is not served as its owner may expect.
    Warning,
    /// The node serves all that it should.
    Healthy,
    /// The node does not serve all that it should.
    Unhealthy,
}

/// Takes reports about objects, to send them to the objects' owners. It is called under a lock and
/// must not wait.
pub trait Reporter: Send + Sync + Debug {
    fn report(&self, report: Report);
    /// A warning about the object that was reported with this reason has ended.
    fn withdraw(&self, object: &ObjectKey, reason: &str);
}

/// The warnings of one topic.
#[derive(Debug, Default)]
struct TopicWarnings {
    /// Tells the object from a later one with the same name.
    uid_hash: u64,
    warnings: Vec<Warning>,
}

/// All warnings that hold at present.
#[derive(Clone, Debug, Default)]
pub struct Warnings {
    held: Arc<Mutex<HashMap<Topic, TopicWarnings>>>,
    reporter: Option<Arc<dyn Reporter>>,
}

impl Warnings {
    /// Returns an empty set of warnings, which reports news about objects to this reporter, too.
    pub fn reported_to(reporter: Arc<dyn Reporter>) -> Self {
        Self {
            reporter: Some(reporter),
            ..Self::default()
        }
    }
    /// Replaces the warnings of a topic; an empty list removes them.
    pub fn replace(&self, topic: Topic, warnings: Vec<Warning>) {
        self.replace_of(topic, 0, warnings);
    }
    /// Replaces the warnings of a topic about an object with this `object::uid_hash`. Equal
    /// warnings are new if it is another object with the same name.
    pub fn replace_of(&self, topic: Topic, uid_hash: u64, warnings: Vec<Warning>) {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let previous = held.remove(&topic).unwrap_or_default();
        let object = topic.object();
        let [lasting, arrived] = if previous.uid_hash == uid_hash {
            [&warnings, &previous.warnings].map(HashSet::from_iter)
        } else {
            [HashSet::new(), HashSet::new()]
        };
        if let (Some(object), Some(reporter)) = (&object, &self.reporter) {
            let ended = previous.warnings.iter().filter(|w| !lasting.contains(w));
            ended.for_each(|warning| reporter.withdraw(object, &warning.reason));
        }
        for warning in warnings.iter().filter(|w| !arrived.contains(w)) {
            tracing::warn!(page = topic.name_and_page().1, "{warning}");
            if let Some(object) = object.clone() {
                self.report(object, uid_hash, News::Warning, &warning.reason);
            }
        }
        if !warnings.is_empty() {
            held.insert(topic, TopicWarnings { uid_hash, warnings });
        }
    }
    /// Reports the health of a node.
    pub fn report_node(&self, node: &str, news: News, reason: &str) {
        let object = ObjectKey::new(Kind::Node, "", node);
        self.report(object, 0, news, reason);
    }
    fn report(&self, object: ObjectKey, uid_hash: u64, news: News, reason: &str) {
        let Some(reporter) = &self.reporter else {
            return;
        };
        reporter.report(Report {
            object,
            uid_hash,
            news,
            reason: reason.to_owned(),
        });
    }
    /// Returns every warning that holds, with its topic, sorted.
    pub fn by_topic(&self) -> Vec<(Topic, Warning)> {
        let held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let each = held.iter().flat_map(|(topic, about)| {
            let about = about.warnings.iter();
            about.map(move |warning| (topic.clone(), warning.clone()))
        });
        let mut all: Vec<_> = each.collect();
        all.sort_unstable_by(|(_, one), (_, other)| one.cmp(other));
        all
    }
    /// Returns every warning that holds, with its topic's name, sorted.
    pub fn named(&self) -> Vec<NamedWarning> {
        let all = self.by_topic().into_iter();
        let named = all.map(|(topic, Warning { object, reason })| {
            let (topic, page) = topic.name_and_page();
            NamedWarning {
                topic,
                page,
                object,
                reason,
            }
        });
        named.collect()
    }
    /// Returns every warning that holds, sorted.
    pub fn all(&self) -> Vec<Warning> {
        let all = self.by_topic().into_iter();
        all.map(|(_, warning)| warning).collect()
    }
}
