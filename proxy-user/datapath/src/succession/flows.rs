// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Copies flows from old maps to new ones.

use std::{collections::HashMap, io, mem::offset_of, path::Path};

use linux::get_pinned;
use proxy_common::{
    FlowEntry, FlowKey, FlowKind, FlowState, ServiceId,
    flow::{
        is_near,
        places::{FlowSlot, Tags, VALID},
    },
    maps,
};

use super::{
    references::{GONE, Old},
    translation::{Again, each_again, fields_of, read, reader},
};
use crate::{
    error::DatapathError,
    maps::{Added, FlowTable, arrays::MappedArray, family::Family},
};

/// Copies the flow entries of one family. Entries that both generations have are merged. Returns
/// how many entries are new, and how many did not fit. If the old programs are behind the new ones,
/// `is_behind`, their copies stay where they are.
///
/// An ended flow is not copied. But while the old programs translate what looks like its packets,
/// flows of the new ones must avoid its tuples: they do so once these are in the map `direct`.
///
/// A table may have millions of entries, so it is walked through twice. Only the keys of ended
/// flows are kept, and when each has ended: the entries of one flow come in any order, and the one
/// that says that it has ended may be the last. The programs go on with both tables meanwhile: a
/// flow may end, and another begin with its tuple. So each entry is read again when it is copied,
/// and what new programs have entered is not overwritten.
///
/// With `takes`, each entry is removed from the old map, so that from now on the new programs
/// handle the flow at every hook: if one hook still went by the old entry, and another by that of a
/// flow that has begun with the same ports, they would translate differently. Replies come first:
/// the programs account them in the flow's original entry.
pub(super) fn carry<A: Family>(
    old: &Old<'_>,
    is_behind: bool,
    takes: bool,
) -> Result<(usize, usize), DatapathError> {
    let mut ended = Ended(HashMap::new());
    each_old(old, |key, entry, _| ended.note(&key, &entry))
        .map_err(DatapathError::of_map("carry over", A::FLOW_SLOTS))?;
    let transfer = |is_wanted: fn(&FlowEntry<A>) -> bool| {
        transfer(old, &ended, takes, |entry| {
            is_wanted(entry) && !(is_behind && entry.came_by == FlowEntry::<A>::COPIED)
        })
    };
    if !takes {
        return transfer(|_| true);
    }
    let replies = transfer(|entry| entry.kind != FlowKind::ORIGINAL)?;
    let originals = transfer(|entry| entry.kind == FlowKind::ORIGINAL)?;
    Ok((replies.0 + originals.0, replies.1 + originals.1))
}

fn transfer<A: Family>(
    old: &Old<'_>,
    ended: &Ended<A>,
    takes: bool,
    is_wanted: impl Fn(&FlowEntry<A>) -> bool,
) -> Result<(usize, usize), DatapathError> {
    let failed = DatapathError::of_map("carry over", A::FLOW_SLOTS);
    let mut copy = Copy {
        table: FlowTable::open(old.target).map_err(failed)?,
        new: 0,
        refused: 0,
    };
    let mut failure = None;
    let (mut places, mut tuples) = (Vec::new(), Vec::new());
    let (services, backends) = (&old.references.services, old.backends::<A>());
    each_old(old, |key: FlowKey<A>, entry: FlowEntry<A>, again| {
        if !is_wanted(&entry) {
            return;
        }
        let mut entry = match again(takes) {
            Ok(Some(entry)) => entry,
            Ok(None) => return,
            Err(error) => {
                failure.get_or_insert(error);
                return;
            }
        };
        let is_over = is_over(&entry) || ended.contains(&key, &entry);
        if is_over && entry.kind != FlowKind::ORIGINAL {
            let (place, tuple) = key.fingerprint();
            places.push(place);
            tuples.push(tuple);
        }
        entry.service = services.get(entry.service).unwrap_or(ServiceId::NONE);
        let backend = backends.get(entry.backend, entry.generation);
        (entry.backend, entry.generation) = backend.unwrap_or(GONE);
        entry.came_by = FlowEntry::<A>::COPIED;
        if let Err(error) = copy.take(key, entry.sealed(&key), is_over) {
            failure.get_or_insert(error);
        }
    })
    .map_err(failed)?;
    // A tuple that the kernel refuses is not avoided.
    _ = old.new_table(maps::DIRECT)?.update_all(&places, &tuples);
    match failure {
        Some(error) => Err(failed(error)),
        None => Ok((copy.new, copy.refused)),
    }
}

