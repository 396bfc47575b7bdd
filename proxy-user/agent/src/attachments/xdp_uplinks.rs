// SPDX-License-Identifier: Apache-2.0 OR MIT
//! With `xdp: native` or `generic`: keeps the XDP program attached at uplinks where it can work,
//! and warns why it is not attached at others. `xdp_eligibility` decides. Called by `attachments`,
//! once a second.

use std::{collections::BTreeMap, time::Duration};

use control::{causes::chain, object::Warning, warnings::Topic};
use datapath::{Repair, RepairKind, XdpMode, XdpRefusal};
use linux::interfaces::Interface;
use proxy_common::xdp::Abilities;
use tokio::time::Instant;

use super::{Attachments, foreign_programs, redirect_eligibility::Routing, xdp_eligibility};
use crate::agent::Shared;

/// How long to wait before another attempt after a driver has refused the XDP program: with some
/// drivers each attempt interrupts the traffic.
const AGAIN: Duration = Duration::from_secs(60);

/// The state of uplinks, kept between two checks.
#[derive(Debug, Default)]
pub(super) struct Uplinks {
    /// Uplinks that this run has attached XDP to, as they were then. Key: interface index.
    attached: BTreeMap<u32, Interface>,
    /// Uplinks where the driver or another program prevented attaching XDP. Key: interface index.
    /// Value: when that was, the interface as it was then, and the warning.
    refused: BTreeMap<u32, (Instant, Interface, Warning)>,
    /// Detached or replaced XDP programs that were put back, and that the next repair will report.
    pub(super) repaired: Vec<Repair>,
}

impl Attachments {
    /// Attaches XDP to uplinks that should have it, detaches it from others, and warns about
    /// uplinks without it. `served`: whether the first sync is complete.
    pub(super) fn look_at_uplinks(&mut self, shared: &mut Shared, served: bool) {
        // The XDP programs of the previous maps are still attached, and continue to serve.
        if !served || shared.datapath.predecessors().is_some() {
            return;
        }
        let mut wanted = Vec::new();
        let mut said = Vec::new();
        if let Some(mode) = shared.options.xdp {
            (wanted, said) = self.judge_uplinks(shared, mode);
        }
        for index in shared.datapath.uplinks() {
            if wanted.iter().all(|(interface, _)| interface.index != index) {
                self.uplinks.attached.remove(&index);
                said.extend(shared.datapath.detach_uplink(index).err().map(|error| {
                    warning(&format!("interface with index {index}"), &chain(&error))
                }));
            }
        }
        let names: Vec<_> = shared.interfaces.iter().map(|one| one.index).collect();
        self.uplinks
            .refused
            .retain(|index, _| names.contains(index));
        if let Some(mode) = shared.options.xdp {
            for (interface, abilities) in wanted {
                said.extend(self.attach_uplink(shared, &interface, mode, abilities));
            }
        }
        let attached = self.uplinks.attached.len();
        let state = &shared.metrics.state;
        state.with_xdp.set(attached as i64);
        state.without_xdp.set(said.len() as i64);
        said.sort_unstable();
        said.dedup();
        shared.warnings.replace(Topic::Uplinks, said);
    }

    /// Returns the interfaces that should get the XDP program, with what it may do there; and
    /// warnings about uplinks that should not get it, or where it can only receive.
    fn judge_uplinks(
        &self,
        shared: &Shared,
        mode: XdpMode,
    ) -> (Vec<(Interface, Abilities)>, Vec<Warning>) {
        let routing = Routing::read();
        let attached = self.interfaces.attached.values();
        let candidates = attached.filter(|one| one.uplink);
        let seen = foreign_programs::seen(&shared.datapath, candidates);
        let (mut wanted, mut said) = (Vec::new(), Vec::new());
        for (interface, programs) in seen {
            let lro = linux::has_lro(&interface.name).map_err(|error| chain(&error));
            let all = &shared.interfaces;
            let mut reason = xdp_eligibility::reason(interface, all, &programs, &routing, &lro);
            if reason.is_none() {
                let told = linux::takes_redirected(interface.index).ok();
                let is_native = mode == XdpMode::Native;
                let abilities = xdp_eligibility::abilities(interface, is_native, told);
                wanted.push((interface.clone(), abilities));
                reason = xdp_eligibility::limit(abilities);
            }
            let object = format!("interface {}", interface.name);
            said.extend(reason.map(|reason| warning(&object, &reason)));
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
        shared: &mut Shared,
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
        match shared.datapath.attach_uplink(interface, mode, abilities) {
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

fn explain(refusal: &XdpRefusal, mode: XdpMode) -> String {
    match refusal {
        XdpRefusal::Taken(other) => {
            format!("{other} is at its XDP hook, which takes one program; it is left alone")
        }
        XdpRefusal::Refused(error) if mode == XdpMode::Native => format!(
            "its driver does not take a native XDP program: {}; it may lack it, or want a smaller MTU, fewer queues or other \
             offloads (the kernel's log may say which), or use `xdp: generic`",
            chain(error)
        ),
        XdpRefusal::Refused(error) => {
            format!("the kernel does not take the program: {}", chain(error))
        }
    }
}

fn warning(object: &str, reason: &str) -> Warning {
    Warning {
        object: object.to_owned(),
        reason: format!("packets take tc, XDP does not take them: {reason}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_xdp_refusal_names_a_remedy_or_the_program_attached_there() {
        let refused = XdpRefusal::Refused(std::io::Error::from_raw_os_error(libc::EOPNOTSUPP));
        assert!(explain(&refused, XdpMode::Native).contains("xdp: generic"));
        assert!(!explain(&refused, XdpMode::Generic).contains("xdp: generic"));
        let taken = XdpRefusal::Taken("program 7 (katran)".into());
        assert!(explain(&taken, XdpMode::Native).contains("program 7 (katran)"));
    }
}
