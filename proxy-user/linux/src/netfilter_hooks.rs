// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which netfilter hooks get the packets that this network namespace forwards. Called by `agent`.

use std::{collections::BTreeSet, fs, io};

use netlink_sys::protocols::NETLINK_NETFILTER;

use super::{
    answers::{is_one_of, text},
    iptables::legacy_tables,
    netlink::{Connection, attribute, encode},
    nftables::{BRIDGE, GENERIC, NETDEV, NftChain, all_chains},
};

/// `NFNL_SUBSYS_HOOK`, `NFNL_MSG_HOOK_GET`: Linux 5.14, with CONFIG_NETFILTER_NETLINK_HOOK.
const GET_HOOKS: u16 = 12 << 8;
/// Numbers from the kernel's `enum nfnl_hook_attributes`.
const HOOK_NUMBER: u16 = 1;
const FUNCTION: u16 = 4;
const MODULE: u16 = 5;

/// For each family, the numbers of the hooks that forwarded packets pass. Families: `NFPROTO_IPV4`,
/// `NFPROTO_IPV6`, `NFPROTO_BRIDGE`. Hooks: prerouting, input, forward, output and postrouting are
/// 0 to 4. A frame between two ports of the node's bridge passes 0, 2 and 4; a frame that the node
/// routes from or to a port also passes 1 and 3.
const HOOKS: [(u8, &[u32]); 3] = [(2, &[0, 2, 4]), (10, &[0, 2, 4]), (7, &[0, 1, 2, 3, 4])];

/// What is registered at the netfilter hooks that forwarded packets pass.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ForwardHooks {
    /// Kernel functions or chains that get forwarded packets, each once.
    pub users: BTreeSet<String>,
    /// True if connection tracking is or may be among the users.
    pub tracks: bool,
}

/// Returns the functions and chains that get forwarded packets in this network namespace. If the
/// kernel cannot list hooks, returns everything that is known to use them: chains of nf_tables,
/// tables of iptables, and IPVS.
pub fn forward_hooks() -> io::Result<ForwardHooks> {
    match listed() {
        Err(error) if is_unknown(&error) => guessed(),
        listed => {
            // The kernel lists hooks of one interface only if it is named.
            let mut hooks = listed?;
            hooks.users.extend(chains(is_of_interface)?);
            Ok(hooks)
        }
    }
}

/// How long nf_conntrack must keep an idle TCP connection of which it has not seen the last
/// acknowledgement, in seconds. RFC 5382 (REQ-5): 2 hours and 4 minutes, so that keepalives
/// (RFC 1122: after two hours) hold it.
pub const UNACKNOWLEDGED: u32 = 2 * 3600 + 4 * 60;

/// A parameter of nf_conntrack with an unsuitable value: connections of which nf_conntrack sees
/// only some segments would be lost or refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Unsuited {
    /// The parameter's name for sysctl(8).
    pub name: &'static str,
    pub value: u32,
    /// The least value that suits.
    pub wanted: u32,
}

/// Returns the first parameter of this network namespace's nf_conntrack that does not suit
/// connections past the stack; None if all suit, or if nf_conntrack is not loaded.
pub fn conntrack_unsuited() -> Option<Unsuited> {
    let read = |name: &str| -> Option<u32> {
        let text = fs::read_to_string(format!("/proc/sys/net/netfilter/{name}")).ok()?;
        text.trim().parse().ok()
    };
    unsuited(
        read("nf_conntrack_tcp_be_liberal")?,
        read("nf_conntrack_tcp_timeout_unacknowledged")?,
        read("nf_conntrack_tcp_timeout_established")?,
    )
}

/// True if this network namespace's nf_conntrack does not see what a bridge forwards: br_netfilter
/// hands it no packets.
pub fn conntrack_misses_bridges() -> bool {
    let bridged = fs::read_to_string("/proc/sys/net/bridge/bridge-nf-call-iptables");
    fs::exists("/proc/sys/net/netfilter/nf_conntrack_count").unwrap_or(false)
        && bridged.map_or(true, |word| word.trim() == "0")
}

