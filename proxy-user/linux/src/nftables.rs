// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Lists the chains of nf_tables in this network namespace by nfnetlink, those of iptables-nft
//! included, and encodes messages to nf_tables: tables, chains, rules and their expressions. Called
//! by `agent`, `portolan check`, `netfilter_hooks` and the other files about nf_tables.

use std::io;

use netlink_packet_core::NLM_F_ACK;
use netlink_sys::protocols::NETLINK_NETFILTER;

use super::{
    answers::{none_if, text},
    netlink::{Connection, array, attribute, encode, nested},
    nft_own,
};

const GET_CHAIN: u16 = SUBSYSTEM << 8 | 4;
/// Length of `struct nfgenmsg`, with which every message begins; its first byte is the family.
pub(super) const GENERIC: usize = 4;

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct NftChain {
    /// The family as nft spells it: `ip`, `ip6`, `inet`, `bridge`.
    pub family: &'static str,
    pub table: String,
    pub name: String,
    /// True for a base chain at the hook `forward`.
    pub forward: bool,
    /// True for a base chain that drops packets that none of its rules accepts.
    pub drops: bool,
    /// The number of a base chain's hook in the kernel; None if it is no base chain.
    pub hook: Option<u32>,
}

/// Returns every chain of nf_tables but those of portolan's own table; none on a kernel without
/// nf_tables.
pub fn nft_chains() -> io::Result<Vec<NftChain>> {
    let mut chains = all_chains()?;
    chains.retain(|chain| chain.table != nft_own::NAME);
    Ok(chains)
}

pub(super) fn all_chains() -> io::Result<Vec<NftChain>> {
    let Some(connection) = Connection::open_if_known(NETLINK_NETFILTER)? else {
        return Ok(Vec::new());
    };
    let mut found = Vec::new();
    let asked = connection.list(GET_CHAIN, &[0; GENERIC], |answer| {
        found.extend(answer.split_at_checked(GENERIC).and_then(chain));
    });
    none_if(&[libc::EINVAL, libc::EOPNOTSUPP], asked)?;
    Ok(found)
}

impl NftChain {
    /// True for a chain in which kube-proxy masquerades packets that have its mark.
    pub fn masquerades_marked(&self) -> bool {
        self.name == KUBE_POSTROUTING
            || (self.table.as_str(), self.name.as_str()) == ("kube-proxy", "masquerading")
    }
}

/// The chain of kube-proxy's iptables mode, and of kubelets older than 1.28, that masquerades
/// marked packets.
pub(super) const KUBE_POSTROUTING: &str = "KUBE-POSTROUTING";

/// The family of chains for the frames that a bridge forwards.
pub(super) const BRIDGE: &str = "bridge";

/// The family of chains at one interface's ingress or egress.
pub(super) const NETDEV: &str = "netdev";

/// Families whose chains forwarded packets pass, each as number and name: `NFPROTO_INET`,
/// `NFPROTO_IPV4`, `NFPROTO_NETDEV`, `NFPROTO_BRIDGE` and `NFPROTO_IPV6`. ARP's are left out.
const FAMILIES: [(u8, &str); 5] = [
    (1, "inet"),
    (2, "ip"),
    (5, NETDEV),
    (7, BRIDGE),
    (10, "ip6"),
];

/// Returns the number of a family in netlink messages.
pub(super) fn family_number(family: &str) -> u8 {
    let found = FAMILIES.iter().find(|(_, name)| *name == family);
    found.map_or(0, |(number, _)| *number)
}

/// Returns the name of a family; None if forwarded packets pass no chain of it.
pub(super) fn family_name(number: u8) -> Option<&'static str> {
    let found = FAMILIES.iter().find(|(meant, _)| *meant == number);
    found.map(|(_, name)| *name)
}

fn chain((header, attributes): (&[u8], &[u8])) -> Option<NftChain> {
    const TABLE: u16 = 1;
    const NAME: u16 = 3;
    const HOOK: u16 = 4;
    const POLICY: u16 = 5;
    const HOOK_NUMBER: u16 = 1;
    const FORWARD: u32 = 2;
    const DROP: u32 = 0;
    let family = family_name(*header.first()?)?;
    // Numbers of nf_tables are in network byte order.
    let number = |attributes, kind| array(attributes, kind).map(u32::from_be_bytes);
    let place = attribute(attributes, HOOK).unwrap_or_default();
    let hook = number(place, HOOK_NUMBER);
    Some(NftChain {
        family,
        table: text(attribute(attributes, TABLE)?),
        name: text(attribute(attributes, NAME)?),
        forward: hook == Some(FORWARD),
        drops: hook.is_some() && number(attributes, POLICY) == Some(DROP),
        hook,
    })
}

