// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reads elements of a map that another version of portolan has made: each field is copied to the
//! field with the same name in this version's type. Which bytes each field has is stored beside the
//! maps: the kernel knows it, too, but tells only who has CAP_SYS_ADMIN.

use std::{
    collections::HashMap,
    fmt::Write,
    io,
    ops::Range,
    os::fd::{AsFd, OwnedFd},
    path::Path,
};

use aya_obj::{Map, Object};
use linux::{MapInfo, Members, Plain, create_bytes, each_raw, get_pinned, lookup_one, members_of};

use crate::{
    error::DatapathError,
    maps::{open_table, tables::Table},
    programs::OBJECT,
};

/// A translation from one type to another: the byte ranges to copy, from and to.
#[derive(Debug)]
struct Translation {
    moves: Vec<(Range<usize>, Range<usize>)>,
    /// The translated element; bytes that are not copied stay zero.
    target: Vec<u8>,
}

impl Translation {
    /// `size` is that of the target type. Fields that the source type lacks become zero. A field of
    /// another length is cut, or filled up with zeros at the end, which is right for little-endian
    /// numbers and for texts.
    fn new(source: &Members, target: &Members, size: usize) -> Self {
        let moves = target.iter().filter_map(|(name, to)| {
            let from = source.get(name)?;
            let length = from.len().min(to.len());
            Some((from.start..from.start + length, to.start..to.start + length))
        });
        Self {
            moves: moves.collect(),
            target: vec![0; size],
        }
    }
    /// Translates a key or value; `None` if the bytes are too short.
    fn apply<T: Plain>(&mut self, source: &[u8]) -> Option<T> {
        for (from, to) in &self.moves {
            self.target
                .get_mut(to.clone())?
                .copy_from_slice(source.get(from.clone())?);
        }
        T::from_bytes(&self.target)
    }
}

pub(super) fn table<K: Plain, V: Plain>(
    home: &Path,
    map: &'static str,
) -> Result<Table<K, V>, DatapathError> {
    open_table(home, map).map_err(DatapathError::of_map("carry over", map))
}

/// Calls `visit` for each element of the map of this name in `source`, a generation's directory. A
/// missing map has no elements. `target` is the directory of the generation that this program
/// knows: `K` and `V` are the types of its map.
pub(super) fn each<K: Plain, V: Plain>(
    source: &Path,
    target: &Path,
    map: &'static str,
    mut visit: impl FnMut(K, V),
) -> Result<(), DatapathError> {
    read(target, map)
        .and_then(|known| each_again(source, map, &known, |key, value, _| visit(key, value)))
        .map_err(DatapathError::of_map("carry over", map))
}

/// Reads the value of a key once more, and removes the element if the argument is true. Returns
/// `None` if the key has gone.
pub(super) type Again<'a, V> = &'a mut dyn FnMut(bool) -> io::Result<Option<V>>;

/// Does the same; `known` are the fields of `K` and `V`. Values are read many at a time, so `visit`
/// also gets a function that reads this one again.
pub(super) fn each_again<K: Plain, V: Plain>(
    source: &Path,
    map: &str,
    known: &[Members; 2],
    mut visit: impl FnMut(K, V, Again<'_, V>),
) -> io::Result<()> {
    let Some((old, info, [mut key_of, mut value_of])) = open::<K, V>(source, map, known)? else {
        return Ok(());
    };
    let mut last = vec![0; info.value_size as usize];
    each_raw(old.as_fd(), |raw, value| {
        if let (Some(key), Some(value)) = (key_of.apply(raw), value_of.apply(value)) {
            let mut again = |takes| {
                let is_there = lookup_one(old.as_fd(), &info, (raw, &mut last), takes)?;
                Ok(is_there.then(|| value_of.apply(&last)).flatten())
            };
            visit(key, value, &mut again);
        }
    })
}

/// Returns a function that reads one element of an old array; `None` if there is no such array.
pub(super) fn reader<V: Plain>(
    source: &Path,
    map: &str,
    known: &[Members; 2],
) -> io::Result<Option<impl FnMut(u32) -> io::Result<Option<V>>>> {
    let Some((old, info, [_, mut value_of])) = open::<u32, V>(source, map, known)? else {
        return Ok(None);
    };
    let mut last = vec![0; info.value_size as usize];
    Ok(Some(move |index: u32| -> io::Result<Option<V>> {
        let raw = index.to_ne_bytes();
        let is_there = lookup_one(old.as_fd(), &info, (&raw, &mut last), false)?;
        Ok(is_there.then(|| value_of.apply(&last)).flatten())
    }))
}

/// Opens an old map, with the translations of its keys and values.
fn open<K: Plain, V: Plain>(
    source: &Path,
    map: &str,
    known: &[Members; 2],
) -> io::Result<Option<(OwnedFd, MapInfo, [Translation; 2])>> {
    let old = match get_pinned(&source.join(map), false) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        old => old?,
    };
    let info = linux::map_info(&old)?;
    let sizes = [size_of::<K>(), size_of::<V>()];
    // A generation without a text: sizes that differ show that its types are others.
    let is_alike = [info.key_size, info.value_size].map(|size| size as usize) == sizes;
    let before = match read(source, map) {
        Err(error) if error.kind() == io::ErrorKind::NotFound && is_alike => known.clone(),
        read => read?,
    };
    let part = |at: usize| Translation::new(&before[at], &known[at], sizes[at]);
    Ok(Some((old, info, [part(0), part(1)])))
}

