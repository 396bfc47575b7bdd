// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The node itself: its settings and addresses in the maps; its firewall rules and local ports, on
//! which settings depend; connections of another proxy; and events about its condition at the Node
//! object. A part of `agent`.

mod condition;
pub(crate) mod contradictions;
pub(super) mod foreign_connections;
mod forward;
mod header_keys;
mod local_ports;
mod settings;
mod stack;

use std::{collections::BTreeSet, net::IpAddr};

use control::{
    causes::chain,
    object::Warning,
    warnings::{News, Topic},
};
use proxy_common::Settings;
use tokio::{
    sync::{mpsc, watch},
    time::Instant,
};

use self::{
    condition::NodeCondition,
    contradictions::{half_seen, misjudged_pods, pod_ranges, unserved_node_ports},
    foreign_connections::ForeignConnections,
    forward::ForwardPolicy,
    header_keys::HeaderKeys,
    local_ports::LocalPorts,
    settings::NodeSettings,
    stack::Stack,
};
use super::{agent::Shared, services::Services};
use crate::server::health::Area;

/// The node's settings in the maps, and what they depend on besides the configuration.
pub(super) struct Node {
    /// The cookie (the kernel's id) of the node's own network namespace.
    netns: u64,
    /// The settings and addresses that were last stored in the maps; `None` if that failed, or for
    /// new maps.
    applied: Option<NodeSettings>,
    /// True if services have changed since the warnings about the node were made. Some of these
    /// warnings depend on services.
    pub(super) is_outdated: bool,
    /// The addresses at which health check node ports are answered, sent to the server that
    /// answers.
    health_addresses: watch::Sender<BTreeSet<IpAddr>>,
    foreign: ForeignConnections,
    foreign_answers: mpsc::UnboundedSender<foreign_connections::Answer>,
    forward: ForwardPolicy,
    stack: Stack,
    local_ports: LocalPorts,
    header_keys: HeaderKeys,
    condition: NodeCondition,
    /// See [`linux::conntrack_misses_bridges`].
    misses_bridges: bool,
}

impl Node {
    pub(super) fn new(
        netns: u64,
        health_addresses: watch::Sender<BTreeSet<IpAddr>>,
        foreign_answers: mpsc::UnboundedSender<foreign_connections::Answer>,
    ) -> Self {
        Self {
            netns,
            applied: None,
            is_outdated: false,
            health_addresses,
            foreign: ForeignConnections::default(),
            foreign_answers,
            forward: ForwardPolicy::default(),
            stack: Stack::default(),
            local_ports: LocalPorts::default(),
            header_keys: HeaderKeys::default(),
            condition: NodeCondition::default(),
            misses_bridges: false,
        }
    }

    /// Reads the firewall rules, the netfilter hooks and the local ports, on which the settings
    /// depend, before the first flow begins.
    pub(super) fn look(&mut self, shared: &Shared) {
        self.look_at_rules(shared);
        self.look_at_stack(shared);
        self.local_ports.look(Instant::now());
        self.look_at_keys(shared);
    }

    fn look_at_keys(&mut self, shared: &Shared) -> bool {
        let file = shared.config.client_address_keys.as_deref();
        self.header_keys.look(file)
    }

    /// Forgets which settings were stored: the maps in use are new and have none.
    pub(super) fn begin_with_maps(&mut self) {
        self.applied = None;
    }

    /// True if the maps contain the node's settings and addresses.
    pub(super) fn is_applied(&self) -> bool {
        self.applied.is_some()
    }

    /// Checks once a second what the settings depend on; true if the settings must be stored again.
    pub(super) fn tick(&mut self, shared: &Shared, services: &Services) -> bool {
        self.report_condition(shared);
        if services.served {
            self.look_for_foreign(shared);
        }
        let local_ports_changed = self.local_ports.look(Instant::now());
        let rules_changed = self.look_at_rules(shared);
        let stack_changed = self.look_at_stack(shared);
        let keys_changed = self.look_at_keys(shared);
        let misses_bridges = linux::conntrack_misses_bridges();
        self.is_outdated |=
            misses_bridges != std::mem::replace(&mut self.misses_bridges, misses_bridges);
        let is_outdated = services.listed && self.is_outdated;
        local_ports_changed || rules_changed || stack_changed || keys_changed || is_outdated
    }

    /// Reports the node's condition in an event at the Node object, if it is new and has lasted.
    fn report_condition(&mut self, shared: &Shared) {
        let illness = shared.health.illness();
        let now = std::time::Instant::now();
        let reason = illness.as_ref().map(|(reason, _)| *reason);
        if !self.condition.is_news(reason, now) {
            return;
        }
        let healthy = || {
            format!(
                "portolan {} serves {} services on this node",
                env!("CARGO_PKG_VERSION"),
                shared.datapath.service_count()
            )
        };
        let (news, reason) = match illness {
            Some((_, whole)) => (News::Unhealthy, whole),
            None => (News::Healthy, healthy()),
        };
        shared
            .warnings
            .report_node(&shared.node_name, news, &reason);
    }

