// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Compares the flow tables in the maps with the model's flows: both must have the same entries.

use std::{collections::BTreeMap, net::SocketAddr};

use datapath::maps::family::Family;
use proxy_common::{FlowKind, FlowState};

use crate::{
    model::{
        Life, Model,
        wire::{SCTP, Tuple},
    },
    subject::{Maps, Subject, socket},
};

/// What an entry says: where packets go, from whom or to whom, whether they are masqueraded and as
/// whom, the bits of the state, and the number.
type Row = (SocketAddr, SocketAddr, bool, Option<SocketAddr>, u32, u32);
/// Flow entries. Key: kind of entry, tuple, and the client's interface.
type Entries = BTreeMap<(u8, Tuple, u32), Row>;

/// Compares flows and session affinities in the maps with those of the model.
pub(crate) fn compare(model: &Model, subject: &Subject) -> Result<(), String> {
    let wanted = wanted(model);
    let mut found = Entries::new();
    read(&subject.v4, &mut found)?;
    read(&subject.v6, &mut found)?;
    for (key, row) in &wanted {
        let other = found.remove(key);
        if other != Some(*row) {
            return Err(format!("{key:?} must be\n  {row:?}\nbut is\n  {other:?}"));
        }
    }
    if let Some(entry) = found.first_key_value() {
        return Err(format!("an entry is left behind: {entry:?}"));
    }
    let (wanted, found) = (model.affinities(), subject.affinities());
    if wanted != found {
        return Err(format!(
            "the affinities must be\n  {wanted:?}\nbut are\n  {found:?}"
        ));
    }
    Ok(())
}

/// Returns the state as bits of a [`FlowState`].
fn bits(life: &Life) -> u32 {
    let bits = [
        (life.answered, FlowState::ANSWERED),
        (life.acknowledged, FlowState::ACKNOWLEDGED),
        (life.client_fin, FlowState::CLIENT_FIN),
        (life.backend_fin, FlowState::BACKEND_FIN),
        (life.backend_first, FlowState::BACKEND_FIRST),
        (life.reset, FlowState::RESET),
        (life.repeated, FlowState::REPEATED),
        (life.renewed, FlowState::RENEWED),
        (life.picked_up, FlowState::PICKED_UP),
        (life.fin_answered, FlowState::FIN_ANSWERED),
        (life.data_sent, FlowState::DATA_SENT),
    ];
    let set = bits.into_iter().filter(|(is, _)| *is);
    set.fold(0, |all, (_, bit)| all | bit.0)
}

/// Returns the number in an entry in host byte order; only SCTP's tags are in network byte order.
fn number(protocol: u8, sequence: u32) -> u32 {
    match protocol {
        SCTP => u32::from_be(sequence),
        _ => sequence,
    }
}

fn wanted(model: &Model) -> Entries {
    let mut entries = Entries::new();
    for (key, flow) in &model.flows {
        let Tuple { protocol, src, dst } = key.tuple;
        let (masqueraded, life) = (flow.is_masqueraded, &flow.life);
        let (state, number) = (bits(life), life.client_number);
        let row = (flow.backend, flow.source, masqueraded, None, state, number);
        entries.insert((FlowKind::ORIGINAL.0, key.tuple, key.interface), row);
        let row = (
            dst,
            src,
            masqueraded,
            flow.masquerade,
            0,
            life.backend_number,
        );
        entries.insert((FlowKind::REPLY.0, flow.reply(protocol), 0), row);
        if let Some(tuple) = flow.masqueraded_reply(protocol) {
            let row = (flow.source, tuple.src, false, None, 0, 0);
            entries.insert((FlowKind::MASQUERADED_REPLY.0, tuple, 0), row);
        }
    }
    for tuple in model.untouched.keys() {
        let row = (tuple.dst, tuple.src, false, None, 0, 0);
        entries.insert((FlowKind::UNTOUCHED.0, *tuple, 0), row);
    }
    entries
}

fn read<A: Family>(maps: &Maps<A>, found: &mut Entries) -> Result<(), String> {
    for (key, entry) in maps.flows.entries().expect("readable") {
        let (src, dst) = (socket(key.src, key.src_port), socket(key.dst, key.dst_port));
        let tuple = Tuple::new(key.protocol.0, src, dst);
        if !entry.is_whole(&key) {
            return Err(format!("the check word of {tuple:?} is wrong"));
        }
        let to = socket(entry.address, entry.port);
        let masqueraded = entry.is_masqueraded();
        let number = number(tuple.protocol, entry.sequence);
        let row = match entry.kind {
            FlowKind::ORIGINAL => {
                let source = socket(key.src, entry.client_port);
                (to, source, masqueraded, None, entry.state.0, number)
            }
            FlowKind::REPLY => {
                let client = socket(key.dst, entry.client_port);
                let source = socket(entry.masquerade, entry.masquerade_port);
                let source = Some(source).filter(|source| source.port() != 0);
                (to, client, masqueraded, source, 0, number)
            }
            FlowKind::MASQUERADED_REPLY => (to, src, false, None, 0, 0),
            _ => (dst, src, false, None, 0, 0),
        };
        let [a, b, c] = key.interface;
        let interface = u32::from_le_bytes([a, b, c, 0]);
        found.insert((entry.kind.0, tuple, interface), row);
    }
    Ok(())
}
