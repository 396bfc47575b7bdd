// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Portolan's own part of nf_tables, by nfnetlink: its rules in the chains that forwarded packets
//! pass, those of iptables-nft among them; and a table that has the kernel go on translating the
//! connections that nf_conntrack has as translated, when the rules that translated their first
//! packets are gone. The kernel translates while there is a chain of type nat, and tracks
//! connections while there is a rule that asks for their state. Called by `agent` and `datapath`.

use std::{fmt, io};

use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use netlink_sys::protocols::NETLINK_NETFILTER;

use super::{
    answers::{none_if, text},
    netlink::{Connection, array, attribute, encode, nested},
    nftables::{
        BRIDGE, GENERIC, NEW_CHAIN, NEW_RULE, NEW_TABLE, NftChain, SUBSYSTEM, all_chains, batch,
        compare, expression, family_number, load, named, nft_chains, value, word,
    },
};

const GET_RULE: u16 = SUBSYSTEM << 8 | 7;
const DELETE_RULE: u16 = SUBSYSTEM << 8 | 8;

/// Prefix of the comments of portolan's rules.
const OURS: &str = "portolan: ";

// Attributes of a rule.
const TABLE: u16 = 1;
const CHAIN: u16 = 2;
const HANDLE: u16 = 3;
const EXPRESSIONS: u16 = 4;
const USER_DATA: u16 = 7;

/// Prints family, table and name of the chain, as nft spells them.
impl fmt::Display for NftChain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.family, self.table, self.name)
    }
}

/// A rule in a chain of nf_tables that portolan has made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OwnRule {
    handle: [u8; 8],
    pub comment: String,
}

/// Returns the comments of the two rules that [`NftChain::accept`] makes.
pub fn comments(mark: u32) -> [String; 2] {
    [
        format!("{OURS}masqueraded connections, mark {mark:#x}"),
        format!("{OURS}packets that follow"),
    ]
}

/// Returns all base chains of this network namespace that forwarded packets pass, except those of
/// bridges.
pub fn forward_chains() -> io::Result<Vec<NftChain>> {
    let mut chains = nft_chains()?;
    chains.retain(NftChain::gets_forwarded);
    Ok(chains)
}

impl NftChain {
    /// True if packets that the node's stack forwards pass the chain.
    pub fn gets_forwarded(&self) -> bool {
        self.forward && self.family != BRIDGE
    }

    pub fn own_rules(&self) -> io::Result<Vec<OwnRule>> {
        let mut found = Vec::new();
        let request = self.message(&[]);
        let connection = Connection::open(NETLINK_NETFILTER)?;
        connection.list(GET_RULE, &request, |answer| {
            found.extend(own_rule(answer.get(GENERIC..).unwrap_or_default()));
        })?;
        Ok(found)
    }

    /// Inserts two rules at the beginning of the chain: one accepts packets with all bits of the
    /// mark, the other packets of a connection seen before.
    ///
    /// KUBE: the rules of `KUBE-FORWARD` in mode iptables.
    pub fn accept(&self, mark: u32) -> io::Result<()> {
        let conditions = if self.is_of_iptables() {
            [matches_mark(mark), matches_state()]
        } else {
            [has_mark(mark), has_state()]
        };
        // Each rule is inserted at the beginning, so the last one ends up first.
        let rules = comments(mark).into_iter().zip(conditions).rev();
        let rules = rules.map(|(comment, condition)| {
            let expressions = [condition, expression("counter", &[]), accept()].concat();
            // The format in which nft stores a comment: type, length, text with a final zero byte.
            let mut data = vec![0, comment.len() as u8 + 1];
            data.extend(comment.bytes().chain([0]));
            let attributes = [nested(EXPRESSIONS, &expressions), encode(USER_DATA, &data)];
            (NEW_RULE, NLM_F_CREATE, self.message(&attributes.concat()))
        });
        batch(&Connection::open(NETLINK_NETFILTER)?, rules.collect())
    }

    pub fn remove(&self, rules: &[OwnRule]) -> io::Result<()> {
        let deleted = |rule: &OwnRule| {
            let handle = encode(HANDLE, &rule.handle);
            (DELETE_RULE, 0, self.message(&handle))
        };
        let removed = rules.iter().map(deleted).collect();
        batch(&Connection::open(NETLINK_NETFILTER)?, removed)
    }

