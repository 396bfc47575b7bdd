// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `portolan services`: lists every address and port of every service.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use anyhow::Result;
use datapath::read::Frontend;

use super::{
    args::{ListArgs, Show},
    format::Format,
    list::{Row, list_maps},
    table::{Cell, Column, Tone, column, cut, plain, toned},
};

impl Row for Frontend {
    const COLUMNS: &'static [Column<Self>] = &[
        Column {
            least: 16,
            ..cut("SERVICE", 0, |row| plain(row.service.as_str()))
        },
        column("PORT", 3, |row| plain(row.port_name.as_str())),
        column("KIND", 0, |row| plain(row.kind)),
        column("FRONTEND", 0, |row| plain(address(row))),
        column("IN/OUT", 0, endpoints),
        Column {
            least: 12,
            ..cut("POLICIES", 0, |row| plain(row.policies.join(", ")))
        },
        column("ID", 4, |row| plain(row.service_id)),
    ];
    fn name(&self) -> String {
        format!("service/{}", self.service)
    }
}

/// Returns the numbers of endpoints for clients inside and outside; red if one is missing.
fn endpoints(row: &Frontend) -> Cell {
    let (inside, outside) = (row.internal_endpoints, row.external_endpoints);
    let is_expected = !matches!(row.kind, "unserved-ports" | "ping");
    let is_missing = is_expected && (inside == 0 || outside == 0);
    toned(format!("{inside}/{outside}"), Tone::Bad.when(is_missing))
}

pub(super) fn address(row: &Frontend) -> String {
    // KUBE: `IPv4` and `IPv6` are spelled as in a Service's ipFamilies.
    let node = format!("node({})", row.ip_family);
    let end = host_port(row.address, &node, row.port);
    format!("{end}/{}", row.protocol)
}

/// Returns an address and port as text. `none`: for no address; a port that is 0 means any.
pub(super) fn host_port(address: Option<IpAddr>, none: &str, port: u16) -> String {
    let host = match address {
        None => none.to_owned(),
        Some(IpAddr::V6(v6)) => format!("[{v6}]"),
        Some(v4) => v4.to_string(),
    };
    match port {
        0 => format!("{host}:*"),
        port => format!("{host}:{port}"),
    }
}

pub(super) fn run(args: &ListArgs) -> Result<()> {
    list_maps(args, &[], |reader| {
        let mut rows = reader.frontends()?;
        rows.retain(|row| wants(args, row) && is_shown(&args.show, row));
        Ok(rows)
    })
}

/// Returns whether the output has this row. A plain table has no `unserved-ports`: a line for every
/// cluster IP, in which 0 endpoints are no fault.
fn is_shown(show: &Show, row: &Frontend) -> bool {
    row.kind != "unserved-ports" || show.count || show.look.output != Format::Table
}

fn wants(args: &ListArgs, row: &Frontend) -> bool {
    let nowhere = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
    let end = SocketAddr::new(row.address.unwrap_or(nowhere), row.port);
    let has_address = row.address.is_some() || args.select.address.is_none();
    let (service, name) = (&row.service, &row.port_name);
    let select = &args.select;
    has_address && select.wants(service, name, row.port, row.protocol, &[end])
}

#[cfg(test)]
pub(super) mod tests {
    use rstest::rstest;

    use super::*;

    pub(crate) fn rows() -> Vec<Frontend> {
        let row = |service: &str, kind, address: Option<&str>, port| Frontend {
            service: service.into(),
            port_name: "http".into(),
            kind,
            ip_family: "IPv4",
            address: address.map(|address| address.parse().expect("an address")),
            port,
            protocol: "TCP",
            internal_endpoints: 3,
            external_endpoints: 1,
            policies: vec!["Local".into(), "affinity 10800s".into()],
            service_id: 7,
        };
        let long = "shop/a-service-with-a-rather-long-name";
        let mut rejects = row(long, "cluster-ip", Some("172.30.200.201"), 8443);
        (rejects.internal_endpoints, rejects.external_endpoints) = (0, 0);
        rejects.policies = vec!["no endpoints".into()];
        let mut unserved = row("shop/cart", "unserved-ports", Some("fd00:30::1"), 0);
        unserved.protocol = "any";
        unserved.port_name.clear();
        (unserved.internal_endpoints, unserved.external_endpoints) = (0, 0);
        unserved.policies = vec!["rejects".into()];
        vec![
            row("shop/cart", "cluster-ip", Some("172.30.1.1"), 80),
            row("shop/cart", "node-port", None, 30_080),
            unserved,
            rejects,
        ]
    }

    #[test]
    fn a_plain_table_has_no_unserved_ports() {
        for (flags, shown) in [("", 3), ("-o wide", 4), ("-o json", 4), ("--count", 4)] {
            let show = crate::args::tests::parsed(flags);
            let count = rows().iter().filter(|row| is_shown(&show, row)).count();
            assert_eq!(count, shown, "{flags:?}");
        }
    }

    #[rstest]
    #[case("", &[80, 30_080, 0, 8443])]
    #[case("cart", &[80, 30_080, 0])]
    #[case("shop/cart:80", &[80])]
    #[case("service/shop/cart:http --port 30080", &[30_080])]
    #[case("-n shop --address 172.30.0.0/16", &[80, 8443])]
    #[case::a_node_port_has_no_address("--address 0.0.0.0", &[])]
    #[case("--protocol TCP", &[80, 30_080, 8443])]
    #[case("-n other", &[])]
    #[case("other/cart", &[])]
    #[case("car", &[])]
    #[case("shop/cart:81", &[])]
    fn filters_keep_what_they_name_and_nothing_else(#[case] flags: &str, #[case] ports: &[u16]) {
        let args = crate::args::tests::parsed(flags);
        let rows = rows().into_iter().filter(|row| wants(&args, row));
        let kept: Vec<_> = rows.map(|row| row.port).collect();
        assert_eq!(kept, ports);
    }
}
