// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Has nf_tables report the rules that one connection's packets meet (nft's `meta nftrace set 1`,
//! as in `nft monitor trace`). The tables that this needs belong to a netlink socket: the kernel
//! removes them when the process ends, however it ends. Called by `portolan explain --follow`.

use std::{collections::BTreeSet, io, net::IpAddr};

use netlink_packet_core::NLM_F_CREATE;
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_NETFILTER};

use super::{
    answers::{none_if, text},
    netlink::{self, Connection, array, attribute, family_and_octets, nested},
    nft_own,
    nftables::{
        BRIDGE, GENERIC, NETDEV, NEW_CHAIN, NEW_RULE, NEW_TABLE, NftChain, SUBSYSTEM, batch,
        compare, expression, family_name, family_number, load, named, nft_chains, value, word,
    },
};

const TRACED: u16 = SUBSYSTEM << 8 | 17;
/// `NFNLGRP_NFTRACE`.
const GROUP: u32 = 9;
/// The name of the tables, and of their chains' prefix.
const NAME: &str = "portolan-follow";
/// Before the hooks of all others but that which puts fragments together: `raw` has -300.
const PRIORITY: i32 = -350;
const INET: &str = "inet";
/// Numbers of hooks in the kernel: `NF_INET_PRE_ROUTING`, `NF_INET_LOCAL_OUT`, `NF_NETDEV_INGRESS`.
const PREROUTING: u32 = 0;
const OUTPUT: u32 = 3;
const INGRESS: u32 = 0;

/// Which packets nf_tables reports: those from the client and those to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TracedTuple {
    /// The client's address as nf_tables sees it; None for any.
    pub client: Option<IpAddr>,
    pub v6: bool,
    /// In host byte order; 0 for any.
    pub client_port: u16,
    /// The number of the IP protocol.
    pub protocol: u8,
}

/// What a packet met in a chain.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NftVerdict {
    /// The rule goes on with the next one; also of a policy that accepts.
    Next,
    Accept,
    Drop,
    /// Another chain is asked.
    Jump(String),
    /// Handed to a process or another part of the kernel.
    Queue,
}

/// A rule or a policy that a packet met.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NftTraced {
    /// The same for everything that one packet meets.
    pub packet: u32,
    pub family: &'static str,
    pub table: String,
    pub chain: String,
    /// The number by which `nft --handle` shows the rule; None if it is the chain's policy.
    pub handle: Option<u64>,
    pub verdict: NftVerdict,
    /// The ports at which the transport header begins, source first, in host byte order; None in
    /// all but the first report of a packet.
    pub ports: Option<[u16; 2]>,
}

/// Receives what nf_tables reports. Dropping it removes the tables.
pub struct NftTrace {
    /// Owns the tables.
    _owner: Connection,
    events: Socket,
}

impl NftTrace {
    /// Begins to trace in every family that has chains of others. `interfaces`: names of those
    /// whose own chains are asked, too.
    ///
    /// Returns None if nf_tables has no chain, and so nothing to report.
    pub fn begin(tuple: TracedTuple, interfaces: &[&str]) -> io::Result<Option<Self>> {
        let families: BTreeSet<_> = nft_chains()?.iter().map(traced_in).collect();
        if families.is_empty() {
            return Ok(None);
        }
        let mut events = Socket::new(NETLINK_NETFILTER)?;
        events.bind(&SocketAddr::new(0, 0))?;
        events.add_membership(GROUP)?;
        events.set_non_blocking(true)?;
        let owner = Connection::open(NETLINK_NETFILTER)?;
        for family in families {
            let made = batch(&owner, messages(family, tuple, interfaces));
            // The family's last table went in between, with its part of the kernel.
            none_if(&[libc::EOPNOTSUPP, libc::ENOENT], made)?;
        }
        Ok(Some(Self {
            _owner: owner,
            events,
        }))
    }