    /// True if iptables manages the chain. It refuses tables with expressions that it does not make
    /// itself, so the rules must then be made as iptables makes them.
    fn is_of_iptables(&self) -> bool {
        (self.table.as_str(), self.name.as_str()) == ("filter", "FORWARD")
    }

    /// Returns the payload of a message about the chain.
    fn message(&self, attributes: &[u8]) -> Vec<u8> {
        let generic = [family_number(self.family), 0, 0, 0];
        let (table, chain) = (named(TABLE, &self.table), named(CHAIN, &self.name));
        [&generic, &*table, &chain, attributes].concat()
    }
}

fn own_rule(attributes: &[u8]) -> Option<OwnRule> {
    let handle = array(attributes, HANDLE)?;
    let data = attribute(attributes, USER_DATA)?;
    let comment = match data {
        [0, length, rest @ ..] => text(rest.get(..usize::from(*length))?),
        _ => return None,
    };
    let is_ours = comment.starts_with(OURS);
    is_ours.then_some(OwnRule { handle, comment })
}

/// Encodes the test of register 1 for the bits of `mask`: for all of them, or for any.
fn register_has(mask: u32, all: bool) -> Vec<u8> {
    let masked = [
        word(1, 1),
        word(2, 1),
        word(3, 4),
        value(4, &mask.to_ne_bytes()),
        value(5, &[0; 4]),
    ];
    let wanted = if all { mask } else { 0 };
    let masked = expression("bitwise", &masked.concat());
    [masked, compare(all, &wanted.to_ne_bytes())].concat()
}

/// The bits of the connection states established and related, as both nft and iptables number them.
const ESTABLISHED_RELATED: u16 = 0b110;

fn has_mark(mark: u32) -> Vec<u8> {
    const MARK: u32 = 3;
    [load("meta", MARK), register_has(mark, true)].concat()
}

fn has_state() -> Vec<u8> {
    const STATE: u32 = 0;
    let any = register_has(ESTABLISHED_RELATED.into(), false);
    [load("ct", STATE), any].concat()
}

/// Encodes a match of iptables as an expression of nf_tables, with its revision and its data.
fn matches(name: &str, revision: u32, data: &[u8]) -> Vec<u8> {
    let parts = [named(1, name), word(2, revision), encode(3, data)];
    expression("match", &parts.concat())
}

fn matches_mark(mark: u32) -> Vec<u8> {
    // The data is `struct xt_mark_mtinfo1`: mark, mask, whether inverted; aligned to eight.
    let mut data = [mark.to_ne_bytes(), mark.to_ne_bytes()].concat();
    data.resize(16, 0);
    matches("mark", 1, &data)
}

fn matches_state() -> Vec<u8> {
    // The data is `struct xt_conntrack_mtinfo3`, aligned to eight.
    const LENGTH: usize = 168;
    const FLAGS: usize = 146;
    const STATES: usize = 150;
    const BY_STATE: u16 = 1;
    let mut data = vec![0; LENGTH];
    data[FLAGS..FLAGS + 2].copy_from_slice(&BY_STATE.to_ne_bytes());
    data[STATES..STATES + 2].copy_from_slice(&ESTABLISHED_RELATED.to_ne_bytes());
    matches("conntrack", 3, &data)
}

fn accept() -> Vec<u8> {
    const VERDICT_REGISTER: u32 = 0;
    const ACCEPT: u32 = 1;
    let verdict = nested(2, &word(1, ACCEPT));
    let data = [word(1, VERDICT_REGISTER), nested(2, &verdict)].concat();
    expression("immediate", &data)
}

const DELETE_TABLE: u16 = SUBSYSTEM << 8 | 2;
/// The family of the table, which makes the kernel translate IPv4 and IPv6.
const FAMILY: &str = "inet";
pub(super) const NAME: &str = "portolan";
const POSTROUTING: &str = "postrouting";

/// Makes the table unless it is there. A kernel without nf_tables has no rules that could go: the
/// tables of iptables translate as long as they are registered, even empty ones.
pub fn keep_translations() -> io::Result<()> {
    /// `NF_INET_POST_ROUTING`, and the priority that nft calls srcnat. One hook is enough: the
    /// kernel's part registers all of them.
    const HOOK: [u32; 2] = [4, 100];
    let [hook, priority] = HOOK;
    let chain = [
        named(1, NAME),
        named(3, POSTROUTING),
        nested(4, &[word(1, hook), word(2, priority)].concat()),
        named(7, "nat"),
    ];
    let rule = [
        named(1, NAME),
        named(2, POSTROUTING),
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