/// Removes all copied flows of one family from the generation in `home`; returns the number of
/// entries.
pub(super) fn forget_copies<A: Family>(home: &Path) -> Result<usize, DatapathError> {
    let forget = || -> io::Result<usize> {
        let table = FlowTable::<A>::open(home)?;
        let mut copies = Vec::new();
        table.each(|key, entry| {
            if entry.came_by == FlowEntry::<A>::COPIED {
                copies.push(key);
            }
        })?;
        for key in &copies {
            table.delete(key)?;
        }
        Ok(copies.len())
    };
    forget().map_err(DatapathError::of_map("carry over", A::FLOW_SLOTS))
}

/// Calls `visit` with each entry of the old flow table, and with a function that reads it again.
fn each_old<A: Family>(
    old: &Old<'_>,
    mut visit: impl FnMut(FlowKey<A>, FlowEntry<A>, Again<'_, FlowEntry<A>>),
) -> io::Result<()> {
    let known = read(old.target, A::FLOW_SLOTS)?;
    let parts = [("key", 0), ("entry", offset_of!(FlowSlot<A>, entry))];
    let hashed = parts.map(|(member, start)| fields_of(&known[1], member, start));
    each_again(old.source, maps::HASHED_FLOWS[A::AT], &hashed, &mut visit)?;
    let Some(mut at) = reader::<FlowSlot<A>>(old.source, A::FLOW_SLOTS, &known)? else {
        return Ok(());
    };
    // Once more if a program is just changing the entry.
    let mut copy = |slot| -> io::Result<Option<FlowSlot<A>>> {
        for _ in 0..2 {
            let found = at(slot)?;
            if found.is_some_and(|found| found.entry.is_whole(&found.key)) {
                return Ok(found);
            }
        }
        Ok(None)
    };
    let tags = get_pinned(&old.source.join(A::FLOW_TAGS), false);
    let tags: MappedArray<Tags> = tags.and_then(MappedArray::new)?;
    tags.ensure(0, tags.capacity())?;
    for (slot, word) in (0..tags.capacity()).flat_map(|set| tags.ways(set)) {
        if word & VALID == 0 {
            continue;
        }
        let Some(FlowSlot { key, entry }) = copy(slot)? else {
            continue;
        };
        let mut again = |takes: bool| -> io::Result<Option<FlowEntry<A>>> {
            if !tags.exchange(slot, word, if takes { 0 } else { word }) {
                return Ok(None);
            }
            let last = copy(slot)?.filter(|last| last.key == key);
            Ok(Some(last.map_or(entry, |last| last.entry)))
        };
        visit(key, entry, &mut again);
    }
    Ok(())
}

/// When flows have ended, by the keys of their reply entries.
struct Ended<A: Family>(HashMap<FlowKey<A>, u64>);

impl<A: Family> Ended<A> {
    fn note(&mut self, key: &FlowKey<A>, entry: &FlowEntry<A>) {
        if is_over(entry)
            && let Some(reply) = reply_key(key, entry)
        {
            self.0.insert(reply, entry.last_seen);
        }
    }
    /// True for an entry for replies whose flow has ended. An entry that is later than that end
    /// belongs to a flow that began with the same tuple afterwards.
    fn contains(&self, key: &FlowKey<A>, entry: &FlowEntry<A>) -> bool {
        entry.kind != FlowKind::ORIGINAL
            && reply_key(key, entry)
                .and_then(|reply| self.0.get(&reply))
                .is_some_and(|end| entry.last_seen <= *end)
    }
}

/// Writes old entries into a new table.
struct Copy<A: Family> {
    table: FlowTable<A>,
    new: usize,
    refused: usize,
}

impl<A: Family> Copy<A> {
    /// Takes an old entry, whose flow has ended if `is_over` is true.
    fn take(&mut self, key: FlowKey<A>, entry: FlowEntry<A>, is_over: bool) -> io::Result<()> {
        let added = match self.table.lookup(&key)? {
            // An entry of an ended flow is copied only if the new table has it already (see the
            // next case), where the flow must end, too.
            None if is_over => return Ok(()),
            None => self.table.add(&key, &entry)?,
            Some(known) => {
                if let Some(merged) = merged(&key, &known, &entry) {
                    self.table.update(&key, &merged)?;
                }
                Added::Known
            }
        };
        self.new += usize::from(added == Added::New);
        self.refused += usize::from(added == Added::Full);
        Ok(())
    }
}

fn is_over<A>(entry: &FlowEntry<A>) -> bool {
    entry.kind == FlowKind::ORIGINAL && entry.state.is_closed()
}

/// Returns the key of the reply entry of the flow that this entry belongs to; `None` if the entry
/// belongs to no flow.
fn reply_key<A: Family>(key: &FlowKey<A>, entry: &FlowEntry<A>) -> Option<FlowKey<A>> {
    match entry.kind {
        FlowKind::ORIGINAL => {
            let mut reply = *key;
            entry.reply_key_into(key, &mut reply);
            Some(reply)
        }
        FlowKind::REPLY => Some(*key),
        FlowKind::MASQUERADED_REPLY => {
            let (server, port) = (key.src, key.src_port);
            let client = entry.address;
            Some(FlowKey::new(server, port, client, entry.port, key.protocol))
        }
        _ => None,
    }
}

/// Merges two generations' entries of one tuple: `known` is of the new generation, `old` of the old
/// one. If they belong to different flows, returns the later one. `None` if `known` needs no
/// change.
fn merged<A: Family>(
    key: &FlowKey<A>,
    known: &FlowEntry<A>,
    old: &FlowEntry<A>,
) -> Option<FlowEntry<A>> {
    let of_flow = |entry: &FlowEntry<A>| {
        let end = (entry.address, entry.port, entry.client_port);
        (entry.kind, end, entry.interface)
    };
    let is_later = old.last_seen > known.last_seen;
    if of_flow(known) != of_flow(old) {
        return (is_later && !is_over(old)).then_some(*old);
    }
    if is_of_another_connection(known, old) {
        return (is_later && !old.state.is_closing()).then_some(*old);
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
    let is_ahead = old.sequence.wrapping_sub(known.sequence) as i32 > 0;
    let merged = FlowEntry {
        state,
        last_seen: known.last_seen.max(old.last_seen),
        sequence: if known.sequence == 0 || old.sequence != 0 && is_ahead {
            old.sequence
        } else {
            known.sequence
        },
        reuse: if known.reuse == 0 {
            old.reuse
        } else {
            known.reuse
        },
        came_by: known.came_by,
        ..*fixed
    }
    .sealed(key);
    // A later time alone is not worth a store: it could overwrite what a program stores at the same
    // moment.
    let stored = |entry: &FlowEntry<A>| (entry.check, entry.state, entry.sequence, entry.reuse);
    (stored(&merged) != stored(known)).then_some(merged)
}

/// Whether two entries with one tuple and one translation belong to two connections. While the old
/// programs are detached, the new ones may see only the SYN of the second connection, which then
/// continues the first one's entry: its numbers are far away, or the SYN is not answered yet.
fn is_of_another_connection<A>(known: &FlowEntry<A>, old: &FlowEntry<A>) -> bool {
    let (here, there) = (known.sequence, old.sequence);
    let is_near = there == 0 || is_near(here, there) || is_near(there, here);
    !is_near || known.state.has(FlowState::RENEWED) && !old.state.has(FlowState::RENEWED)
}

#[cfg(test)]
mod tests {
    use super::*;
    use linux::Plain as _;
    use proxy_common::{Addr, Port, Protocol, V4};

    fn key() -> FlowKey<V4> {
        let none = V4::UNSPECIFIED;
        FlowKey::new(none, Port::ANY, none, Port::ANY, Protocol::TCP)
    }

    fn entry(state: FlowState, sequence: u32) -> FlowEntry<V4> {
        FlowEntry {
            kind: FlowKind::ORIGINAL,
            state,
            last_seen: 5,
            sequence,
            ..FlowEntry::zeroed()
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
    fn all_entries_of_a_flow_know_the_key_of_its_reply_entry() {
        let [client, frontend, backend, node] = [1, 2, 3, 4].map(|last| V4 {
            octets: [10, 0, 0, last],
        });
        let port = Port::from_host;
        let tuple = |src, src_port, dst, dst_port| {
            FlowKey::new(src, port(src_port), dst, port(dst_port), Protocol::TCP)
        };
        let reply = tuple(backend, 8080, client, 50_000);
        let mut original = entry(FlowState::NEW, 0);
        (original.address, original.port) = (backend, port(8080));
        original.client_port = port(50_000);
        let key = tuple(client, 40_000, frontend, 80).behind(original.interface);
        assert_eq!(reply_key(&key, &original), Some(reply));
        let mut back = original;
        back.kind = FlowKind::REPLY;
        assert_eq!(reply_key(&reply, &back), Some(reply));
        back.kind = FlowKind::MASQUERADED_REPLY;
        (back.address, back.port) = (client, port(50_000));
        let key = tuple(backend, 8080, node, 60_000);
        assert_eq!(reply_key(&key, &back), Some(reply));
        back.kind = FlowKind::UNTOUCHED;
        assert_eq!(reply_key(&key, &back), None);
    }

    #[test]
    fn the_old_entry_of_a_tuple_stays_if_it_says_more_or_belongs_to_the_later_flow() {
        let (new, open) = (FlowState::NEW, FlowState::ESTABLISHED);
        let (reset, renewed) = (open.with(FlowState::RESET), open.with(FlowState::RENEWED));
        let far = 1 << 30;
        // Entries of a flow: its port, state, sequence and time.
        let at = |(port, state, sequence, last_seen)| {
            let mut entry = entry(state, sequence);
            (entry.port, entry.last_seen) = (Port::from_host(port), last_seen);
            entry.sealed(&key())
        };
        for (known, old, is_old) in [
            ((0, open, 9, 5), (0, open, 9, 8), false),
            ((0, open, 9, 5), (0, open, 8, 8), false),
            ((0, open, 9, 5), (0, open, 10, 8), true),
            // Another flow, the later one, and one that has ended.
            ((0, new, 0, 5), (80, open, 3, 5), false),
            ((0, new, 0, 5), (80, open, 3, 6), true),
            ((0, new, 0, 5), (80, reset, 3, 6), false),
            // The end of the same connection; and not of one whose SYN is not answered yet, or
            // whose numbers are far away.
            ((0, open, 9, 5), (0, reset, 9, 6), true),
            ((0, renewed, 9, 5), (0, reset, 9, 6), false),
            ((0, open, far, 5), (0, reset, 9, 6), false),
            ((0, open, far, 5), (0, open, 9, 6), true),
        ] {
            let [known, old] = [known, old].map(at);
            let merged = merged(&key(), &known, &old);
            assert_eq!(merged, is_old.then_some(old), "{known:?} {old:?}");
        }
    }

    #[test]
    fn a_reply_entry_that_is_later_than_the_end_of_its_tuple_s_flow_belongs_to_the_next_flow() {
        let over = entry(FlowState::ESTABLISHED.with(FlowState::RESET), 0);
        let mut ended = Ended(HashMap::new());
        ended.note(&key(), &over);
        let mut reply = entry(FlowState::NEW, 0);
        reply.kind = FlowKind::REPLY;
        assert!(ended.contains(&key(), &reply));
        reply.last_seen = over.last_seen + 1;
        assert!(!ended.contains(&key(), &reply));
    }
}