/// Returns the fields of a member that is a struct; `start` is the member's offset.
pub(super) fn fields_of(all: &Members, member: &str, start: usize) -> Members {
    let inner = all.iter().filter_map(|(path, at)| {
        let path = path.strip_prefix(member)?.strip_prefix('.')?;
        Some((path.to_owned(), at.start - start..at.end - start))
    });
    inner.collect()
}

/// The pin of a map whose only element is a text: a line for each field of each map.
pub(crate) const TYPES: &str = "types";

/// Makes the map with the fields of this program's maps.
pub(crate) fn create() -> Result<OwnedFd, DatapathError> {
    let text = text().ok_or_else(|| DatapathError::Load("the types of its maps".into()))?;
    create_bytes(text.as_bytes()).map_err(DatapathError::of_map("make", TYPES))
}

fn text() -> Option<String> {
    let object = Object::parse(OBJECT).ok()?;
    let types = object.btf?.to_bytes();
    let mut text = String::new();
    for (name, map) in &object.maps {
        let Map::Btf(map) = map else { continue };
        let ids = [map.def.btf_key_type_id, map.def.btf_value_type_id];
        for (part, id) in ids.into_iter().enumerate().filter(|(_, id)| *id != 0) {
            for (field, bytes) in members_of(&types, id).unwrap_or_default() {
                let (start, end) = (bytes.start, bytes.end);
                writeln!(text, "{name} {part} {start} {end} {field}").ok()?;
            }
        }
    }
    Some(text)
}

/// Reads the fields of a map's keys and of its values from a generation's directory.
pub(super) fn read(home: &Path, map: &str) -> io::Result<[Members; 2]> {
    let pinned = get_pinned(&home.join(TYPES), false)?;
    let mut text = Vec::new();
    each_raw(pinned.as_fd(), |_, bytes| text.extend_from_slice(bytes))?;
    let text = String::from_utf8_lossy(&text);
    fields(&text)
        .remove(map)
        .ok_or_else(|| io::ErrorKind::NotFound.into())
}

fn fields(text: &str) -> HashMap<&str, [Members; 2]> {
    let mut found: HashMap<&str, [Members; 2]> = HashMap::new();
    for line in text.lines() {
        let words: Vec<_> = line.splitn(5, ' ').collect();
        let &[map, part, start, end, field] = words.as_slice() else {
            continue;
        };
        let both = found.entry(map).or_default();
        let members = part.parse().ok().and_then(|part: usize| both.get_mut(part));
        if let (Some(members), Ok(start), Ok(end)) = (members, start.parse(), end.parse()) {
            members.insert(field.to_owned(), start..end);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{maps::shapes, options::Capacities};

    fn members<const N: usize>(all: [(&str, Range<usize>); N]) -> Members {
        all.map(|(name, at)| (name.to_owned(), at)).into()
    }

    #[test]
    fn fields_are_copied_to_the_fields_with_the_same_names() {
        let source = members([("gone", 0..2), ("a", 2..4), ("long", 4..8)]);
        let target = members([("long", 0..2), ("new", 2..4), ("a", 4..8)]);
        let mut translation = Translation::new(&source, &target, 8);
        let translated: [u8; 8] = translation
            .apply(&[9, 9, 1, 2, 3, 4, 5, 6])
            .expect("a whole source");
        assert_eq!(translated, [3, 4, 0, 0, 1, 2, 0, 0]);
        assert_eq!(translation.apply::<[u8; 8]>(&[0; 5]), None);
    }

    #[test]
    fn the_text_has_every_byte_of_a_plain_number_and_fields_of_every_map() {
        let text = text().expect("types");
        let fields = fields(&text);
        assert_eq!(fields["ports"][1][""], 0..8);
        let slot = &fields["flow_slots_v4"][1];
        assert_eq!(fields_of(slot, "key.dst", 4)["octets"], 0..4);
        assert_eq!(slot["entry.last_seen"].len(), 8);
        for shape in shapes(&Capacities::default()) {
            let [key, value] = &fields[shape.name];
            let end = |members: &Members| members.values().map(|bytes| bytes.end).max();
            assert!(end(key) <= Some(shape.key_size as usize) && !key.is_empty());
            assert!(end(value) <= Some(shape.value_size as usize) && !value.is_empty());
        }
    }
}
