// SPDX-License-Identifier: Apache-2.0 OR MIT
//! With `xdp: native` or `generic`: keeps the XDP program at the uplinks that it can serve, and says why it is not at others. Called by
//! `attach`, once a second; what is decided, and why, is `bypass`'s.

use std::time::Duration;

use proxy_common::xdp::Abilities;
use tokio::time::Instant;

use super::{
    beside,
    bypass::{self, Wish},
    leave::Routing,
    steps::Agent,
    uplinks::{explain, warning},
};
use crate::{
    causes::chain,
    datapath::{self, Repair, RepairKind, XdpMode},
    interfaces::Interface,
    object::Warning,
    warnings::Topic,
};

/// A new attempt where the driver has refused comes after so long: with some drivers each one interrupts the traffic.
const AGAIN: Duration = Duration::from_secs(60);

impl Agent {
    /// Looks at every uplink.
    pub(super) fn look_at_uplinks(&mut self) {
        // The programs of the maps before are there still, and go on.
        if !self.served || self.datapath.predecessors().is_some() {
            return;
        }
        let mut wanted = Vec::new();
        let mut said = Vec::new();
        if let Some(mode) = self.options.xdp {
            (wanted, said) = self.judge_uplinks(mode);
        }
        for index in self.datapath.uplinks() {
            if wanted.iter().all(|(interface, _)| interface.index != index) {
                self.uplinks.attached.remove(&index);
                said.extend(self.datapath.detach_uplink(index).err().map(|error| {
                    warning(&format!("interface with index {index}"), &chain(&error))
                }));
            }
        }
        let names: Vec<_> = self.interfaces.iter().map(|one| one.index).collect();
        self.uplinks
            .refused
            .retain(|index, _| names.contains(index));
        if let Some(mode) = self.options.xdp {
            for (interface, abilities) in wanted {
                said.extend(self.attach_uplink(&interface, mode, abilities));
            }
        }
        let attached = self.uplinks.attached.len();
        self.metrics.beside.set_xdp(attached, said.len());
        said.sort_unstable();
        said.dedup();
        self.warnings.replace(Topic::Uplinks, said);
    }

    /// Has next hops asked for again.
    pub(super) fn routes_have_changed(&mut self) {
        if let Err(error) = self.datapath.begin_route_epoch() {
            tracing::warn!("{}; next hops are asked for each second", chain(&error));
        }
    }

    /// The interfaces that get the program, each with what it may do there; and why others do not.
    fn judge_uplinks(&self, mode: XdpMode) -> (Vec<(Interface, Abilities)>, Vec<Warning>) {
        let routing = Routing::read();
        let attached = self.attachments.attached();
        let candidates = attached.values().filter(|one| one.uplink);
        let seen = beside::seen(&self.datapath, candidates);
        let (mut wanted, mut said) = (Vec::new(), Vec::new());
        for (interface, programs) in seen {
            let lro = datapath::has_lro(&interface.name).map_err(|error| chain(&error));
            match bypass::wish(interface, &self.interfaces, &programs, &routing, &lro) {
                Wish::Attach => {
                    let told = datapath::takes_redirected(interface.index).ok();
                    let abilities = bypass::abilities(interface, mode == XdpMode::Native, told);
                    wanted.push((interface.clone(), abilities));
                    said.extend(
                        bypass::limit(abilities).map(|reason| {
                            warning(&format!("interface {}", interface.name), &reason)
                        }),
                    );
                }
                Wish::Decline(reason) => {
                    said.push(warning(&format!("interface {}", interface.name), &reason));
                }
            }
        }
        if wanted.is_empty() && said.is_empty() {
            said.push(warning(
                "xdp",
                "no uplink was found; name them by `xdpInterfaces`",
            ));
        }
        (wanted, said)
    }

    fn attach_uplink(
        &mut self,
        interface: &Interface,
        mode: XdpMode,
        abilities: Abilities,
    ) -> Option<Warning> {
        let (now, index) = (Instant::now(), interface.index);
        if let Some((since, before, said)) = self.uplinks.refused.get(&index)
            && now < *since + AGAIN
            && before == interface
        {
            return Some(said.clone());
        }
        match self.datapath.attach_uplink(interface, mode, abilities) {
            Ok(damaged) => {
                self.uplinks.refused.remove(&index);
                let before = self.uplinks.attached.insert(index, interface.clone());
                if before.is_none() {
                    let (name, mode) = (&interface.name, mode.name());
                    tracing::info!("interface {name}: XDP ({mode}) takes packets of known flows");
                } else if damaged {
                    self.uplinks.repaired.push(Repair::new(
                        RepairKind::Interface,
                        format!("interface {}", interface.name),
                        "portolan's XDP program was detached or replaced",
                    ));
                }
                None
            }
            Err(refusal) => {
                self.uplinks.attached.remove(&index);
                let said = warning(
                    &format!("interface {}", interface.name),
                    &explain(&refusal, mode),
                );
                let known = (now, interface.clone(), said.clone());
                self.uplinks.refused.insert(index, known);
                Some(said)
            }
        }
    }
}