/// Past the stack, conntrack sees no acknowledgement of data: the timeout `unacknowledged` then
/// replaces `established` if it is shorter (`nf_conntrack_tcp_packet` in Linux).
fn unsuited(liberal: u32, unacknowledged: u32, established: u32) -> Option<Unsuited> {
    let least = established.min(UNACKNOWLEDGED);
    let unsuited = |name, value, wanted| Unsuited {
        name,
        value,
        wanted,
    };
    if liberal == 0 {
        return Some(unsuited("net.netfilter.nf_conntrack_tcp_be_liberal", 0, 1));
    }
    let name = "net.netfilter.nf_conntrack_tcp_timeout_unacknowledged";
    (unacknowledged < least).then(|| unsuited(name, unacknowledged, least))
}

fn is_unknown(error: &io::Error) -> bool {
    is_one_of(
        &[libc::EINVAL, libc::EOPNOTSUPP, libc::EPROTONOSUPPORT],
        error,
    )
}

fn listed() -> io::Result<ForwardHooks> {
    let connection = Connection::open(NETLINK_NETFILTER)?;
    let mut hooks = ForwardHooks::default();
    for (family, numbers) in HOOKS {
        for number in numbers {
            let attribute = encode(HOOK_NUMBER, &number.to_be_bytes());
            let request = [&[family, 0, 0, 0], &*attribute].concat();
            let asked = connection.list(GET_HOOKS, &request, |answer| {
                if let Some(function) = answer.get(GENERIC..).and_then(function) {
                    hooks.add(function);
                }
            });
            match asked {
                // A kernel without bridge filters, or without IPv6.
                Err(error) if is_unknown(&error) && family != 2 => {}
                asked => asked?,
            }
        }
    }
    Ok(hooks)
}

/// Returns the function of a hook, with its module in brackets if it has one; None if it has no
/// name.
fn function(attributes: &[u8]) -> Option<String> {
    let name = text(attribute(attributes, FUNCTION)?);
    Some(match attribute(attributes, MODULE).map(text) {
        Some(module) if !module.is_empty() => format!("{name} [{module}]"),
        _ => name,
    })
}

impl ForwardHooks {
    /// Adds a hook's function. Those of br_netfilter are left out: they only hand bridged packets
    /// to the hooks of IP.
    fn add(&mut self, function: String) {
        if function.starts_with("br_nf_") {
            return;
        }
        self.tracks |= function.contains("conntrack");
        self.users.insert(function);
    }
}

fn guessed() -> io::Result<ForwardHooks> {
    let mut users = chains(sees_forwarded)?;
    users.extend(legacy_tables());
    if has_ipvs_services() {
        users.insert("IPVS".to_owned());
    }
    Ok(ForwardHooks {
        // Any of the users may use connection tracking.
        tracks: !users.is_empty(),
        users,
    })
}

/// Returns the chains of nf_tables that `counts` accepts, as nft spells them.
fn chains(counts: impl Fn(&NftChain) -> bool) -> io::Result<BTreeSet<String>> {
    // Portolan's own table counts as well: replies of the connections that it keeps translating
    // need the stack.
    let chains = all_chains()?;
    let chains = chains.iter().filter(|chain| counts(chain));
    Ok(chains
        .map(|chain| format!("nftables chain {chain}"))
        .collect())
}

/// Whether a chain is at the ingress or egress of one interface: behind tc's ingress, where packets
/// past the stack do not come.
fn is_of_interface(chain: &NftChain) -> bool {
    /// `NF_INET_INGRESS`.
    const INGRESS: u32 = 5;
    chain
        .hook
        .is_some_and(|hook| chain.family == NETDEV || hook == INGRESS)
}

