// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Chains of the node's firewall whose policy drops forwarded packets, portolan's among them: named, and with `acceptForward`
//! given the rules that kube-proxy has in its own chain. Called by `steps`.

use std::{io, time::Duration};

use tokio::time::Instant;

use crate::{
    causes::chain,
    datapath::{ForwardChain, comments, forward_chains, legacy_drops},
    object::Warning,
};

/// How often to look: the kernel says nothing to us, and another program may restore its rules without ours.
const EVERY: Duration = Duration::from_secs(10);

/// When was looked.
#[derive(Debug, Default)]
pub(super) struct ForwardPolicy {
    looked_at: Option<Instant>,
}

impl ForwardPolicy {
    /// Looks if it is time. Returns what the operator should know.
    pub(super) fn look(&mut self, now: Instant, accepts: bool, mark: u32) -> Option<Vec<Warning>> {
        let is_early = |looked_at| now < looked_at + EVERY;
        if self.looked_at.is_some_and(is_early) {
            return None;
        }
        self.looked_at = Some(now);
        let mut warnings = Vec::new();
        match forward_chains() {
            Ok(chains) => {
                let each = chains.iter();
                warnings.extend(each.filter_map(|chain| settle(chain, accepts, mark)));
            }
            Err(error) => warnings.push(unread("nftables", &error)),
        }
        match legacy_drops() {
            Ok(programs) => {
                warnings.extend(programs.into_iter().map(|program| legacy(program, mark)))
            }
            Err(error) => warnings.push(unread("iptables-legacy", &error)),
        }
        Some(warnings)
    }
}

/// Gives a chain the rules that it should have, and no others of ours.
fn settle(forward: &ForwardChain, accepts: bool, mark: u32) -> Option<Warning> {
    let object = format!("nftables chain {forward}");
    let settled = forward.own_rules().and_then(|own| {
        let wanted = accepts && forward.drops();
        let found: Vec<_> = own.iter().map(|rule| rule.comment.clone()).collect();
        let is_settled = if wanted {
            found == comments(mark)
        } else {
            found.is_empty()
        };
        if is_settled {
            return Ok(());
        }
        if wanted {
            forward.accept(mark)?;
            tracing::info!(
                "{object}: its policy drops; rules accept what portolan forwards (acceptForward)"
            );
        }
        if !own.is_empty() {
            forward.remove(&own)?;
        }
        Ok(())
    });
    let reason = match settled {
        Ok(()) if accepts || !forward.drops() => return None,
        Ok(()) => format!(
            "its policy drops packets that the node forwards, so clients of node ports, external IPs and load balancers get no answer unless a rule accepts them; set portolan.acceptForward: true, or accept packets with the mark {mark:#x} and those of established connections there",
        ),
        Err(error) => format!(
            "portolan's rules could not be set: {}; it is tried again every 10 s",
            chain(&error)
        ),
    };
    Some(Warning { object, reason })
}

/// KUBE: the rules of `KUBE-FORWARD`.
fn legacy(program: &str, mark: u32) -> Warning {
    Warning {
        object: format!("{program} chain FORWARD"),
        reason: format!(
            "its policy drops packets that the node forwards, and portolan does not change these rules; run: {program} -I FORWARD -m mark --mark {mark:#x}/{mark:#x} -j ACCEPT; {program} -I FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
        ),
    }
}

fn unread(object: &str, error: &io::Error) -> Warning {
    Warning {
        object: object.to_owned(),
        reason: format!(
            "it is not known whether its chains drop forwarded packets: {}; it is tried again every 10 s",
            chain(error)
        ),
    }
}
