// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The opened pinned maps. `Datapath::open` opens them all, and each module takes its own maps from
//! here.

use std::{collections::HashMap, io, os::fd::OwnedFd, path::Path};

use linux::{get_pinned, map_info};

use super::shapes::Shape;
use crate::error::DatapathError;

/// Descriptors of the pinned maps, by the maps' names.
pub(crate) struct OpenMaps(HashMap<&'static str, OwnedFd>);

impl OpenMaps {
    pub(crate) fn open(home: &Path, shapes: &[Shape]) -> Result<Self, DatapathError> {
        let opened = shapes.iter().map(|shape| {
            let failed = DatapathError::of_map("open", shape.name);
            let fd = get_pinned(&home.join(shape.name), false).map_err(failed)?;
            map_info(&fd).map_err(failed)?;
            Ok((shape.name, fd))
        });
        opened.collect::<Result<_, _>>().map(Self)
    }

    /// Takes a map out and wraps it as a table or an array.
    pub(crate) fn take<T>(
        &mut self,
        map: &'static str,
        wrap: impl FnOnce(OwnedFd) -> io::Result<T>,
    ) -> Result<T, DatapathError> {
        let fd = self.0.remove(map).ok_or(io::ErrorKind::NotFound.into());
        fd.and_then(wrap)
            .map_err(DatapathError::of_map("open", map))
    }
}