    /// Rereads the firewall rules when due; true if `others_masquerade` has changed.
    fn look_at_rules(&mut self, shared: &Shared) -> bool {
        let before = self.forward.others_masquerade;
        let (accepts, mark) = (shared.config.accept_forward, shared.config.marks.masquerade);
        if let Some(warnings) = self.forward.look(Instant::now(), accepts, mark) {
            shared.warnings.replace(Topic::ForwardPolicy, warnings);
        }
        self.forward.others_masquerade != before
    }

    /// With `forwarding: auto`, checks when due whether conntrack judges forwarded packets; true if
    /// flags of the settings have changed for that.
    fn look_at_stack(&mut self, shared: &Shared) -> bool {
        if !shared.options.redirects {
            return false;
        }
        let before = self.stack.flags;
        if let Some(warnings) = self.stack.look(Instant::now()) {
            shared.warnings.replace(Topic::Stack, warnings);
        }
        self.stack.flags != before
    }

    /// Stores the node's settings and addresses in the maps if they have changed, and renews the
    /// warnings about the node.
    pub(super) fn apply(&mut self, shared: &mut Shared, services: &mut Services) {
        self.is_outdated = false;
        let (config, interfaces) = (&shared.config, &shared.interfaces);
        let cluster = &mut services.syncer.state;
        let node = cluster.node();
        let given: Vec<_> = config
            .node_ips
            .iter()
            .copied()
            .chain(config.bound_ip())
            .collect();
        let (ips, guessed) = settings::fallback_ips(&shared.node_name, node, &given, interfaces);
        cluster.set_fallback_ips(ips);
        cluster.set_own_addresses(
            settings::own_addresses(config, interfaces),
            settings::broadcasts(interfaces),
        );
        cluster.set_pod_ranges(pod_ranges(config));
        // Before the first sync, the allocated cluster IPs are not known, so no packet is dropped
        // for going to an unallocated one.
        let ranges = if services.served {
            cluster.service_ranges()
        } else {
            BTreeSet::new()
        };
        let mut unstored = None;
        let mut faults = Vec::from_iter(guessed);
        faults.extend(settings::unheld_ranges(config, &ranges));
        let internal_ips = &cluster.view.internal_ips;
        faults.extend(unserved_node_ports(config, internal_ips, interfaces));
        let key_file = config.client_address_keys.as_deref();
        faults.extend(self.header_keys.warning(key_file));
        faults.extend(half_seen(config, interfaces, self.misses_bridges));
        if services.listed {
            faults.extend(misjudged_pods(config, &shared.node_name, cluster));
        }
        let (ports, shared_ports) = self.local_ports.leave(config.masquerade_ports);
        faults.extend(shared_ports);
        let mut wanted = NodeSettings::new(
            config,
            self.netns,
            cluster.node(),
            &ranges,
            internal_ips,
            interfaces,
        );
        wanted.header_keys = self.header_keys.known;
        let settings = &mut wanted.settings;
        settings.flags |= self.stack.flags;
        settings.masquerade_ports = ports;
        // Segments of foreign connections must pass.
        if config.is_canary() || self.foreign.may_exist() {
            settings.flags &= !Settings::RESET_UNKNOWN;
        }
        if !self.foreign.need_rules() {
            settings.flags |= Settings::RULES_MAY_GO;
        }
        // With `masquerade: mark` other rules are supposed to masquerade.
        if self.forward.others_masquerade && !settings.has(Settings::MARK_ONLY) {
            settings.flags |= Settings::OTHERS_MASQUERADE;
        }
        let health_addresses = settings::health_check_addresses(config, &wanted.addresses);
        self.health_addresses.send_if_modified(|known| {
            let before = std::mem::replace(known, health_addresses);
            before != *known
        });
        if self.applied.as_ref() != Some(&wanted) {
            // The settings are stored even if the map of addresses is too small, which IPVS' many
            // addresses can cause.
            let addresses = shared.datapath.set_node_addresses(&wanted.addresses);
            let settings = shared.datapath.set_settings(&wanted.settings);
            let keys = shared.datapath.set_header_keys(&wanted.header_keys);
            self.applied = match addresses.and(settings).and(keys) {
                Ok(()) => Some(wanted),
                Err(error) => {
                    unstored = Some(Warning {
                        object: format!("Node {}", shared.node_name),
                        reason: format!(
                            "its settings and addresses could not be stored: {}; it is tried again every second",
                            chain(&error),
                        ),
                    });
                    None
                }
            };
        }
        faults.extend(unstored.clone());
        shared.warnings.replace(Topic::Node, faults);
        shared.health.set_faults(Area::Node, &unstored);
    }

    /// Starts to look for foreign connections when due; [`Self::hear_of_foreign`] gets the result.
    pub(super) fn look_for_foreign(&mut self, shared: &Shared) {
        // A canary leaves the connections of the proxy beside it to that proxy's rules.
        if !shared.config.is_canary() && self.foreign.ask(Instant::now()) {
            let answers = self.foreign_answers.clone();
            foreign_connections::look(answers, shared.datapath.foreign_lookout());
        }
    }

    /// Takes what is known of foreign connections; the settings depend on it.
    pub(super) fn hear_of_foreign(
        &mut self,
        shared: &Shared,
        answer: &foreign_connections::Answer,
    ) {
        let warning = self.foreign.hear(Instant::now(), answer);
        shared
            .warnings
            .replace(Topic::ForeignConnections, Vec::from_iter(warning));
    }
}
