// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `portolan backends`: lists every endpoint that new connections may go to.

use anyhow::Result;
use datapath::read::{BackendRow, Share};
use serde::Serialize;

use super::{
    args::ListArgs,
    cell::Name,
    list::{Row, list_maps},
    names::{NamedListArgs, Names},
    table::{Column, Tone, WIDE, column, cut, plain, toned},
};

/// An endpoint with the name of its pod.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
pub(super) struct NamedBackend {
    #[serde(flatten)]
    pub(super) row: BackendRow,
    /// The pod; `None` if no pod has this address, or if no names of pods can be looked up.
    pub(super) pod: Option<Name>,
}

impl Row for NamedBackend {
    const COLUMNS: &'static [Column<Self>] = &[
        cut("SERVICE", 0, |row| plain(row.row.service.as_str())),
        column("PORT", 1, |row| plain(row.row.port_name.as_str())),
        column("BACKEND", 0, |row| plain(row.row.address)),
        column("PROTOCOL", 2, |row| plain(row.row.protocol)),
        column("SELECTED-BY", 0, |row| {
            let is_unused = row.row.sets.is_empty();
            toned(row.row.sets.join(","), Tone::Warn.when(is_unused))
        }),
        column("SHARE", 1, |row| {
            let shares = row.row.shares.iter().map(|share| percent(*share));
            plain(shares.collect::<Vec<_>>().join(","))
        }),
        column("GENERATION", 3, |row| plain(row.row.generation)),
        column("ID", 4, |row| plain(row.row.backend_id)),
        column("POD", WIDE, |row| plain(row.pod.clone())),
    ];
    fn name(&self) -> String {
        format!("backend/{}", self.row.address)
    }
}

/// Returns a share in per cent: of all slots of a block, how many a backend has.
pub(super) fn percent(share: Share) -> String {
    let percent = 100.0 * f64::from(share.slots) / f64::from(share.of.max(1));
    let digits = usize::from(percent > 0.0 && percent < 10.0);
    format!("{percent:.digits$}%")
}

pub(super) fn run(args: &NamedListArgs) -> Result<()> {
    let ListArgs { select, show, .. } = &args.list;
    let mut pods = Names::of_list(show, &args.names);
    list_maps(&args.list, &[], |reader| {
        let mut rows = reader.backends()?;
        rows.retain(|row| {
            let (service, name, port) = (&row.service, &row.port_name, row.service_port);
            select.wants(service, name, port, row.protocol, &[row.address])
        });
        pods.learn(rows.iter().map(|row| row.address.ip()));
        let named = rows.into_iter().map(|row| NamedBackend {
            pod: pods.at(row.address.ip()),
            row,
        });
        Ok(named.collect())
    })
}
