// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The node's firewall rules that concern the masquerade mark. A chain whose policy drops forwarded
//! packets, portolan's included, is named in a warning; with `acceptForward` it gets the rules of
//! kube-proxy's own chain. Rules that kube-proxy left behind may masquerade packets with the mark:
//! a connection that they have translated would break when they are removed.

use std::{io, time::Duration};

use control::{causes::chain, object::Warning};
use linux::{NftChain, comments, legacy_drops, legacy_masquerades_marked, nft_chains};
use proxy_common::masquerade::Marks;
use tokio::time::Instant;

/// How often to read the firewall rules: the kernel sends no message about changes, and another
/// program may restore its own rules without portolan's.
const EVERY: Duration = Duration::from_secs(10);

/// What the last look at the firewall rules has found.
#[derive(Debug, Default)]
pub(super) struct ForwardPolicy {
    looked_at: Option<Instant>,
    /// True if another proxy's rules masquerade packets that have the mark. False if a chain that
    /// drops may need the mark to let a packet pass.
    pub(super) others_masquerade: bool,
}

impl ForwardPolicy {
    /// Reads the firewall rules when due. Returns warnings for the operator; None if it is too
    /// early.
    pub(super) fn look(&mut self, now: Instant, accepts: bool, mark: u32) -> Option<Vec<Warning>> {
        let is_early = |looked_at| now < looked_at + EVERY;
        if self.looked_at.is_some_and(is_early) {
            return None;
        }
        self.looked_at = Some(now);
        let mut warnings = Vec::new();
        let chains = nft_chains().unwrap_or_else(|error| {
            warnings.push(unread("nftables", &error));
            Vec::new()
        });
        let programs = legacy_drops().unwrap_or_else(|error| {
            warnings.push(unread("iptables-legacy", &error));
            Vec::new()
        });
        // Rules that cannot be read count as rules that masquerade: packets pass with either mark
        // then.
        let masquerades = !warnings.is_empty()
            || chains.iter().any(NftChain::masquerades_marked)
            || legacy_masquerades_marked().unwrap_or(true);
        let chains = chains.iter().filter(|chain| chain.gets_forwarded());
        let drops = chains.clone().any(|chain| chain.drops) || !programs.is_empty();
        self.others_masquerade = masquerades && (accepts || !drops);
        let accepted = if self.others_masquerade {
            Marks::beside_rules(mark)
        } else {
            mark
        };
        warnings.extend(chains.filter_map(|chain| settle(chain, accepts, accepted)));
        warnings.extend(programs.into_iter().map(|program| legacy(program, mark)));
        Some(warnings)
    }
}

/// Gives a chain the accepting rules if it should have them, and removes portolan's other rules
/// there. Returns a warning if that fails, or if the chain drops what portolan forwards.
fn settle(forward: &NftChain, accepts: bool, mark: u32) -> Option<Warning> {
    let object = format!("nftables chain {forward}");
    let settled = forward.own_rules().and_then(|own| {
        let wanted = accepts && forward.drops;
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
        Ok(()) if accepts || !forward.drops => return None,
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

/// Returns the warning about a dropping chain of iptables-legacy. KUBE: it recommends the rules of
/// `KUBE-FORWARD`.
fn legacy(program: &str, mark: u32) -> Warning {
    Warning {
        object: format!("{program} chain FORWARD"),
        reason: format!(
            "its policy drops packets that the node forwards, and portolan does not change these rules; run: {program} -I FORWARD -m mark --mark {mark:#x}/{mark:#x} -j ACCEPT; {program} -I FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT. Whether rules accept them already is not read: then this warning means nothing",
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
