// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Copies flows from old maps to new ones, with the port bits and fragments that belong to them.

use std::{
    collections::{HashMap, HashSet},
    path::Path,
};

use linux::get_pinned;
use proxy_common::{
    FlowEntry, FlowKey, FlowKind, FlowState, ServiceId, maps, service::FragmentKey,
};

use super::{
    references::{Backends, Services},
    translation::{each, table},
};
use crate::{
    error::DatapathError,
    maps::{PortFilter, family::Family, tables::Table},
};

/// The `slot` of a flow that is in no ring, the list from which flows are evicted: it is removed
/// when it is idle, never to make space for others.
const NO_SLOT: u32 = u32::MAX;

/// Copies the flow entries of one family from the generation in `source` to the one in `target`.
/// Entries that both generations have are merged. Returns how many entries are new to `target`, and
/// how many did not fit.
pub(super) fn carry<A: Family>(
    source: &Path,
    target: &Path,
    services: &Services,
    backends: &Backends,
) -> Result<(usize, usize), DatapathError> {
    let table: Table<FlowKey<A>, FlowEntry<A>> = table(target, A::FLOWS)?;
    let here = table.entries();
    let here = here.map_err(DatapathError::of_map("carry over", A::FLOWS))?;
    let here: HashMap<_, _> = here.into_iter().collect();
    let mut old = Vec::new();
    let mut over = HashSet::new();
    each(
        source,
        target,
        A::FLOWS,
        |key: FlowKey<A>, mut entry: FlowEntry<A>| {
            if is_over(&entry) {
                let mut reply = key;
                entry.reply_key_into(&key, &mut reply);
                over.extend([key, reply]);
            }
            entry.service = services.get(entry.service).unwrap_or(ServiceId::NONE);
            (entry.backend, entry.generation) = backends.get(entry.backend, entry.generation);
            entry.slot = NO_SLOT;
            old.push((key, entry.sealed(&key)));
        },
    )?;
    for (key, entry) in &old {
        if over.contains(key) && entry.kind == FlowKind::REPLY && entry.is_masqueraded() {
            let mut masqueraded = *key;
            entry.masqueraded_key_into(key, &mut masqueraded);
            over.insert(masqueraded);
        }
    }
    let (mut keys, mut entries) = (Vec::new(), Vec::new());
    let mut new = 0;
    for (key, entry) in old {
        let entry = match here.get(&key) {
            // An ended flow is copied only if `target` has it already (see below), where it must
            // end, too.
            None if over.contains(&key) => continue,
            None => {
                new += 1;
                entry
            }
            Some(known) => match merged(&key, known, &entry) {
                Some(merged) => merged,
                None => continue,
            },
        };
        keys.push(key);
        entries.push(entry);
    }
    let refused = table.update_all(&keys, &entries).len();
    Ok((new, refused))
}

fn is_over<A>(entry: &FlowEntry<A>) -> bool {
    entry.kind == FlowKind::ORIGINAL && entry.state.is_closed()
}

/// Merges two generations' entries of one flow: `known` is of the new generation, `old` of the old
/// one. `None` if `known` needs no change, or if `old` belongs to another flow.
fn merged<A: Family>(
    key: &FlowKey<A>,
    known: &FlowEntry<A>,
    old: &FlowEntry<A>,
) -> Option<FlowEntry<A>> {
    let of_flow = |entry: &FlowEntry<A>| {
        let (address, port) = (entry.address, entry.port);
        (
            entry.kind,
            address,
            port,
            entry.client_port,
            entry.interface,
        )
    };
    if of_flow(known) != of_flow(old) {
        return None;
    }
    // Egress chooses the masquerade port after ingress has created the flow.
    let fixed = if known.masquerade_port.is_any() {
        old
    } else {
        known
    };
    let mut state = known.state.with(old.state);
    if known.state != old.state && state.has(FlowState::ANSWERED) {
        // One may have seen the reply, and the other the client's acknowledgement of it.
        state = state.with(FlowState::ACKNOWLEDGED);
    }
    let is_later = old.sequence.wrapping_sub(known.sequence) as i32 > 0;
    let merged = FlowEntry {
        state,
        last_seen: known.last_seen.max(old.last_seen),
        sequence: if known.sequence == 0 || old.sequence != 0 && is_later {
            old.sequence
        } else {
            known.sequence
        },
        reuse: if known.reuse == 0 {
            old.reuse
        } else {
            known.reuse
        },
        slot: known.slot,
        ..*fixed
    }
    .sealed(key);
    // A later time alone is not worth a store: it could overwrite what a program stores at the same
    // moment.
    let stored = |entry: &FlowEntry<A>| (entry.check, entry.state, entry.sequence, entry.reuse);
    (stored(&merged) != stored(known)).then_some(merged)
}