    /// Returns what has been reported since the last call, in order. What met portolan's own chains
    /// is left out.
    pub fn take(&mut self) -> io::Result<Vec<NftTraced>> {
        let mut found = Vec::new();
        loop {
            let received = self.events.recv_from_full();
            let Some((datagram, _)) = none_if(&[libc::EAGAIN], received)? else {
                return Ok(found);
            };
            let reports = netlink::messages(&datagram).filter(|one| one.message_type() == TRACED);
            let read = reports.filter_map(|report| traced(report.payload()));
            found.extend(read.filter(|one| ![NAME, nft_own::NAME].contains(&&*one.table)));
        }
    }
}

/// The family of the table that makes packets of this chain traced.
fn traced_in(chain: &NftChain) -> &'static str {
    const INET_INGRESS: u32 = 5;
    match chain.family {
        BRIDGE => BRIDGE,
        NETDEV => NETDEV,
        INET if chain.hook == Some(INET_INGRESS) => NETDEV,
        _ => INET,
    }
}

/// Returns the messages that make a table whose chains have packets traced.
fn messages(
    family: &'static str,
    tuple: TracedTuple,
    interfaces: &[&str],
) -> Vec<(u16, u16, Vec<u8>)> {
    /// `NFT_TABLE_F_OWNER`: Linux 5.12.
    const OWNER: u32 = 2;
    let header = [family_number(family), 0, 0, 0];
    let message = |kind, attributes: Vec<Vec<u8>>| {
        let payload = [&header[..], &attributes.concat()].concat();
        (kind, NLM_F_CREATE, payload)
    };
    let mut all = vec![message(NEW_TABLE, vec![named(1, NAME), word(2, OWNER)])];
    let hooks: Vec<(u32, Option<&str>)> = match family {
        NETDEV => {
            let names = interfaces.iter();
            names.map(|name| (INGRESS, Some(*name))).collect()
        }
        BRIDGE => vec![(PREROUTING, None)],
        _ => vec![(PREROUTING, None), (OUTPUT, None)],
    };
    for (number, (hook, interface)) in hooks.into_iter().enumerate() {
        let name = format!("{NAME}-{number}");
        let mut at = [word(1, hook), word(2, PRIORITY as u32)].concat();
        at.extend(interface.into_iter().flat_map(|name| named(3, name)));
        let chain = vec![
            named(1, NAME),
            named(3, &name),
            nested(4, &at),
            named(7, "filter"),
        ];
        all.push(message(NEW_CHAIN, chain));
        for answers in [false, true] {
            let rule = vec![
                named(1, NAME),
                named(2, &name),
                nested(4, &rule(tuple, answers)),
            ];
            all.push(message(NEW_RULE, rule));
        }
    }
    all
}

/// Returns the expressions of the rule that has the client's packets traced, or the answers to it.
fn rule(tuple: TracedTuple, answers: bool) -> Vec<u8> {
    // Keys of `meta`, and bases of `payload`.
    const PROTOCOL: u32 = 1;
    const NFTRACE: u32 = 12;
    const TRANSPORT_PROTOCOL: u32 = 16;
    const NETWORK: u32 = 1;
    const TRANSPORT: u32 = 2;
    let meta = |key, bytes: &[u8]| [load("meta", key), compare(true, bytes)].concat();
    let payload = |base, offset, bytes: &[u8]| {
        let attributes = [
            word(1, 1),
            word(2, base),
            word(3, offset),
            word(4, bytes.len() as u32),
        ];
        let loaded = expression("payload", &attributes.concat());
        [loaded, compare(true, bytes)].concat()
    };
    let ether_type: u16 = if tuple.v6 { 0x86dd } else { 0x0800 };
    let mut rule = meta(PROTOCOL, &ether_type.to_be_bytes());
    rule.extend(meta(TRANSPORT_PROTOCOL, &[tuple.protocol]));
    if let Some(client) = tuple.client {
        let (_, octets) = family_and_octets(client);
        let source = if tuple.v6 { 8 } else { 12 };
        let at = source + if answers { octets.len() as u32 } else { 0 };
        rule.extend(payload(NETWORK, at, &octets));
    }
    if tuple.client_port != 0 {
        let at = if answers { 2 } else { 0 };
        rule.extend(payload(TRANSPORT, at, &tuple.client_port.to_be_bytes()));
    }
    let on = [word(1, 1), value(2, &[1])].concat();
    rule.extend(expression("immediate", &on));
    rule.extend(expression("meta", &[word(2, NFTRACE), word(3, 1)].concat()));
    rule
}

