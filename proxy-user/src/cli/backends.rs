// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `portolan backends`: every endpoint that serves.

use anyhow::Result;

use super::{
    args::{ListArgs, Of},
    list::list,
    render::{Column, Row, Tone, column, cut, plain, toned},
};
use crate::datapath::read::{BackendRow, Reader};

impl Row for BackendRow {
    const COLUMNS: &'static [Column<Self>] = &[
        cut("SERVICE", 0, |row| plain(row.service.as_str())),
        column("PORT", 1, |row| plain(row.port_name.as_str())),
        column("ENDPOINT", 0, |row| plain(row.address)),
        column("PROTOCOL", 2, |row| plain(row.protocol)),
        column("SELECTED-BY", 0, |row| {
            let tone = if row.sets.is_empty() {
                Tone::Warn
            } else {
                Tone::Plain
            };
            toned(row.sets.join(","), tone)
        }),
        column("GENERATION", 3, |row| plain(row.generation)),
        column("ID", 4, |row| plain(row.backend_id)),
    ];
    fn name(&self) -> String {
        format!("backend/{}", self.address)
    }
}

/// Prints every serving endpoint.
pub(super) fn run(args: &ListArgs) -> Result<()> {
    args.select.check()?;
    list(&args.show, || {
        let reader = Reader::open(&args.pins.pin_dir)?;
        args.select.check_known(&reader)?;
        let mut rows = reader.backends()?;
        rows.retain(|row| {
            let of = Of {
                service: &row.service,
                port_name: &row.port_name,
                port: Some(row.service_port),
            };
            args.select.wants(of, row.protocol, &[row.address])
        });
        Ok(rows)
    })
}