/// Copies the port filter, the known connections that bypass services, and the known fragments of
/// packets.
pub(super) fn carry_hints(source: &Path, target: &Path) -> Result<(), DatapathError> {
    let failed = DatapathError::of_map("carry over", maps::PORTS);
    let ports = get_pinned(&target.join(maps::PORTS), false)
        .and_then(PortFilter::new)
        .map_err(failed)?;
    each(source, target, maps::PORTS, |word: u32, bits: u64| {
        ports.merge(word, bits);
    })?;
    carry_direct(source, target)?;
    carry_fragments::<proxy_common::V4>(source, target, maps::FRAGMENTS_V4)?;
    carry_fragments::<proxy_common::V6>(source, target, maps::FRAGMENTS_V6)
}

/// Copies the known connections that bypass services, so that the new programs create no flow for
/// one of them, which would break it.
fn carry_direct(source: &Path, target: &Path) -> Result<(), DatapathError> {
    let table: Table<u32, u32> = table(target, maps::DIRECT)?;
    let here = table.entries();
    let here = here.map_err(DatapathError::of_map("carry over", maps::DIRECT))?;
    let known: HashSet<_> = here
        .into_iter()
        .filter(|(_, seen)| *seen != 0)
        .map(|(place, _)| place)
        .collect();
    let (mut places, mut all) = (Vec::new(), Vec::new());
    each(source, target, maps::DIRECT, |place: u32, seen: u32| {
        if seen != 0 && !known.contains(&place) {
            places.push(place);
            all.push(seen);
        }
    })?;
    // If the kernel refuses an element, that connection is not copied.
    _ = table.update_all(&places, &all);
    Ok(())
}

fn carry_fragments<A: Family>(
    source: &Path,
    target: &Path,
    map: &'static str,
) -> Result<(), DatapathError> {
    let table: Table<FragmentKey<A>, u32> = table(target, map)?;
    let (mut keys, mut values) = (Vec::new(), Vec::new());
    each(source, target, map, |key, value| {
        keys.push(key);
        values.push(value);
    })?;
    // A fragment that does not fit costs one datagram.
    _ = table.update_all(&keys, &values);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proxy_common::{
        Addr, BackendId, Port, Protocol, V4,
        flow::{ClientInterface, Offload, SPARE},
    };

    fn key() -> FlowKey<V4> {
        let none = V4::UNSPECIFIED;
        FlowKey::new(none, Port::ANY, none, Port::ANY, Protocol::TCP)
    }

    fn entry(state: FlowState, sequence: u32) -> FlowEntry<V4> {
        FlowEntry {
            check: 0,
            kind: FlowKind::ORIGINAL,
            flags: 0,
            port: Port::ANY,
            address: V4::UNSPECIFIED,
            masquerade: V4::UNSPECIFIED,
            client_port: Port::ANY,
            masquerade_port: Port::ANY,
            service: ServiceId::NONE,
            backend: BackendId(0),
            generation: 0,
            interface: ClientInterface::SHARED,
            state,
            last_seen: 5,
            sequence,
            reuse: 0,
            slot: 0,
            offload: Offload::NONE,
            _pad: SPARE,
        }
        .sealed(&key())
    }

    #[test]
    fn merging_a_new_and_an_answered_flow_gives_an_established_flow() {
        let known = entry(FlowState::NEW, 0);
        let old = entry(FlowState::ANSWERED, 9);
        let merged = merged(&key(), &known, &old).expect("more is known");
        assert!(merged.state.has(FlowState::ESTABLISHED));
        assert_eq!(merged.sequence, 9);
    }

    #[test]
    fn an_old_flow_that_adds_nothing_is_not_merged() {
        let known = entry(FlowState::ESTABLISHED, 9);
        let mut old = known;
        old.last_seen = 8;
        assert_eq!(merged(&key(), &known, &old), None);
        old.sequence = 8;
        assert_eq!(
            merged(&key(), &known, &old),
            None,
            "an earlier acknowledgement"
        );
        old.sequence = 10;
        let later = merged(&key(), &known, &old).expect("a later one");
        assert_eq!((later.sequence, later.last_seen), (10, 8));
    }

    #[test]
    fn merging_flows_keeps_a_masquerade_port_that_only_the_old_one_has() {
        let mut known = entry(FlowState::NEW, 0);
        known.kind = FlowKind::REPLY;
        known.seal(&key());
        let mut old = known;
        old.masquerade_port = Port::from_host(40_000);
        old.seal(&key());
        let merged = merged(&key(), &known, &old).expect("more is known");
        assert_eq!(merged.masquerade_port, old.masquerade_port);
        assert!(merged.is_whole(&key()));
        assert_eq!(super::merged(&key(), &old, &known), None);
    }

    #[test]
    fn an_old_flow_of_the_tuple_to_another_backend_is_not_merged() {
        let known = entry(FlowState::NEW, 0);
        let mut old = entry(FlowState::ESTABLISHED, 3);
        old.port = Port::from_host(80);
        assert_eq!(merged(&key(), &known, &old), None);
    }
}
