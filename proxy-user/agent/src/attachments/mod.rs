// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Attaches portolan's programs at the interfaces, the cgroup and the uplinks' XDP hooks, as these
//! come and go; checks and repairs them; takes over from an earlier agent's maps; and looks for
//! foreign programs. A part of `agent`.

mod foreign_programs;
mod gone_pods;
mod hooks;
mod interfaces;
mod pin_watch;
mod redirect_eligibility;
mod repair;
mod succession;
mod xdp_eligibility;
mod xdp_uplinks;

use std::{collections::BTreeSet, path::PathBuf, time::Duration};

use config::{Config, GoneEndpoints};
use control::{causes::chain, warnings::Topic};
use linux::interfaces::{Neighbours, pod_links};
use tokio::time::Instant;

pub use self::hooks::SocketHooks;
use self::{
    foreign_programs::ForeignPrograms, gone_pods::GonePods, interfaces::InterfaceAttachments,
    repair::Repairs, succession::Takeover, xdp_uplinks::Uplinks,
};
pub(super) use self::{pin_watch::PinWatch, repair::raise_descriptor_limit};
use super::{agent::Shared, services::Services};
use crate::{node::contradictions::unserved_interfaces, server::health::Area};

/// How long one turn of attaching or detaching lasts before other events are handled. Attaching to
/// one interface waits for two grace periods of the kernel, 10 to 30 ms, and is not interrupted.
const SLICE: Duration = Duration::from_millis(10);

/// Where the programs are attached, and the state of each interface, uplink and hook.
pub(super) struct Attachments {
    interfaces: InterfaceAttachments,
    /// True if new interfaces have no programs yet, because time ran out.
    pub(super) more_to_attach: bool,
    foreign_programs: ForeignPrograms,
    hooks: SocketHooks,
    uplinks: Uplinks,
    neighbours: Neighbours,
    gone_pods: GonePods,
    /// True if packets to pods of this node are handed to the pods directly, past the stack.
    hands_to_pods: bool,
    /// Indexes of the interfaces whose pods can get packets past the stack.
    open: BTreeSet<u32>,
    takeover: Takeover,
    repairs: Repairs,
    pin_watch: PinWatch,
}

impl Attachments {
    pub(super) fn new(config: &Config, hands_to_pods: bool, pin_watch: PinWatch) -> Self {
        Self {
            interfaces: InterfaceAttachments::default(),
            more_to_attach: false,
            foreign_programs: ForeignPrograms::default(),
            hooks: hooks(config),
            uplinks: Uplinks::default(),
            neighbours: Neighbours::default(),
            gone_pods: GonePods::default(),
            hands_to_pods,
            open: BTreeSet::new(),
            takeover: Takeover::default(),
            repairs: Repairs::default(),
            pin_watch,
        }
    }

    /// Begins with maps that have just been put in use: nothing is attached with them yet. `pins`:
    /// their directories of pins, which are watched from now on.
    pub(super) fn begin_with_maps(
        &mut self,
        config: &Config,
        pins: impl IntoIterator<Item = PathBuf>,
    ) {
        self.hooks = hooks(config);
        self.interfaces = InterfaceAttachments::default();
        self.foreign_programs = ForeignPrograms::default();
        self.pin_watch.watch(pins);
        self.repairs = Repairs::default();
        self.more_to_attach = false;
        self.takeover = Takeover::default();
    }

    /// Returns how many interfaces have the tc programs.
    pub(super) fn interface_count(&self) -> usize {
        self.interfaces.attached.len()
    }

    /// Updates the metrics: how many interfaces and hooks have the programs.
    pub(super) fn count(&self, shared: &Shared) {
        let state = &shared.metrics.state;
        let (wanted, attached) = self.interfaces.counts(&shared.interfaces);
        state.interfaces_wanted.set(wanted as i64);
        state.interfaces_attached.set(attached as i64);
        let (wanted, attached) = shared.datapath.hook_counts();
        state.hooks_wanted.set(wanted as i64);
        state.hooks_attached.set(attached as i64);
    }

    /// Attaches the programs where they are missing; then takes over from the previous maps, if
    /// there are any. `services.served` is true after the first complete sync.
    pub(super) fn tick(&mut self, shared: &mut Shared, services: &Services) {
        self.attach(shared, services.served);
        if services.served && !services.syncer.is_waiting() {
            self.take_over(shared, services);
        }
    }

    /// Attaches the programs to new interfaces. A look for foreign programs comes later, once a
    /// second, so that a new pod gets its programs first.
    pub(super) fn follow_interfaces(&mut self, shared: &mut Shared) {
        self.attach_interfaces(shared);
        let attached = &self.interfaces.attached;
        if self.foreign_programs.is_outdated(attached) {
            self.look_for_foreign_programs(shared);
        }
        self.apply_pods(shared);
    }

    /// True if the next turn of taking over from previous maps comes soon.
    pub(super) fn takes_over(&self) -> bool {
        self.takeover.more
    }

    /// True if [`Self::go_on`] should be called soon, because time ran out.
    pub(super) fn has_more(&self) -> bool {
        self.more_to_attach || self.takeover.more
    }

