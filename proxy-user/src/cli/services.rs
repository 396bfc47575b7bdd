// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `portolan services` and `portolan backends`: the addresses of services, and the endpoints that serve them.

use anyhow::Result;

use super::{
    ReadArgs,
    render::{or_dash, print, words},
};
use crate::datapath::read::{Frontend, Reader};

/// Prints every address and port that clients can reach.
pub(super) fn services(args: &ReadArgs) -> Result<()> {
    let rows = Reader::open(&args.pins.pin_dir)?.frontends()?;
    let headings = [
        "SERVICE", "PORT", "KIND", "ADDRESS", "INTERNAL", "EXTERNAL", "POLICIES", "ID",
    ];
    print(args.output, &rows, headings, |row| {
        [
            row.service.clone(),
            or_dash(Some(&row.port_name).filter(|name| !name.is_empty())),
            row.kind.to_owned(),
            address(row),
            row.internal_endpoints.to_string(),
            row.external_endpoints.to_string(),
            words(&row.policies),
            row.service_id.to_string(),
        ]
    })
}

fn address(row: &Frontend) -> String {
    let port = if row.port == 0 {
        "*".to_owned()
    } else {
        row.port.to_string()
    };
    let host = match row.address {
        // KUBE: spelled as in a Service's ipFamilies.
        None => format!("node({})", row.ip_family),
        Some(address) if address.is_ipv6() => format!("[{address}]"),
        Some(address) => address.to_string(),
    };
    format!("{host}:{port}/{}", row.protocol)
}

/// Prints every serving endpoint.
pub(super) fn backends(args: &ReadArgs) -> Result<()> {
    let rows = Reader::open(&args.pins.pin_dir)?.backends()?;
    let headings = [
        "SERVICE",
        "PORT",
        "ENDPOINT",
        "SELECTED BY",
        "GENERATION",
        "ID",
    ];
    print(args.output, &rows, headings, |row| {
        [
            row.service.clone(),
            or_dash(Some(&row.port_name).filter(|name| !name.is_empty())),
            row.address.to_string(),
            words(&row.sets),
            row.generation.to_string(),
            row.backend_id.to_string(),
        ]
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_says_node_and_family_for_node_ports_and_a_star_for_unserved_ports() {
        let mut row = Frontend {
            service: "shop/cart".into(),
            port_name: String::new(),
            kind: "node-port",
            ip_family: "IPv4",
            address: None,
            port: 30_080,
            protocol: "TCP",
            internal_endpoints: 1,
            external_endpoints: 1,
            policies: Vec::new(),
            service_id: 1,
        };
        assert_eq!(address(&row), "node(IPv4):30080/TCP");
        row.address = "fd00::1".parse().ok();
        row.port = 0;
        row.protocol = "any";
        assert_eq!(address(&row), "[fd00::1]:*/any");
    }
}
