// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Messages to nf_tables: how tables, chains, rules and their expressions are written. Used by
//! `nft_forward`, `nft_nat` and `nft_trace`.

use std::io;

use netlink_packet_core::NLM_F_ACK;

use super::netlink::{Connection, encode, nested};

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
