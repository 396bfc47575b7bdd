// SPDX-License-Identifier: Apache-2.0 OR MIT
//! With `forwarding: auto`, finds out whether netfilter hooks judge forwarded packets. If none
//! does, and no routing rule asks for a mark, packets bypass the stack from a connection's first
//! packet on. If conntrack tracks forwarded packets and is not liberal about TCP sequence numbers,
//! TCP takes the stack.

use std::{io, time::Duration};

use control::{causes::chain, object::Warning};
use linux::{ForwardHooks, Unsuited, conntrack_unsuited, forward_hooks, routing_rules};
use proxy_common::Settings;
use tokio::time::Instant;

/// How often to look at the hooks: the kernel does not say when one is registered. Records that let
/// packets bypass the stack live 13 s, so a new rule holds within 20 s.
const EVERY: Duration = Duration::from_secs(5);

/// The result of the last look at the netfilter hooks.
#[derive(Debug, Default)]
pub(super) struct Stack {
    looked_at: Option<Instant>,
    /// The flags of the node's settings that follow from the hooks.
    pub(super) flags: u32,
}

impl Stack {
    /// Looks at the netfilter hooks when due. Returns warnings for the operator; None if it is too
    /// early.
    pub(super) fn look(&mut self, now: Instant) -> Option<Vec<Warning>> {
        let is_early = |looked_at| now < looked_at + EVERY;
        if self.looked_at.is_some_and(is_early) {
            return None;
        }
        self.looked_at = Some(now);
        let (flags, warning) = judge(&forward_hooks(), conntrack_unsuited());
        self.flags = flags;
        if !routing_rules().is_ok_and(|rules| rules.iter().all(|rule| !rule.by_mark)) {
            self.flags &= !Settings::UNFILTERED;
        }
        Some(Vec::from_iter(warning))
    }
}

fn judge(hooks: &io::Result<ForwardHooks>, unsuited: Option<Unsuited>) -> (u32, Option<Warning>) {
    let (object, reason) = match (hooks, unsuited) {
        (Ok(hooks), _) if hooks.users.is_empty() => return (Settings::UNFILTERED, None),
        (Ok(hooks), Some(one)) if hooks.tracks => (
            one.name,
            format!(
                "it is {}, and connection tracking sees forwarded packets: TCP takes the node's stack, forwarding: auto speeds up UDP only; set it to {} at least, as `portolan init` does",
                one.value, one.wanted
            ),
        ),
        (Ok(_), _) => return (0, None),
        (Err(error), _) => (
            "netfilter",
            format!(
                "its hooks could not be read: {}; TCP takes the node's stack",
                chain(error)
            ),
        ),
    };
    let object = object.to_owned();
    (Settings::TCP_BY_STACK, Some(Warning { object, reason }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hooks(users: &[&str], tracks: bool) -> io::Result<ForwardHooks> {
        Ok(ForwardHooks {
            users: users.iter().map(|user| (*user).to_owned()).collect(),
            tracks,
        })
    }

    const SHORT: Unsuited = Unsuited {
        name: "net.netfilter.nf_conntrack_tcp_timeout_unacknowledged",
        value: 300,
        wanted: 7440,
    };

    #[test]
    fn without_netfilter_hooks_packets_are_unfiltered() {
        let (flags, warning) = judge(&hooks(&[], false), Some(SHORT));
        assert_eq!((flags, warning), (Settings::UNFILTERED, None));
    }

    #[test]
    fn tcp_stays_with_the_stack_if_a_conntrack_timeout_is_too_short() {
        let chain = ["nft_do_chain_ipv4"];
        assert_eq!(judge(&hooks(&chain, false), Some(SHORT)), (0, None));
        assert_eq!(judge(&hooks(&chain, true), None), (0, None));
        let (flags, warning) = judge(&hooks(&chain, true), Some(SHORT));
        assert_eq!(flags, Settings::TCP_BY_STACK);
        let warning = warning.expect("it is said");
        assert_eq!(warning.object, SHORT.name);
        assert!(warning.reason.contains("it is 300") && warning.reason.contains("7440"));
    }

    #[test]
    fn unreadable_netfilter_hooks_count_as_present() {
        let (flags, warning) = judge(&Err(io::Error::other("refused")), None);
        assert_eq!(flags, Settings::TCP_BY_STACK);
        assert!(warning.is_some_and(|warning| warning.reason.contains("refused")));
    }
}
