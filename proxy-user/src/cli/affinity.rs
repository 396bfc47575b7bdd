// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `portolan affinity`: clients with session affinity, and the endpoint of each.

use std::net::{IpAddr, SocketAddr};

use anyhow::Result;

use super::{
    args::{ListArgs, Of},
    list::list,
    render::{Column, Row, Tone, Value, column, cut, plain, toned},
};
use crate::datapath::read::{Affinity, Reader};

impl Row for Affinity {
    const COLUMNS: &'static [Column<Self>] = &[
        cut("SERVICE", 0, |row| plain(row.service.as_str())),
        column("CLIENT", 0, |row| plain(row.client.as_str())),
        column("ENDPOINT", 0, |row| plain(row.backend)),
        column("AGE", 1, |row| plain(Value::Seconds(row.age_seconds))),
        column("STATUS", 0, |row| {
            let tone = if row.status == "holds" {
                Tone::Good
            } else {
                Tone::Warn
            };
            toned(row.status, tone)
        }),
    ];
    fn name(&self) -> String {
        format!("affinity/{}/{}", self.service, self.client)
    }
}

/// Prints one line per client with affinity.
pub(super) fn run(args: &ListArgs) -> Result<()> {
    args.select.check()?;
    list(&args.show, || {
        let reader = Reader::open(&args.pins.pin_dir)?;
        args.select.check_known(&reader)?;
        let mut rows = reader.affinities()?;
        rows.retain(|row| wants(args, row));
        Ok(rows)
    })
}

fn wants(args: &ListArgs, row: &Affinity) -> bool {
    let client = row.client.parse::<IpAddr>().ok();
    let client = client.map(|address| SocketAddr::new(address, 0));
    let ends: Vec<_> = client.into_iter().chain(row.backend).collect();
    let of = Of {
        service: &row.service,
        port_name: &row.port_name,
        port: Some(row.service_port),
    };
    args.select.wants(of, row.protocol, &ends)
}