    /// Goes on for one turn with attaching to interfaces, or with taking over from previous maps.
    pub(super) fn go_on(&mut self, shared: &mut Shared, services: &Services) {
        if self.takeover.more {
            self.take_over(shared, services);
        } else {
            self.attach_interfaces(shared);
        }
    }

    /// Looks for foreign programs at the interfaces that have portolan's, when due, and updates
    /// warnings and metrics.
    fn look_for_foreign_programs(&mut self, shared: &mut Shared) {
        let found = self.foreign_programs.look(
            Instant::now(),
            &mut shared.datapath,
            &self.interfaces.attached,
            &shared.interfaces,
            shared.options.redirects,
        );
        if let Some(found) = found {
            let state = &shared.metrics.state;
            state.foreign_before.set(found.before_count as i64);
            state.left_to_stack.set(found.left_interfaces.into());
            let topic = Topic::ForeignPrograms((&*shared.node_name).into());
            shared
                .warnings
                .replace(topic, found.before.into_iter().collect());
            shared.warnings.replace(Topic::Forwarding, found.left);
            self.open = found.open;
            self.apply_pods(shared);
        }
    }

    pub(super) fn set_neighbours(&mut self, shared: &mut Shared, neighbours: Neighbours) {
        self.neighbours = neighbours;
        self.apply_pods(shared);
    }

    /// Stores in the maps the pods of this node, and who can get packets past the stack. A failure
    /// is no fault: packets then reach the pods by the kernel's routes.
    fn apply_pods(&mut self, shared: &mut Shared) {
        let mut links = if self.hands_to_pods {
            pod_links(&shared.interfaces, &self.neighbours)
        } else {
            Vec::new()
        };
        self.gone_pods
            .observe(&links, &shared.interfaces, Instant::now());
        // Who is behind an interface holds whether or not packets may be handed over there.
        for link in &mut links {
            if !self.open.contains(&link.interface) {
                link.mtu = 0;
            }
        }
        if let Err(error) = shared.datapath.set_pods(&links) {
            tracing::debug!("pods: {}", chain(&error));
        }
    }

    /// Has connections end to pods of this node that are gone, if the setting says so. Called once
    /// a second. Returns true if there are such pods.
    pub(super) fn end_connections(&mut self, shared: &mut Shared, services: &Services) -> bool {
        let ends = shared.config.gone_endpoints == GoneEndpoints::Reset;
        if !ends || !services.served {
            // What was found before the setting changed holds no longer.
            shared.datapath.set_gone(BTreeSet::new());
            return false;
        }
        let now = Instant::now();
        let links = pod_links(&shared.interfaces, &self.neighbours);
        self.gone_pods.observe(&links, &shared.interfaces, now);
        let asked = gone_pods::Present {
            cluster: &services.syncer.state,
            interfaces: &shared.interfaces,
        };
        let gone = self.gone_pods.gone(&links, &shared.interfaces, now, &asked);
        let has_some = !gone.is_empty();
        shared.datapath.set_gone(gone);
        has_some
    }

    /// Attaches the programs to interfaces for one turn; true if every interface has them.
    fn attach_interfaces(&mut self, shared: &mut Shared) -> bool {
        if !shared.datapath.may_attach() {
            return false;
        }
        // Before a program asks for them. Frames to a pod's link are the pod's or its bridge's.
        let own = shared.interfaces.iter();
        let own = own.filter(|one| !one.leads_to_one_pod());
        let stored = shared.datapath.set_macs(own.filter_map(|one| one.mac));
        if let Err(error) = stored {
            tracing::debug!("link-layer addresses: {}", chain(&error));
        }
        let updated = self
            .interfaces
            .update(&mut shared.datapath, &shared.interfaces, SLICE);
        self.more_to_attach = updated.more;
        let complete = updated.warnings.is_empty() && !updated.more;
        shared
            .health
            .set_faults(Area::Interfaces, &updated.warnings);
        let unserved = unserved_interfaces(&shared.interfaces);
        let warnings = updated.warnings.into_iter().chain(unserved).collect();
        shared.warnings.replace(Topic::Interfaces, warnings);
        complete
    }

    /// Attaches programs and hooks where they are missing, to interfaces for one turn; true if all
    /// are attached then. `served`: whether the first sync is complete.
    pub(super) fn attach(&mut self, shared: &mut Shared, served: bool) -> bool {
        if !shared.datapath.may_attach() {
            return false;
        }
        let mut complete = self.attach_interfaces(shared);
        // At the start, one look at all interfaces is enough.
        if served || !self.more_to_attach {
            self.look_for_foreign_programs(shared);
        }
        self.look_at_uplinks(shared, served);
        let faults = self.hooks.update(&mut shared.datapath);
        complete &= faults.is_empty();
        shared.health.set_faults(Area::Hooks, &faults);
        // No retry can repair a program that the kernel refuses, so it is no fault.
        let refused = SocketHooks::refused(&shared.datapath);
        let warnings = faults.into_iter().chain(refused);
        let warnings = warnings.chain(self.hooks.narrowed()).collect();
        shared.warnings.replace(Topic::Sockets, warnings);
        complete
    }
}

fn hooks(config: &Config) -> SocketHooks {
    SocketHooks::new(config.cgroup_root.clone(), config.socket_exceptions.clone())
}
