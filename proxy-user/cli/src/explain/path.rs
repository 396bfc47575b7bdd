// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Says whether the client's packets take the node's stack or leave past it (`forwarding: auto`),
//! and why. Pure; the facts are read by `look`.

use proxy_common::{
    Protocol,
    flow::{
        Signals,
        offload::{Consent, consent},
    },
};

/// What decides about the path of packets that come in by an interface.
#[derive(Clone, Copy, Debug)]
pub(super) struct PathFacts {
    /// True if the agent permits the interface's packets to leave past the stack: never with
    /// `forwarding: stack`.
    pub(super) permitted: bool,
    /// [`proxy_common::Settings::flags`].
    pub(super) flags: u32,
    pub(super) protocol: Protocol,
    /// True if the packet belongs to a flow of which the stack has let a packet pass lately.
    pub(super) recorded: bool,
}

impl PathFacts {
    /// What the programs decide about a packet in the middle of a connection.
    fn consent(&self) -> Consent {
        consent(self.flags, self.protocol, Signals::NONE)
    }

    /// Returns whether nothing in the stack judges the packets, so that even a flow's first packet
    /// bypasses the stack.
    pub(super) fn is_free(&self) -> bool {
        self.permitted && self.consent() == Consent::Free
    }

    /// Returns the path in words; None if every packet takes the stack.
    pub(super) fn describe(&self) -> Option<&'static str> {
        if !self.permitted {
            return None;
        }
        Some(match (self.consent(), self.recorded) {
            (Consent::Free, _) => {
                "past the node's stack, in which nothing judges forwarded packets"
            }
            (Consent::Stack, _) if self.protocol == Protocol::TCP => {
                "by the node's stack: nf_conntrack_tcp_be_liberal or a timeout of nf_conntrack does not suit (`portolan warnings`)"
            }
            (Consent::Stack, _) => "by the node's stack, as all of SCTP",
            (_, true) => "past the node's stack, which let one pass within the last seconds",
            (_, false) => {
                "by the node's stack; once it has let one pass each way, the next ones leave past it"
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proxy_common::Settings;

    const TCP: PathFacts = PathFacts {
        permitted: true,
        flags: 0,
        protocol: Protocol::TCP,
        recorded: false,
    };

    fn said(facts: PathFacts) -> &'static str {
        facts.describe().expect("a path")
    }

    #[test]
    fn without_permission_to_redirect_no_path_past_the_stack_is_described() {
        let facts = PathFacts {
            permitted: false,
            flags: Settings::UNFILTERED,
            ..TCP
        };
        assert_eq!(facts.describe(), None);
        assert!(!facts.is_free());
    }

    #[test]
    fn the_beginning_is_the_stacks_unless_nothing_judges_it() {
        assert!(said(TCP).starts_with("by the node's stack; once"));
        let recorded = PathFacts {
            recorded: true,
            ..TCP
        };
        assert!(said(recorded).starts_with("past the node's stack, which let"));
        assert!(!recorded.is_free());
        let free = PathFacts {
            flags: Settings::UNFILTERED,
            ..TCP
        };
        assert!(free.is_free() && said(free).starts_with("past"));
    }

    #[test]
    fn protocols_that_stay_with_the_stack_are_named() {
        let strict = PathFacts {
            flags: Settings::TCP_BY_STACK,
            recorded: true,
            ..TCP
        };
        assert!(said(strict).contains("be_liberal"));
        let udp = PathFacts {
            protocol: Protocol::UDP,
            ..strict
        };
        assert!(said(udp).starts_with("past"));
        let sctp = PathFacts {
            protocol: Protocol::SCTP,
            ..TCP
        };
        assert!(said(sctp).contains("SCTP"));
    }
}
