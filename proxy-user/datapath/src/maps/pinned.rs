// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The maps in use, of which each module takes its own, and their pins: finds pins that are missing
//! or lead to other objects, and pins the maps again. Used by `Datapath`.

use std::{fs, io, os::fd::OwnedFd, path::Path};

use linux::{get_pinned, map_info, pin};

use super::{
    pins::{identity, if_there, links_of},
    shapes::Shape,
};
use crate::error::DatapathError;

/// The pins of the maps by which `portolan trace` asks the programs, each with the map's name in
/// the object. A file's name on a BPF file system has no dot.
pub(crate) const TRACE: [(&str, &str); 5] = [
    ("trace_until", ".bss"),
    ("trace_filter", "trace_filter"),
    ("trace_rate", "trace_rate"),
    ("trace_lost", "trace_lost"),
    (TRACE_OUT, TRACE_OUT),
];
pub(crate) const TRACE_OUT: &str = "trace_out";

/// Descriptors of all pinned maps. `directory` is device and inode of the directory of links at the
/// last check; `None` if it was missing.
pub(crate) struct PinnedMaps {
    maps: Vec<(&'static str, OwnedFd)>,
    directory: Option<(u64, u64)>,
}

impl PinnedMaps {
    pub(crate) fn open(home: &Path, shapes: &[Shape]) -> Result<Self, DatapathError> {
        let maps = shapes.iter().map(|shape| {
            let opened = get_pinned(&home.join(shape.name), false);
            let opened = opened.map_err(DatapathError::of_map("open", shape.name));
            Ok((shape.name, opened?))
        });
        Ok(Self {
            maps: maps.collect::<Result<_, _>>()?,
            directory: identity(fs::metadata(links_of(home))),
        })
    }
    /// Wraps a map as a table or an array.
    pub(crate) fn take<T>(
        &self,
        map: &'static str,
        wrap: impl FnOnce(OwnedFd) -> io::Result<T>,
    ) -> Result<T, DatapathError> {
        let found = self.maps.iter().find(|(name, _)| *name == map);
        let (_, fd) = found.ok_or(DatapathError::NoSuchMap { map })?;
        fd.try_clone()
            .and_then(wrap)
            .map_err(DatapathError::of_map("open", map))
    }
    /// Pins a further map, in place of an earlier agent's. If that fails, [`Self::repair`] does it.
    pub(crate) fn add(&mut self, home: &Path, name: &'static str, map: OwnedFd) {
        _ = pin_over(&map, &home.join(name));
        self.maps.push((name, map));
    }
    /// True if the directory of links is still the same as at the last check. It is a new one if
    /// somebody has mounted or created the pin directory anew.
    pub(crate) fn is_in_place(&self, home: &Path) -> bool {
        let now = identity(fs::metadata(links_of(home)));
        now.is_some() && now == self.directory
    }
    /// Remembers the current directory of links: all maps are pinned beside this directory.
    pub(crate) fn note_place(&mut self, home: &Path) {
        self.directory = identity(fs::metadata(links_of(home)));
    }
    /// Pins every map again whose pin is missing or leads to another object. Returns the names of
    /// these maps. The directory `home` must exist.
    pub(crate) fn repair(&self, home: &Path) -> Result<Vec<&'static str>, DatapathError> {
        let mut repaired = Vec::new();
        for (name, map) in &self.maps {
            let path = home.join(name);
            let id = |fd: &OwnedFd| map_info(fd).ok().map(|info| info.id);
            if get_pinned(&path, false).is_ok_and(|pinned| id(&pinned) == id(map)) {
                continue;
            }
            pin_over(map, &path).map_err(DatapathError::of_map("pin", name))?;
            repaired.push(*name);
        }
        Ok(repaired)
    }
}

/// Pins a map at a path, in place of what is there.
fn pin_over(map: &OwnedFd, path: &Path) -> io::Result<()> {
    if_there(fs::remove_file(path))?;
    pin(map, path)
}
