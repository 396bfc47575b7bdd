// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where the running kernel keeps members of its own types, by the type information that it carries. Used by `trace`.

use std::{fs, io};

use super::btf::Types;

const FILE: &str = "/sys/kernel/btf/vmlinux";

/// The kernel's type information, some megabytes.
pub struct KernelTypes(Vec<u8>);

impl KernelTypes {
    /// Reads it.
    pub fn read() -> io::Result<Self> {
        fs::read(FILE).map(Self).map_err(|error| {
            io::Error::new(
                error.kind(),
                format!("{FILE}: {error}; it needs a kernel built with CONFIG_DEBUG_INFO_BTF"),
            )
        })
    }

    /// Where members begin in a struct, in bytes; in the order of their paths.
    pub fn offsets<const N: usize>(&self, name: &str, paths: [&str; N]) -> io::Result<[u32; N]> {
        let missing = |what: String| {
            io::Error::new(
                io::ErrorKind::InvalidData,
                format!("{FILE}: no {what}; this kernel is not known yet, please report it"),
            )
        };
        let types = Types::new(&self.0).ok_or_else(|| missing("readable types".into()))?;
        let id = types
            .by_name(name)
            .ok_or_else(|| missing(format!("struct {name}")))?;
        let mut found = [0; N];
        for (place, path) in found.iter_mut().zip(paths) {
            let at = types.member(id, path);
            let at = at.and_then(|at| u32::try_from(at).ok());
            *place = at.ok_or_else(|| missing(format!("member {path} of struct {name}")))?;
        }
        Ok(found)
    }
}
