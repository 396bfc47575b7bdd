// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Compares the flow tables in the maps with the model's flows: both must have the same entries.

use std::{collections::BTreeMap, net::IpAddr};

use proxy_common::{Addr, FlowEntry, FlowKey, FlowKind, FlowState};

use crate::{
    model::{
        Life, Model,
        wire::{SCTP, Tuple},
    },
    subject::{Subject, socket},
};

/// Flow entries as text. Key: kind of entry, tuple, and the client's interface.
type Entries = BTreeMap<(u8, Tuple, u32), String>;

/// Compares flows and session affinities in the maps with those of the model.
pub(crate) fn compare(model: &Model, subject: &mut Subject) -> Result<(), String> {
    let wanted = wanted(model);
    let mut found = Entries::new();
    read(subject.flows_v4(), &mut found)?;
    read(subject.flows_v6(), &mut found)?;
    for (key, text) in &wanted {
        match found.get(key) {
            None => return Err(format!("an entry is missing: {key:?}: {text}")),
            Some(other) if other != text => {
                return Err(format!("{key:?} must be\n  {text}\nbut is\n  {other}"));
            }
            Some(_) => {}
        }
    }
    if let Some((key, text)) = found.iter().find(|(key, _)| !wanted.contains_key(key)) {
        return Err(format!("an entry is left behind: {key:?}: {text}"));
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
        let protocol = key.tuple.protocol;
        let (backend, source) = (flow.backend, flow.source);
        let masqueraded = flow.is_masqueraded;
        let life = &flow.life;
        let (name, bits) = (life.phase().name(), bits(life));
        let state = format!("{name} {bits:#b}, number {:#x}", life.client_number);
        let text = format!("to {backend} as {source}, masqueraded {masqueraded}, {state}");
        entries.insert((FlowKind::ORIGINAL.0, key.tuple, key.interface), text);
        let (frontend, client) = (key.tuple.dst, key.tuple.src);
        let source = flow
            .masquerade
            .map_or_else(String::new, |at| at.to_string());
        let number = life.backend_number;
        let text = format!(
            "from {frontend} to {client}, masqueraded {masqueraded} {source}, number {number:#x}"
        );
        entries.insert((FlowKind::REPLY.0, flow.reply(protocol), 0), text);
        if let Some(tuple) = flow.masqueraded_reply(protocol) {
            let text = format!("to {}", flow.source);
            entries.insert((FlowKind::MASQUERADED_REPLY.0, tuple, 0), text);
        }
    }
    for tuple in model.untouched.keys() {
        entries.insert((FlowKind::UNTOUCHED.0, *tuple, 0), String::new());
    }
    entries
}

fn read<A>(entries: Vec<(FlowKey<A>, FlowEntry<A>)>, found: &mut Entries) -> Result<(), String>
where
    A: Addr + Into<IpAddr>,
{
    for (key, entry) in entries {
        let tuple = Tuple {
            protocol: key.protocol.0,
            src: socket(key.src, key.src_port),
            dst: socket(key.dst, key.dst_port),
        };
        if !entry.is_whole(&key) {
            return Err(format!("the check word of {tuple:?} is wrong"));
        }
        let to = socket(entry.address, entry.port);
        let masqueraded = entry.is_masqueraded();
        let number = number(tuple.protocol, entry.sequence);
        let text = match entry.kind {
            FlowKind::ORIGINAL => {
                let source = socket(key.src, entry.client_port);
                let (name, bits) = (entry.state.name(), entry.state.0);
                let state = format!("{name} {bits:#b}, number {number:#x}");
                format!("to {to} as {source}, masqueraded {masqueraded}, {state}")
            }
            FlowKind::REPLY => {
                let client = socket(key.dst, entry.client_port);
                let has_left = !entry.masquerade_port.is_any();
                let source = socket(entry.masquerade, entry.masquerade_port);
                let source = if has_left {
                    source.to_string()
                } else {
                    String::new()
                };
                format!(
                    "from {to} to {client}, masqueraded {masqueraded} {source}, number {number:#x}"
                )
            }
            FlowKind::MASQUERADED_REPLY => format!("to {to}"),
            _ => String::new(),
        };
        let [a, b, c] = key.interface;
        let interface = u32::from_le_bytes([a, b, c, 0]);
        found.insert((entry.kind.0, tuple, interface), text);
    }
    Ok(())
}
