// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The object with the watching programs: its maps are made here, and its instructions linked with them for each watched program.

use std::{
    collections::{HashMap, HashSet},
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
};

use aya_obj::{EbpfSectionKind, generated::bpf_insn};

use crate::{
    causes::chain,
    datapath::{
        error::DatapathError,
        sys::{Instructions, MapKind, create_map, freeze_data},
    },
};

static OBJECT: &[u8] =
    aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/portolan-trace.bpf.o"));

/// Maps that are not each pair's own.
const SHARED: [&str; 6] = ["counters", "events", "lost", "rate", "filter", "sets"];

/// The parsed object.
pub(super) struct Object(aya_obj::Object);

/// The programs over certain maps.
pub(super) struct Linked(HashMap<String, Instructions>);

impl Object {
    pub(super) fn parse() -> Result<Self, DatapathError> {
        aya_obj::Object::parse(OBJECT)
            .map(Self)
            .map_err(|error| DatapathError::Load(chain(&error)))
    }

    /// Makes one of its maps.
    pub(super) fn make(&self, name: &str) -> io::Result<OwnedFd> {
        let map = self.0.maps.get(name).ok_or(io::ErrorKind::NotFound)?;
        if map.section_kind() != EbpfSectionKind::BtfMaps {
            return freeze_data(map.data());
        }
        let kinds = [
            MapKind::Hash,
            MapKind::Array,
            MapKind::PerCpuArray,
            MapKind::RingBuffer,
        ];
        let kind = kinds
            .into_iter()
            .find(|kind| *kind as u32 == map.map_type())
            .ok_or_else(|| io::Error::other(format!("the map {name} is of an unknown kind")))?;
        let (key, value) = match kind {
            MapKind::RingBuffer => (0, 0),
            _ => (map.key_size(), map.value_size()),
        };
        create_map(kind, key, value, map.max_entries(), map.map_flags(), None)
    }

    /// Makes the maps of one pair of programs.
    pub(super) fn own_maps(&self) -> io::Result<HashMap<String, OwnedFd>> {
        let names = self.0.maps.keys();
        let own = names.filter(|name| !SHARED.contains(&name.as_str()));
        own.map(|name| Ok((name.clone(), self.make(name)?)))
            .collect()
    }

    /// The instructions of all programs over these maps.
    pub(super) fn linked<'a>(
        &self,
        map: impl Fn(&str) -> Option<BorrowedFd<'a>>,
    ) -> Result<Linked, DatapathError> {
        let failed = |error: String| DatapathError::Load(error);
        let mut object = self.0.clone();
        let text: HashSet<usize> = object
            .functions
            .keys()
            .map(|(section, _)| *section)
            .collect();
        let maps = self.0.maps.iter();
        let maps = maps.filter_map(|(name, definition)| {
            let fd = map(name)?.as_fd().as_raw_fd();
            Some((name.as_str(), fd, definition))
        });
        object
            .relocate_maps(maps, &text)
            .map_err(|error| failed(chain(&error)))?;
        object
            .relocate_calls(&text)
            .map_err(|error| failed(chain(&error)))?;
        let mut linked = HashMap::new();
        for (name, program) in &object.programs {
            let function = object.functions.get(&program.function_key());
            let function = function.ok_or_else(|| failed(format!("no function {name}")))?;
            let words = function.instructions.iter().map(word).collect();
            linked.insert(name.clone(), Instructions(words));
        }
        Ok(Linked(linked))
    }
}

impl Linked {
    pub(super) fn instructions(&self, name: &str) -> Result<&Instructions, DatapathError> {
        self.0
            .get(name)
            .ok_or_else(|| DatapathError::Load(format!("no program {name} in the object")))
    }
}

/// An instruction as the kernel takes it.
fn word(one: &bpf_insn) -> u64 {
    let registers = u64::from(one.dst_reg()) | u64::from(one.src_reg()) << 4;
    u64::from(one.code)
        | registers << 8
        | u64::from(one.off as u16) << 16
        | u64::from(one.imm as u32) << 32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_object_has_a_pair_for_packets_and_one_for_calls() {
        let object = Object::parse().expect("the object");
        let mut names: Vec<_> = object.0.programs.keys().map(String::as_str).collect();
        names.sort_unstable();
        assert_eq!(
            names,
            ["call_begins", "call_ends", "packet_begins", "packet_ends"]
        );
        for name in SHARED {
            assert!(object.0.maps.contains_key(name), "{name}");
        }
    }

    /// What is off costs nothing, because the programs that serve know nothing of it.
    #[test]
    fn the_programs_that_serve_have_nothing_of_it() {
        let object = aya_obj::Object::parse(crate::datapath::OBJECT).expect("the object");
        for name in [
            "events", "lost", "rate", "filter", "sets", "target", "begun",
        ] {
            assert!(!object.maps.contains_key(name), "{name}");
        }
        for name in ["packet_begins", "packet_ends", "call_begins", "call_ends"] {
            assert!(!object.programs.contains_key(name), "{name}");
        }
    }

    #[test]
    fn an_instruction_is_one_word() {
        // r1 = r10 (0xbf), off 0, imm 0; and a jump back with an immediate.
        let mut one = bpf_insn {
            code: 0xbf,
            _bitfield_align_1: [],
            _bitfield_1: bpf_insn::new_bitfield_1(1, 10),
            off: 0,
            imm: 0,
        };
        assert_eq!(word(&one), 0xa1bf);
        (one.off, one.imm) = (-1, -2);
        assert_eq!(word(&one), 0xffff_fffe_ffff_a1bf);
    }
}