/// Reads a report: the attributes of `enum nft_trace_attributes`.
fn traced(payload: &[u8]) -> Option<NftTraced> {
    const POLICY: u32 = 1;
    const RETURN: u32 = 2;
    let (header, attributes) = payload.split_at_checked(GENERIC)?;
    let number = |attributes, kind| array(attributes, kind).map(u32::from_be_bytes);
    let verdict = |code: u32, chain: Option<String>| match code as i32 {
        0 => NftVerdict::Drop,
        1 => NftVerdict::Accept,
        2 | 3 => NftVerdict::Queue,
        -3 | -4 => NftVerdict::Jump(chain.unwrap_or_default()),
        _ => NftVerdict::Next,
    };
    let said = attribute(attributes, 5);
    let verdict = match number(attributes, 4)? {
        POLICY => verdict(number(attributes, 16)?, None),
        RETURN => NftVerdict::Next,
        _ => {
            let said = said?;
            verdict(number(said, 1)?, attribute(said, 2).map(text))
        }
    };
    let ports = attribute(attributes, 9).and_then(|transport| {
        let ports: [u8; 4] = *transport.first_chunk()?;
        let [a, b, c, d] = ports;
        Some([u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d])])
    });
    Some(NftTraced {
        packet: number(attributes, 6)?,
        family: family_name(*header.first()?)?,
        table: text(attribute(attributes, 1)?),
        chain: text(attribute(attributes, 2)?),
        handle: array(attributes, 3).map(u64::from_be_bytes),
        verdict,
        ports,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::{encode, tests::cut_off_anywhere};

    #[test]
    fn a_report_of_a_rule_is_parsed_with_handle_verdict_and_ports() {
        let message = [
            named(1, "filter"),
            named(2, "FORWARD"),
            encode(3, &7_u64.to_be_bytes()),
            word(4, 3),
            nested(5, &word(1, 0)),
            word(6, 99),
            encode(9, &[0x9c, 0x40, 0, 80, 0, 0, 0, 0]),
        ];
        let message = [vec![2, 0, 0, 0], message.concat()].concat();
        let expected = NftTraced {
            packet: 99,
            family: "ip",
            table: "filter".into(),
            chain: "FORWARD".into(),
            handle: Some(7),
            verdict: NftVerdict::Drop,
            ports: Some([40_000, 80]),
        };
        assert_eq!(traced(&message), Some(expected));
        cut_off_anywhere(&message, |bytes| _ = traced(bytes));
    }

    #[test]
    fn a_policy_and_a_jump_are_told_apart() {
        let of = |kind, rest: Vec<u8>| {
            let attributes = [
                named(1, "t"),
                named(2, "c"),
                word(4, kind),
                word(6, 1),
                rest,
            ];
            let message = [vec![1, 0, 0, 0], attributes.concat()].concat();
            traced(&message).expect("readable").verdict
        };
        assert_eq!(of(1, word(16, 0)), NftVerdict::Drop);
        assert_eq!(of(1, word(16, 1)), NftVerdict::Accept);
        assert_eq!(of(2, Vec::new()), NftVerdict::Next);
        let jump = [word(1, -3_i32 as u32), named(2, "other")].concat();
        assert_eq!(of(3, nested(5, &jump)), NftVerdict::Jump("other".into()));
        let goes_on = word(1, u32::MAX);
        assert_eq!(of(3, nested(5, &goes_on)), NftVerdict::Next);
    }
}
