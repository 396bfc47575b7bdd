// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A table of nf_tables that has the kernel go on translating the connections that nf_conntrack has
//! as translated, when the rules that translated their first packets are gone. The kernel
//! translates while there is a chain of type nat, and tracks connections while there is a rule that
//! asks for their state. Called by `datapath`.

use std::io;

use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use netlink_sys::protocols::NETLINK_NETFILTER;

use super::{
    answers::none_if,
    netlink::{Connection, nested},
    nft_encode::{NEW_CHAIN, NEW_RULE, NEW_TABLE, SUBSYSTEM, batch, named, word},
    nft_forward::{accept, has_state},
    nftables::{all_chains, family_number},
};

const DELETE_TABLE: u16 = SUBSYSTEM << 8 | 2;
/// The family of the table, which makes the kernel translate IPv4 and IPv6.
const FAMILY: &str = "inet";
pub(super) const NAME: &str = "portolan";
const CHAIN: &str = "postrouting";

/// Makes the table unless it is there. A kernel without nf_tables has no rules that could go: the
/// tables of iptables translate as long as they are registered, even empty ones.
pub fn keep_translations() -> io::Result<()> {
    /// `NF_INET_POST_ROUTING`, and the priority that nft calls srcnat. One hook is enough: the
    /// kernel's part registers all of them.
    const HOOK: [u32; 2] = [4, 100];
    let [hook, priority] = HOOK;
    let chain = [
        named(1, NAME),
        named(3, CHAIN),
        nested(4, &[word(1, hook), word(2, priority)].concat()),
        named(7, "nat"),
    ];
    let rule = [
        named(1, NAME),
        named(2, CHAIN),
        nested(4, &[has_state(), accept()].concat()),
    ];
    let made = tell(vec![
        (NEW_TABLE, NLM_F_CREATE | NLM_F_EXCL, named(1, NAME)),
        (NEW_CHAIN, NLM_F_CREATE, chain.concat()),
        (NEW_RULE, NLM_F_CREATE, rule.concat()),
    ]);
    none_if(&[libc::EEXIST, libc::EINVAL, libc::EOPNOTSUPP], made).map(drop)
}

/// Removes the table; true if it was there.
pub fn end_translations() -> io::Result<bool> {
    Ok(has_translations()? && tell(vec![(DELETE_TABLE, 0, named(1, NAME))]).map(|()| true)?)
}

/// True if the table is there.
pub fn has_translations() -> io::Result<bool> {
    let chains = all_chains()?;
    Ok(chains.iter().any(|chain| chain.table == NAME))
}

fn tell(messages: Vec<(u16, u16, Vec<u8>)>) -> io::Result<()> {
    let header = [family_number(FAMILY), 0, 0, 0];
    let payload = |attributes: Vec<u8>| [&header[..], &attributes].concat();
    let messages = messages.into_iter();
    let messages = messages.map(|(kind, flags, attributes)| (kind, flags, payload(attributes)));
    batch(&Connection::open(NETLINK_NETFILTER)?, messages.collect())
}
