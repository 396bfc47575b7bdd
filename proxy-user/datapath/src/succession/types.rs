// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which bytes each field of the maps' keys and values has: stored beside the maps, for a version
//! of portolan that has another layout. The kernel knows it, too, but tells only who has
//! CAP_SYS_ADMIN. Used by `translation`.

use std::{
    collections::HashMap,
    fmt::Write,
    io,
    os::fd::{AsFd, OwnedFd},
    path::Path,
};

use aya_obj::{Map, Object};
use linux::{Members, create_bytes, get_pinned, lookup_raw, members_of};

use crate::{error::DatapathError, programs::OBJECT};

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
    let (raw, _) = lookup_raw(pinned.as_fd(), &mut Vec::new(), 1)?;
    let text = String::from_utf8_lossy(&raw.values);
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

    #[test]
    fn the_text_has_every_byte_of_a_plain_number_and_fields_of_every_map() {
        let text = text().expect("types");
        let fields = fields(&text);
        assert_eq!(fields["ports"][1][""], 0..8);
        assert!(fields["flows_v4"][1].len() > 3, "{:?}", fields["flows_v4"]);
        for shape in shapes(&Capacities::default()) {
            let [key, value] = &fields[shape.name];
            let end = |members: &Members| members.values().map(|bytes| bytes.end).max();
            assert!(end(key) <= Some(shape.key_size as usize) && !key.is_empty());
            assert!(end(value) <= Some(shape.value_size as usize) && !value.is_empty());
        }
    }
}
