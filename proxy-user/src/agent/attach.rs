// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The steps of the agent's loop that attach programs: to new interfaces at once, to all and to the cgroup at every sync and every
//! second. Called by `agent::run` and `steps`.

use std::time::Duration;

use tokio::time::Instant;

use super::{hooks::SocketHooks, steps::Agent};
use crate::{
    causes::chain,
    config::Forwarding,
    interfaces::{Interface, Neighbours, pod_links},
    server::health::Area,
    warnings::Topic,
};

/// How long changes wait at most while many interfaces come: attaching to one takes two grace periods of the kernel, 10 to 30 ms.
const SLICE: Duration = Duration::from_millis(10);

impl Agent {
    /// Attaches before the lists have come if the maps hold services: these are served as an earlier run has left them, with its
    /// settings and addresses.
    pub(super) fn serve_held(&mut self) {
        if self.held {
            self.attach();
        }
    }

    pub(super) fn set_interfaces(&mut self, interfaces: Vec<Interface>) {
        self.interfaces = interfaces;
        if !self.served {
            self.sync();
            return;
        }
        // A new pod's programs come first; what stands beside them is looked at every second.
        self.attach_interfaces(SLICE);
        if self.beside.is_outdated(self.attachments.attached()) {
            self.look_beside();
        }
        self.apply_pods();
        self.apply_node();
        // Plans depend on the node's addresses, because these decide about source ranges.
        if self.syncer.has_changes() {
            self.sync();
        }
    }

    /// Goes on where [`Self::attach_interfaces`] had no time.
    pub(super) fn attach_more(&mut self) {
        self.attach_interfaces(SLICE);
    }

    /// Looks at what stands beside the attached programs.
    fn look_beside(&mut self) {
        let found = self.beside.look(
            Instant::now(),
            &mut self.datapath,
            self.attachments.attached(),
            &self.interfaces,
            if self.options.redirects {
                self.config.forwarding
            } else {
                Forwarding::Stack
            },
        );
        if let Some(found) = found {
            let (before, left) = (found.before_count, found.left_interfaces);
            self.metrics.beside.set(before, left);
            let topic = Topic::ForeignPrograms((&*self.node_name).into());
            self.warnings
                .replace(topic, found.before.into_iter().collect());
            self.warnings.replace(Topic::Forwarding, found.left);
            self.open = found.open;
            self.apply_pods();
        }
    }

    pub(super) fn set_neighbours(&mut self, neighbours: Neighbours) {
        self.neighbours = neighbours;
        self.apply_pods();
    }

    /// Stores the pods that packets past the stack may be handed to. What cannot be stored is no fault: the routes lead there, too.
    fn apply_pods(&mut self) {
        let mut links = if self.hands_to_pods {
            pod_links(&self.interfaces, &self.neighbours)
        } else {
            Vec::new()
        };
        links.retain(|link| self.open.contains(&link.interface));
        if let Err(error) = self.datapath.set_pods(&links) {
            tracing::debug!("pods: {}", chain(&error));
        }
    }

    /// Attaches to interfaces for so long; whether everything is attached.
    fn attach_interfaces(&mut self, budget: Duration) -> bool {
        if !self.datapath.may_attach() {
            return false;
        }
        let updated = self
            .attachments
            .update(&mut self.datapath, &self.interfaces, budget);
        self.more_to_attach = updated.more;
        let complete = updated.warnings.is_empty() && !updated.more;
        self.health.set_faults(Area::Interfaces, &updated.warnings);
        self.warnings.replace(Topic::Interfaces, updated.warnings);
        complete
    }

    /// Attaches what is not attached yet; whether everything is.
    pub(super) fn attach(&mut self) -> bool {
        if !self.datapath.may_attach() {
            return false;
        }
        // Before the first service is served, and before the programs of other maps go, all of them.
        let budget = if self.served && self.datapath.predecessors().is_none() {
            SLICE
        } else {
            Duration::MAX
        };
        let mut complete = self.attach_interfaces(budget);
        self.look_beside();
        self.look_at_uplinks();
        // A shadow has no socket hooks.
        let faults = if self.config.shadow {
            Vec::new()
        } else {
            self.hooks.update(&mut self.datapath)
        };
        complete &= faults.is_empty();
        self.health.set_faults(Area::Hooks, &faults);
        // A program that the kernel refuses is no fault that a retry can mend.
        let refused = SocketHooks::refused(&self.datapath);
        let warnings = faults.into_iter().chain(refused).collect();
        self.warnings.replace(Topic::Sockets, warnings);
        complete
    }
}
