// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reads type information (BTF): which bytes each member of a map's keys and values has, for
//! `datapath::succession`, which reads maps that another version of portolan has made; and where
//! members of the kernel's own structs are, for `kernel_types`. The format is in the kernel's
//! Documentation/bpf/btf.rst.

use std::{collections::BTreeMap, ops::Range};

use super::answers::word;

const INT: u32 = 1;
const ARRAY: u32 = 3;
const STRUCT: u32 = 4;
const ENUM: u32 = 6;
/// typedef, volatile, const, restrict, type tag: kinds that only name another type.
const ALIASES: [u32; 5] = [8, 9, 10, 11, 18];
/// The deepest nesting of types that is read. portolan's own types are flatter, and the kernel
/// refuses types that contain themselves.
const DEPTH: u32 = 8;

/// The byte range of each member that is no struct itself. The key is the path to the member, as in
/// `entry.backend`; if the whole type is a plain number, the path is empty.
pub type Members = BTreeMap<String, Range<usize>>;

/// Returns the members of the type `id` in raw BTF; None if the BTF is damaged, or if portolan
/// makes no such type.
pub fn members_of(data: &[u8], id: u32) -> Option<Members> {
    let types = Types::new(data)?;
    let mut members = Members::new();
    types.collect(id, String::new(), 0, &mut members, DEPTH)?;
    Some(members)
}

/// The types and strings of raw BTF.
pub(super) struct Types<'a> {
    types: &'a [u8],
    strings: &'a [u8],
    /// The offset of each type, by its id; there is no type 0.
    starts: Vec<usize>,
}

/// The head of a type: its kind, the number of members, its size or the id of another type, and the
/// offset of the bytes that follow the head.
struct Head {
    kind: u32,
    count: u32,
    is_bit_field: bool,
    size_or_type: u32,
    rest: usize,
}