fn sees_forwarded(chain: &NftChain) -> bool {
    const FORWARDED: [u32; 3] = [0, 2, 4];
    is_of_interface(chain)
        || chain
            .hook
            .is_some_and(|hook| chain.family == BRIDGE || FORWARDED.contains(&hook))
}

/// Whether IPVS has a service in this network namespace.
pub fn has_ipvs_services() -> bool {
    has_ipvs(&fs::read_to_string("/proc/net/ip_vs").unwrap_or_default())
}

/// Whether IPVS has a service, by the text of /proc/net/ip_vs: its first three lines are headings.
fn has_ipvs(table: &str) -> bool {
    table.lines().count() > 3
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::tests::cut_off_anywhere;

    #[test]
    fn a_netfilter_hook_is_parsed_with_its_module() {
        let name = encode(FUNCTION, b"nf_nat_ipv4_pre_routing\0");
        assert_eq!(function(&name).as_deref(), Some("nf_nat_ipv4_pre_routing"));
        let both = [name, encode(MODULE, b"nf_nat\0")].concat();
        let expected = "nf_nat_ipv4_pre_routing [nf_nat]";
        assert_eq!(function(&both).as_deref(), Some(expected));
        cut_off_anywhere(&both, |bytes| _ = function(bytes));
    }

    #[test]
    fn br_netfilter_hooks_are_ignored_and_conntracks_are_recognised() {
        let mut hooks = ForwardHooks::default();
        hooks.add("br_nf_pre_routing [br_netfilter]".to_owned());
        assert_eq!(hooks, ForwardHooks::default());
        hooks.add("nft_do_chain_ipv4 [nf_tables]".to_owned());
        assert!(!hooks.tracks && hooks.users.len() == 1);
        hooks.add("ipv4_conntrack_in [nf_conntrack]".to_owned());
        assert!(hooks.tracks);
    }

    #[test]
    fn only_chains_at_hooks_of_forwarded_packets_are_considered() {
        let chain = |family, hook| NftChain {
            family,
            hook,
            ..NftChain::default()
        };
        for (family, hook, counts) in [
            ("ip", Some(0), true),
            ("inet", Some(2), true),
            ("ip6", Some(4), true),
            ("ip", Some(1), false),
            ("ip", None, false),
            (BRIDGE, Some(1), true),
            (BRIDGE, None, false),
            (NETDEV, Some(1), true),
            ("inet", Some(5), true),
        ] {
            let sees = sees_forwarded(&chain(family, hook));
            assert_eq!(sees, counts, "{family} {hook:?}");
        }
    }

    #[test]
    fn ipvs_is_in_use_only_if_it_has_a_service() {
        let head = "IP Virtual Server version 1.2.1 (size=4096)\nProt LocalAddress:Port Scheduler Flags\n  -> RemoteAddress:Port\n";
        assert!(!has_ipvs("") && !has_ipvs(head));
        assert!(has_ipvs(&format!("{head}TCP  0A600001:0050 rr\n")));
    }

    #[test]
    fn strict_or_short_lived_conntrack_settings_are_reported() {
        let name = |values: [u32; 3]| {
            let [liberal, unacknowledged, established] = values;
            unsuited(liberal, unacknowledged, established).map(|one| (one.name, one.wanted))
        };
        assert!(name([0, 432_000, 432_000]).is_some_and(|(name, _)| name.ends_with("be_liberal")));
        let short = name([1, 300, 86_400]).expect("too short");
        assert!(short.0.ends_with("unacknowledged") && short.1 == 7440);
        assert_eq!(name([1, 7440, 86_400]), None);
        assert_eq!(name([1, 600, 600]), None);
    }

    #[test]
    fn the_kernel_lists_hooks_chains_and_connections() {
        _ = forward_hooks().expect("hooks");
        _ = all_chains().expect("chains");
        crate::tracked(drop).expect("connections");
    }
}
