// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whether connection tracking gets the packets that this network namespace forwards, whether it
//! suits connections past the stack, and whether IPVS is in use. Called by `agent`.

use std::{fs, io};

use netlink_sys::protocols::NETLINK_NETFILTER;

use super::{
    answers::{is_one_of, text},
    netlink::{Connection, attribute, encode},
    nftables::GENERIC,
};

/// `NFNL_SUBSYS_HOOK`, `NFNL_MSG_HOOK_GET`, with CONFIG_NETFILTER_NETLINK_HOOK.
const GET_HOOKS: u16 = 12 << 8;
/// Numbers from the kernel's `enum nfnl_hook_attributes`.
const HOOK_NUMBER: u16 = 1;
const FUNCTION: u16 = 4;
const MODULE: u16 = 5;

const IPV4: u8 = 2;
/// `NFPROTO_IPV4`, `NFPROTO_IPV6` and `NFPROTO_BRIDGE`.
const FAMILIES: [u8; 3] = [IPV4, 10, 7];
/// The number of the first hook of these families: connection tracking begins there.
const PREROUTING: u32 = 0;

/// Whether connection tracking gets packets that this network namespace forwards. True as well if
/// the kernel cannot list hooks.
pub fn tracks_forwarded() -> io::Result<bool> {
    match listed() {
        Err(error) if is_unknown(&error) => Ok(true),
        listed => listed,
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

fn listed() -> io::Result<bool> {
    let connection = Connection::open(NETLINK_NETFILTER)?;
    let mut tracks = false;
    for family in FAMILIES {
        let attribute = encode(HOOK_NUMBER, &PREROUTING.to_be_bytes());
        let request = [&[family, 0, 0, 0], &*attribute].concat();
        let asked = connection.list(GET_HOOKS, &request, |answer| {
            tracks |= answer.get(GENERIC..).is_some_and(is_conntrack);
        });
        match asked {
            // A kernel without bridge filters, or without IPv6.
            Err(error) if is_unknown(&error) && family != IPV4 => {}
            asked => asked?,
        }
    }
    Ok(tracks)
}

/// Whether a hook's function is connection tracking's, by its own name or its module's.
fn is_conntrack(attributes: &[u8]) -> bool {
    let mut names = [FUNCTION, MODULE].into_iter();
    names.any(|kind| {
        attribute(attributes, kind).is_some_and(|name| text(name).contains("conntrack"))
    })
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
    fn connection_tracking_is_known_by_a_hooks_function_or_module() {
        for (name, module, is) in [
            ("ipv4_conntrack_in", "", true),
            ("nf_confirm", "nf_conntrack", true),
            ("nft_do_chain_ipv4", "nf_tables", false),
            ("br_nf_pre_routing", "br_netfilter", false),
        ] {
            let hook = [(FUNCTION, name), (MODULE, module)];
            let hook = hook.map(|(kind, text)| encode(kind, format!("{text}\0").as_bytes()));
            let hook = hook.concat();
            assert_eq!(is_conntrack(&hook), is, "{name}");
            cut_off_anywhere(&hook, |bytes| _ = is_conntrack(bytes));
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
        _ = tracks_forwarded().expect("hooks");
        _ = crate::nft_chains().expect("chains");
        crate::tracked(drop).expect("connections");
    }
}