/// `NFNL_SUBSYS_NFTABLES`.
pub(super) const SUBSYSTEM: u16 = 10;
pub(super) const NEW_TABLE: u16 = SUBSYSTEM << 8;
pub(super) const NEW_CHAIN: u16 = SUBSYSTEM << 8 | 3;
pub(super) const NEW_RULE: u16 = SUBSYSTEM << 8 | 6;
const BATCH_BEGIN: u16 = 0x10;
const BATCH_END: u16 = 0x11;

/// Sends all messages (kind, flags, payload) as one transaction: all of them take effect, or none.
pub(super) fn batch(connection: &Connection, messages: Vec<(u16, u16, Vec<u8>)>) -> io::Result<()> {
    let bound = [&[0, 0], &SUBSYSTEM.to_be_bytes()[..]].concat();
    let acknowledged = messages.len();
    let mut all = vec![(BATCH_BEGIN, 0, bound.clone())];
    let ask = |(kind, flags, payload)| (kind, flags | NLM_F_ACK, payload);
    all.extend(messages.into_iter().map(ask));
    all.push((BATCH_END, 0, bound));
    connection.send_all(&all, acknowledged)
}

/// Encodes an attribute whose value is a text.
pub(super) fn named(kind: u16, text: &str) -> Vec<u8> {
    encode(kind, &[text.as_bytes(), &[0]].concat())
}

/// Encodes an attribute whose value is a number.
pub(super) fn word(kind: u16, value: u32) -> Vec<u8> {
    encode(kind, &value.to_be_bytes())
}

/// Encodes an attribute whose value is compared with a register, byte by byte.
pub(super) fn value(kind: u16, value: &[u8]) -> Vec<u8> {
    nested(kind, &encode(1, value))
}

/// Encodes the expression that loads a property of the packet into register 1. `name`: of the
/// expression; `key`: the property's number.
pub(super) fn load(name: &str, key: u32) -> Vec<u8> {
    expression(name, &[word(1, 1), word(2, key)].concat())
}

/// Encodes the test whether register 1 equals these bytes, or whether it differs.
pub(super) fn compare(equal: bool, bytes: &[u8]) -> Vec<u8> {
    let compared = [word(1, 1), word(2, u32::from(!equal)), value(3, bytes)];
    expression("cmp", &compared.concat())
}

/// Encodes one expression of a rule, by name and attributes.
pub(super) fn expression(name: &str, data: &[u8]) -> Vec<u8> {
    nested(1, &[named(1, name), nested(2, data)].concat())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::tests::cut_off_anywhere;

    fn message(hook: Option<u32>, policy: u32) -> Vec<u8> {
        let mut bytes = [encode(1, b"filter\0"), encode(3, b"FORWARD\0")].concat();
        if let Some(hook) = hook {
            bytes.extend(nested(4, &encode(1, &hook.to_be_bytes())));
            bytes.extend(encode(5, &policy.to_be_bytes()));
        }
        bytes
    }

    #[test]
    fn an_nftables_chain_is_parsed_with_its_hook_and_policy() {
        let read = |family, bytes: &[u8]| chain((&[family, 0, 0, 0], bytes));
        let found = read(2, &message(Some(2), 0)).expect("a chain");
        let named = (found.family, &*found.table, &*found.name);
        assert_eq!(named, ("ip", "filter", "FORWARD"));
        assert!(found.forward && found.drops && found.gets_forwarded());
        let accepts = read(10, &message(Some(2), 1)).expect("a chain");
        assert!(accepts.forward && !accepts.drops);
        assert!(!read(1, &message(Some(1), 0)).expect("a chain").forward);
        let plain = read(1, &message(None, 0)).expect("a chain");
        assert!(!plain.forward && !plain.drops);
        let bridged = read(7, &message(Some(2), 0)).expect("a chain");
        assert_eq!(bridged.family, BRIDGE);
        assert!(bridged.forward && !bridged.gets_forwarded());
        assert_eq!(read(3, &message(Some(2), 0)), None, "of ARP");
        let whole = message(Some(2), 0);
        cut_off_anywhere(&whole, |bytes| _ = read(2, bytes));
    }

    #[test]
    fn kube_proxys_masquerading_chains_are_recognised_by_table_and_name() {
        let of = |table: &str, name: &str| NftChain {
            table: table.to_owned(),
            name: name.to_owned(),
            ..NftChain::default()
        };
        for (table, name, does) in [
            ("nat", "KUBE-POSTROUTING", true),
            ("kube-proxy", "masquerading", true),
            ("nat", "POSTROUTING", false),
            ("mine", "masquerading", false),
        ] {
            assert_eq!(of(table, name).masquerades_marked(), does, "{table} {name}");
        }
    }
}