impl<'a> Types<'a> {
    pub(super) fn new(data: &'a [u8]) -> Option<Self> {
        const MAGIC: u32 = 0xeb9f;
        if word(data, 0)? & 0xffff != MAGIC {
            return None;
        }
        let header = word(data, 4)? as usize;
        let section = |at| {
            let start = header.checked_add(word(data, at)? as usize)?;
            data.get(start..start.checked_add(word(data, at + 4)? as usize)?)
        };
        let mut types = Self {
            types: section(8)?,
            strings: section(16)?,
            starts: vec![usize::MAX],
        };
        let mut at = 0;
        while at < types.types.len() {
            types.starts.push(at);
            at = types.after(at)?;
        }
        Some(types)
    }
    fn head(&self, at: usize) -> Option<Head> {
        let info = word(self.types, at + 4)?;
        Some(Head {
            kind: info >> 24 & 0x1f,
            count: info & 0xffff,
            is_bit_field: info >> 31 != 0,
            size_or_type: word(self.types, at + 8)?,
            rest: at + 12,
        })
    }
    /// Returns the offset of the type that follows the one at this offset.
    fn after(&self, at: usize) -> Option<usize> {
        let head = self.head(at)?;
        let count = head.count as usize;
        // The numbers are kinds that are only skipped: union, variable, data section, enum64,
        // function prototype and tag.
        Some(
            head.rest
                + match head.kind {
                    INT | 14 | 17 => 4,
                    ARRAY => 12,
                    STRUCT | 5 | 15 | 19 => 12 * count,
                    ENUM | 13 => 8 * count,
                    _ => 0,
                },
        )
    }
    /// Returns the head of the type behind aliases.
    fn by_id(&self, mut id: u32) -> Option<Head> {
        for _ in 0..DEPTH {
            let head = self.head(*self.starts.get(id as usize)?)?;
            if !ALIASES.contains(&head.kind) {
                return Some(head);
            }
            id = head.size_or_type;
        }
        None
    }
    fn name(&self, at: usize) -> Option<&'a str> {
        let text = self.strings.get(word(self.types, at)? as usize..)?;
        std::str::from_utf8(text.split(|byte| *byte == 0).next()?).ok()
    }

    /// Returns the offset in bytes of a member of the named struct. `path`: the names of members of
    /// members, separated by dots; members without a name are looked through.
    pub(super) fn offset(&self, name: &str, path: &str) -> Option<u32> {
        let start = self.named(STRUCT, name)?;
        let mut head = self.head(start)?;
        let mut offset = 0;
        for name in path.split('.') {
            let (bits, id) = self.member(&head, name, DEPTH)?;
            offset += bits / 8;
            head = self.by_id(id)?;
        }
        Some(offset)
    }
    /// Returns number and name of each value of the named enum; none if there is no such enum.
    pub(super) fn values(&self, name: &str) -> Vec<(u32, &'a str)> {
        let head = self.named(ENUM, name).and_then(|at| self.head(at));
        let Some(head) = head else {
            return Vec::new();
        };
        let each = (0..head.count as usize).map(|number| head.rest + 8 * number);
        let value = |at| Some((word(self.types, at + 4)?, self.name(at)?));
        each.filter_map(value).collect()
    }
    /// Returns the position of the first complete type with this kind and name.
    fn named(&self, kind: u32, name: &str) -> Option<usize> {
        let mut all = self.starts.iter().copied().skip(1);
        all.find(|at| {
            let is_kind = self.head(*at).is_some_and(|head| head.kind == kind);
            is_kind && self.name(*at) == Some(name)
        })
    }
    /// Returns the offset in bits and the type of a struct's or union's member.
    fn member(&self, head: &Head, name: &str, depth: u32) -> Option<(u32, u32)> {
        let depth = depth.checked_sub(1)?;
        for number in 0..head.count as usize {
            let at = head.rest + 12 * number;
            let id = word(self.types, at + 4)?;
            let offset = word(self.types, at + 8)?;
            // The upper byte is the size of a bit field.
            let bits = if head.is_bit_field {
                offset & 0xff_ffff
            } else {
                offset
            };
            match self.name(at)? {
                known if known == name => return Some((bits, id)),
                "" => {
                    let inner = self.by_id(id)?;
                    if let Some((further, id)) = self.member(&inner, name, depth) {
                        return Some((bits + further, id));
                    }
                }
                _ => {}
            }
        }
        None
    }
    /// Returns a type's size in bytes.
    fn size(&self, id: u32, depth: u32) -> Option<usize> {
        let head = self.by_id(id)?;
        if head.kind != ARRAY {
            return Some(head.size_or_type as usize);
        }
        let count = word(self.types, head.rest + 8)? as usize;
        let element = word(self.types, head.rest)?;
        self.size(element, depth.checked_sub(1)?)?
            .checked_mul(count)
    }

    fn collect(
        &self,
        id: u32,
        path: String,
        start: usize,
        members: &mut Members,
        depth: u32,
    ) -> Option<()> {
        let depth = depth.checked_sub(1)?;
        let head = self.by_id(id)?;
        if head.kind != STRUCT {
            members.insert(path, start..start + self.size(id, depth)?);
            return Some(());
        }
        for number in 0..head.count as usize {
            let at = head.rest + 12 * number;
            let bits = word(self.types, at + 8)?;
            if head.is_bit_field || bits % 8 != 0 {
                return None;
            }
            let name = self.name(at)?;
            let path = match path.as_str() {
                "" => name.to_owned(),
                path => format!("{path}.{name}"),
            };
            let start = start + bits as usize / 8;
            self.collect(word(self.types, at + 4)?, path, start, members, depth)?;
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns raw BTF with these types (each as words) and strings.
    fn btf(types: &[&[u32]], strings: &str) -> Vec<u8> {
        let types: Vec<u32> = types.concat();
        let (types_len, strings_len) = (4 * types.len() as u32, strings.len() as u32);
        let header = [0x0001_eb9f, 24, 0, types_len, types_len, strings_len];
        let words = header.iter().chain(&types);
        let mut data: Vec<u8> = words.flat_map(|word| word.to_ne_bytes()).collect();
        data.extend(strings.bytes());
        data
    }

    /// 1: u16. 2: an array of four of them. 3: struct inner { a: u16 }. 4: struct { b: [u16; 4], c:
    /// inner }.
    fn nested() -> Vec<u8> {
        let types: [&[u32]; 4] = [
            &[0, INT << 24, 2, 16],
            &[0, ARRAY << 24, 0, 1, 1, 4],
            &[0, STRUCT << 24 | 1, 2, 1, 1, 0],
            &[0, STRUCT << 24 | 2, 10, 3, 2, 0, 5, 3, 64],
        ];
        btf(&types, "\0a\0b\0c\0")
    }

    #[test]
    fn members_of_a_btf_struct_are_read_with_path_and_byte_range() {
        let members = members_of(&nested(), 4).expect("readable");
        let expected = [("b", 0..8), ("c.a", 8..10)].map(|(name, at)| (name.to_owned(), at));
        assert_eq!(members, expected.into());
        let number = members_of(&nested(), 1).expect("readable");
        assert_eq!(number, [(String::new(), 0..2)].into());
    }

    #[test]
    fn members_are_found_through_members_without_a_name() {
        // 1: u16. 2: union { u16 a; }. 3: struct c { u16 b; union 2; }. 4: enum c { a = 7 }.
        let types: [&[u32]; 4] = [
            &[0, INT << 24, 2, 16],
            &[0, 5 << 24 | 1, 2, 1, 1, 0],
            &[5, STRUCT << 24 | 2, 4, 3, 1, 0, 0, 2, 16],
            &[5, ENUM << 24 | 1, 4, 1, 7],
        ];
        let data = btf(&types, "\0a\0b\0c\0");
        let types = Types::new(&data).expect("readable");
        assert_eq!(types.offset("c", "b"), Some(0));
        assert_eq!(types.offset("c", "a"), Some(2));
        assert_eq!(types.offset("c", "a.b"), None);
        assert_eq!(types.values("c"), [(7, "a")]);
        assert_eq!(types.values("d"), []);
    }

    #[test]
    fn truncated_unknown_and_endless_btf_types_are_rejected() {
        let whole = nested();
        for length in 0..whole.len() - 3 {
            assert_eq!(members_of(&whole[..length], 4), None, "{length} bytes");
        }
        assert_eq!(members_of(&whole, 9), None, "no such type");
        let endless = btf(&[&[0, 8 << 24, 1]], "\0");
        assert_eq!(members_of(&endless, 1), None, "an alias of itself");
    }
}
