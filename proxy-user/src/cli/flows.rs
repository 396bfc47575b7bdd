// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `portolan flows`, `portolan sockets` and `portolan affinity`: connections translated packet by packet and at the
//! socket, and clients with session affinity.

use std::net::IpAddr;

use anyhow::Result;

use super::{
    ReadArgs,
    render::{or_dash, print},
};
use crate::datapath::read::{Flow, Reader, SocketRow};

/// Arguments of `portolan flows`.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct FlowArgs {
    #[command(flatten)]
    pub read: ReadArgs,
    /// Show only flows of this service (namespace/name).
    #[arg(long, value_name = "NS/NAME")]
    pub service: Option<String>,
    /// Show only flows of the client with this address.
    #[arg(long, value_name = "IP")]
    pub client: Option<IpAddr>,
    /// Show only flows to the endpoint with this address.
    #[arg(long, value_name = "IP")]
    pub backend: Option<IpAddr>,
}

impl FlowArgs {
    fn wants(&self, flow: &Flow) -> bool {
        let service = flow.service.split(':').next();
        self.service
            .as_deref()
            .is_none_or(|wanted| service == Some(wanted))
            && self.client.is_none_or(|wanted| flow.client.ip() == wanted)
            && self
                .backend
                .is_none_or(|wanted| flow.backend.ip() == wanted)
    }
}

/// Prints one line per flow.
pub(super) fn flows(args: &FlowArgs) -> Result<()> {
    let mut rows = Reader::open(&args.read.pins.pin_dir)?.flows()?;
    rows.retain(|flow| args.wants(flow));
    let headings = [
        "SERVICE", "PROTOCOL", "CLIENT", "FRONTEND", "BACKEND", "SEEN AS", "STATE", "IDLE",
    ];
    print(args.read.output, &rows, headings, |row| {
        [
            row.service.clone(),
            row.protocol.to_owned(),
            row.client.to_string(),
            row.frontend.to_string(),
            row.backend.to_string(),
            seen_as(row),
            row.state.to_owned(),
            format!("{} s", row.idle_seconds),
        ]
    })
}

/// The source address that the backend sees, if it is not the client's own.
fn seen_as(flow: &Flow) -> String {
    match (flow.masquerade, flow.masqueraded, flow.translated_port) {
        (Some(source), _, _) => source.to_string(),
        (None, true, _) => "(no packet sent yet)".to_owned(),
        (None, false, Some(port)) => format!("port {port}"),
        (None, false, None) => "-".to_owned(),
    }
}

/// Arguments of `portolan sockets`.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct SocketArgs {
    #[command(flatten)]
    pub read: ReadArgs,
    /// Show only sockets that use this service (namespace/name).
    #[arg(long, value_name = "NS/NAME")]
    pub service: Option<String>,
    /// Show only sockets that talk to the endpoint with this address.
    #[arg(long, value_name = "IP")]
    pub backend: Option<IpAddr>,
}

impl SocketArgs {
    fn wants(&self, row: &SocketRow) -> bool {
        let service = row.service.split(':').next();
        self.service
            .as_deref()
            .is_none_or(|wanted| service == Some(wanted))
            && self.backend.is_none_or(|wanted| row.backend.ip() == wanted)
    }
}

/// Prints one line per socket and service.
pub(super) fn sockets(args: &SocketArgs) -> Result<()> {
    let mut rows = Reader::open(&args.read.pins.pin_dir)?.sockets()?;
    rows.retain(|row| args.wants(row));
    let headings = [
        "SERVICE",
        "PROTOCOL",
        "OWNER",
        "COOKIE",
        "ASKED FOR",
        "BACKEND",
        "HOW",
        "AGE",
    ];
    print(args.read.output, &rows, headings, |row| {
        [
            row.service.clone(),
            row.protocol.to_owned(),
            row.owner.to_owned(),
            format!("{:x}", row.cookie),
            row.frontend.to_string(),
            row.backend.to_string(),
            how(row).to_owned(),
            format!("{} s", row.age_seconds),
        ]
    })
}

/// How a socket uses its service, and whether its backend still exists.
fn how(row: &SocketRow) -> &'static str {
    match (row.connected, row.current) {
        (true, true) => "connected",
        (true, false) => "connected, backend gone",
        (false, true) => "datagrams",
        (false, false) => "datagrams, backend gone",
    }
}

/// Prints one line per client with affinity.
pub(super) fn affinity(args: &ReadArgs) -> Result<()> {
    let rows = Reader::open(&args.pins.pin_dir)?.affinities()?;
    print(
        args.output,
        &rows,
        ["SERVICE", "CLIENT", "ENDPOINT", "AGE", "STATUS"],
        |row| {
            [
                row.service.clone(),
                row.client.clone(),
                or_dash(row.backend),
                format!("{} s", row.age_seconds),
                row.status.to_owned(),
            ]
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow() -> Flow {
        Flow {
            service: "shop/cart:http".into(),
            protocol: "TCP",
            client: "10.40.1.9:40000".parse().expect("an address"),
            frontend: "172.30.1.1:80".parse().expect("an address"),
            backend: "10.40.1.10:8080".parse().expect("an address"),
            translated_port: None,
            masquerade: None,
            masqueraded: false,
            state: "established",
            idle_seconds: 3,
        }
    }

    #[test]
    fn filters_keep_what_they_name_and_nothing_else() {
        let wants = |service: Option<&str>, client: &str| {
            let service = service.map(str::to_owned);
            FlowArgs {
                service,
                client: client.parse().ok(),
                ..FlowArgs::default()
            }
            .wants(&flow())
        };
        assert!(wants(None, ""));
        assert!(wants(Some("shop/cart"), "10.40.1.9"));
        assert!(!wants(Some("shop/car"), "10.40.1.9"));
        assert!(!wants(Some("shop/cart"), "10.40.1.10"));
    }

    #[test]
    fn the_source_that_the_backend_sees_is_told() {
        let mut flow = flow();
        assert_eq!(seen_as(&flow), "-");
        flow.translated_port = Some(2000);
        assert_eq!(seen_as(&flow), "port 2000");
        flow.masqueraded = true;
        assert_eq!(seen_as(&flow), "(no packet sent yet)");
        flow.masquerade = "10.40.1.1:3000".parse().ok();
        assert_eq!(seen_as(&flow), "10.40.1.1:3000");
    }
}
