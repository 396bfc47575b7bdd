// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The formats of a command's output, and the writers for JSON and YAML. Used by `list` and by
//! commands with an overview.

use std::io::{self, Write};

use serde::Serialize;

/// The output format that the user asks for.
#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Format {
    #[default]
    Table,
    Wide,
    Json,
    Yaml,
    Name,
}

/// Writes a value as YAML, or for any other format as JSON.
pub(super) fn document<T: Serialize>(
    out: &mut impl Write,
    format: &Format,
    value: &T,
) -> io::Result<()> {
    if *format == Format::Yaml {
        return serde_saphyr::to_io_writer(out, value).map_err(io::Error::other);
    }
    serde_json::to_writer_pretty(&mut *out, value)?;
    writeln!(out)
}
