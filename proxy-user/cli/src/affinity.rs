// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `portolan affinity`: lists clients with session affinity, and the endpoint of each.

use std::{collections::HashMap, io, net::IpAddr};

use anyhow::Result;
use datapath::read::Affinity;
use linux::{
    namespaces::{inside, others},
    network_namespace,
};
use serde::Serialize;

use super::{
    args::ListArgs,
    cell::Name,
    frame::{SYS_ADMIN, lacks},
    list::{Row, list_maps},
    names::{NamedListArgs, Names},
    table::{Column, Tone, Value, WIDE, column, cut, plain, toned},
};

/// A session affinity entry of the maps, with the client's address and the names of both pods.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct NamedAffinity {
    #[serde(flatten)]
    pub(super) row: Affinity,
    /// The client's own address; of a network namespace `None` if it cannot be entered from here.
    pub(super) client_address: Option<IpAddr>,
    /// `None` if no pod is known to have the client's address. So is `endpoint_pod`.
    pub(super) client_pod: Option<Name>,
    pub(super) endpoint_pod: Option<Name>,
}

impl Row for NamedAffinity {
    const COLUMNS: &'static [Column<Self>] = &[
        cut("SERVICE", 0, |row| plain(row.row.service.as_str())),
        column("CLIENT", 0, |row| plain(row.client())),
        column("BACKEND", 0, |row| plain(row.row.backend)),
        column("AGE", 1, |row| plain(Value::Seconds(row.row.age_seconds))),
        cut("STATUS", 0, |row| {
            let holds = row.row.status == "holds";
            toned(row.row.status, if holds { Tone::Good } else { Tone::Warn })
        }),
        column("CLIENT-POD", WIDE, |row| plain(row.client_pod.clone())),
        column("BACKEND-POD", WIDE, |row| plain(row.endpoint_pod.clone())),
    ];
    fn name(&self) -> String {
        format!("affinity/{}/{}", self.row.service, self.row.client)
    }
}

impl NamedAffinity {
    /// Creates a row. `namespaces`: the addresses of each network namespace, by its cookie.
    fn new(row: Affinity, namespaces: &HashMap<u64, Vec<IpAddr>>) -> Self {
        let v4 = row.backend.map(|backend| backend.is_ipv4());
        let is_fitting = |address: &&IpAddr| v4.is_none_or(|v4| v4 == address.is_ipv4());
        let client_address = match cookie(&row).map(|cookie| namespaces.get(&cookie)) {
            Some(own) => own.into_iter().flatten().find(is_fitting).copied(),
            None => row.client.parse().ok(),
        };
        Self {
            row,
            client_address,
            client_pod: None,
            endpoint_pod: None,
        }
    }
    /// Returns the client as text: a network namespace is shown with its address, if that is known.
    fn client(&self) -> String {
        match self.client_address {
            Some(address) if cookie(&self.row).is_some() => {
                format!("{address} ({})", self.row.client)
            }
            _ => self.row.client.clone(),
        }
    }
}

/// Returns the cookie (the kernel's id) of a client that is a network namespace.
fn cookie(row: &Affinity) -> Option<u64> {
    row.client.strip_prefix("netns:")?.parse().ok()
}

pub(super) fn run(args: &NamedListArgs) -> Result<()> {
    let mut pods = Names::of_list(&args.list.show, &args.names);
    list_maps(&args.list, &[], |reader| {
        let rows = reader.affinities()?;
        let namespaces = match rows.iter().any(|row| cookie(row).is_some()) {
            true => namespace_addresses(),
            false => HashMap::new(),
        };
        let rows = rows.into_iter();
        let rows = rows.map(|row| NamedAffinity::new(row, &namespaces));
        let mut rows: Vec<_> = rows.filter(|row| wants(&args.list, row)).collect();
        if rows.iter().any(|row| row.client_address.is_none())
            && let Some(lacks) = lacks(SYS_ADMIN, "affinity")
        {
            eprintln!("portolan: network namespaces are shown without an address: {lacks}");
        }
        let backend = |row: &NamedAffinity| row.row.backend.map(|backend| backend.ip());
        let ends = |row: &NamedAffinity| [row.client_address, backend(row)];
        pods.learn(rows.iter().flat_map(ends).flatten());
        for row in &mut rows {
            row.client_pod = row.client_address.and_then(|address| pods.at(address));
            row.endpoint_pod = backend(row).and_then(|address| pods.at(address));
        }
        Ok(rows)
    })
}

fn wants(args: &ListArgs, row: &NamedAffinity) -> bool {
    let client = row.client_address.map(|address| (address, 0).into());
    let row = &row.row;
    let ends: Vec<_> = client.into_iter().chain(row.backend).collect();
    let (service, name, port) = (&row.service, &row.port_name, row.service_port);
    args.select.wants(service, name, port, row.protocol, &ends)
}

/// Returns the addresses of each network namespace of this host that is visible to this process:
/// those of processes, and those that have a name. Key: the namespace's cookie (the kernel's id).
/// Omits loopback and link-local addresses, and namespaces that cannot be entered.
fn namespace_addresses() -> HashMap<u64, Vec<IpAddr>> {
    let here = || Ok((network_namespace()?, own_addresses()?));
    let others = others();
    let others = others.iter().filter_map(|file| inside(file, here).ok());
    here().into_iter().chain(others).collect()
}

fn own_addresses() -> io::Result<Vec<IpAddr>> {
    let mut found = Vec::new();
    for address in nix::ifaddrs::getifaddrs()?.filter_map(|one| one.address) {
        let v4 = address.as_sockaddr_in().map(|v4| IpAddr::from(v4.ip()));
        let v6 = || address.as_sockaddr_in6().map(|v6| IpAddr::from(v6.ip()));
        let is_reached = |ip: &IpAddr| match ip {
            IpAddr::V4(v4) => !v4.is_loopback() && !v4.is_link_local(),
            IpAddr::V6(v6) => !v6.is_loopback() && !v6.is_unicast_link_local(),
        };
        found.extend(v4.or_else(v6).filter(is_reached));
    }
    found.sort_unstable();
    Ok(found)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(crate) fn rows() -> Vec<NamedAffinity> {
        let row = |client: &str, status, backend: Option<&str>| Affinity {
            service: "shop/cart".into(),
            client: client.into(),
            backend: backend.and_then(|backend| backend.parse().ok()),
            age_seconds: 9,
            port_name: String::new(),
            service_port: 80,
            protocol: "TCP",
            status,
        };
        let known = HashMap::from([(7, vec![[10, 40, 1, 11].into()])]);
        let of = |row| NamedAffinity::new(row, &known);
        let void = "void: the endpoint no longer serves";
        let mut rows = vec![
            of(row("10.40.1.9", "holds", Some("10.40.1.10:8080"))),
            of(row("netns:7", "holds", Some("10.40.1.10:8080"))),
            of(row("netns:4026532", void, None)),
        ];
        rows[0].client_pod = Some(Name::new("shop/web-1".into()));
        rows
    }

    #[test]
    fn the_network_namespace_of_this_process_is_found() {
        let own = network_namespace().expect("a cookie");
        let addresses = namespace_addresses();
        let own = addresses.get(&own).expect("it is there");
        assert!(own.iter().all(|address| !address.is_loopback()));
    }
}
