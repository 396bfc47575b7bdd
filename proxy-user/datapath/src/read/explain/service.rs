// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Finds the addresses of a service by its name, from the maps of names and records.

use std::{collections::BTreeSet, net::IpAddr};

use linux::text;
use proxy_common::{
    FrontendKey, FrontendKind, Protocol, Record, ServiceId, V4, V6, maps, service::ServiceName,
};

use crate::{
    error::DatapathError,
    maps::{family::Family, tables::Table},
    read::{Reader, ServicePort, failed},
};

/// One address and port of a service. A node port has the node's InternalIP as its address.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ServiceAddress {
    pub kind: FrontendKind,
    pub address: IpAddr,
    pub port: u16,
    pub protocol: Protocol,
    /// Empty for the only port of a service without port names.
    pub port_name: String,
}

impl Reader {
    /// Reads the name of the service port with this id, and keeps it for all later output of this
    /// reader. Returns "namespace/name" of the service, and the name of the port.
    pub(super) fn learn(&mut self, id: ServiceId) -> Result<(String, String), DatapathError> {
        let names: Table<u32, ServiceName> = self.table(maps::NAMES)?;
        if let Some(name) = names.lookup(&id.0).map_err(failed(maps::NAMES))? {
            self.names.insert(id.0, ServicePort::new(&name));
        }
        let named = self.name(id.0);
        Ok((named.service, named.port_name))
    }

    /// Returns every address of a service, cluster IPs first; empty if the maps do not know the
    /// service. Walks through all names, which takes tens of milliseconds where there are many.
    pub fn addresses_of(
        &self,
        namespace: &str,
        name: &str,
    ) -> Result<Vec<ServiceAddress>, DatapathError> {
        let mut ids = Vec::new();
        self.each_named(name, |id, found| {
            if holds(&found.namespace, namespace) {
                ids.push((ServiceId(id), text(&found.port_name)));
            }
        })?;
        let mut found = Vec::new();
        if !ids.is_empty() {
            self.addresses_in::<V4>(&ids, &mut found)?;
            self.addresses_in::<V6>(&ids, &mut found)?;
        }
        found.sort_by_key(|one| (one.kind, one.address, one.port));
        Ok(found)
    }

    /// Returns the namespaces in which a service has this name.
    pub fn namespaces_of(&self, name: &str) -> Result<BTreeSet<String>, DatapathError> {
        let mut namespaces = BTreeSet::new();
        self.each_named(name, |_, found| {
            namespaces.insert(text(&found.namespace));
        })?;
        Ok(namespaces)
    }

    /// Calls `found` with each service port of the services with this name.
    fn each_named(
        &self,
        name: &str,
        mut found: impl FnMut(u32, &ServiceName),
    ) -> Result<(), DatapathError> {
        let names: Table<u32, ServiceName> = self.table(maps::NAMES)?;
        let visit = |id, one: ServiceName| {
            if holds(&one.name, name) {
                found(id, &one);
            }
        };
        names.each(visit).map_err(failed(maps::NAMES))
    }

    fn addresses_in<A: Family>(
        &self,
        ids: &[(ServiceId, String)],
        found: &mut Vec<ServiceAddress>,
    ) -> Result<(), DatapathError> {
        let frontends: Table<FrontendKey<A>, u32> = self.table(A::FRONTENDS)?;
        let records = self.array(A::RECORDS)?;
        let settings = self.settings()?;
        let mut wanted = Vec::new();
        // `scan_window` cannot be used, because a record without endpoints begins with zeros.
        let scanned = records.scan(|id, record: Record<A>| {
            let own = ids.iter().find(|(service, _)| *service == record.service);
            if let Some((_, port_name)) = own {
                wanted.push((id, record, port_name.clone()));
            }
            false
        });
        scanned.map_err(failed(A::RECORDS))?;
        for (id, record, port_name) in wanted {
            let kind = record.flags.kind();
            let address: IpAddr = match kind {
                FrontendKind::NodePort => A::internal(&settings).into(),
                _ => record.key.address.into(),
            };
            let is_addressed = !address.is_unspecified()
                && !matches!(kind, FrontendKind::Unserved | FrontendKind::Echo);
            let leads_here = || frontends.lookup(&record.key).map_err(failed(A::FRONTENDS));
            if is_addressed && leads_here()? == Some(id) {
                found.push(ServiceAddress {
                    kind,
                    address,
                    port: record.key.port.host(),
                    protocol: record.key.protocol,
                    port_name,
                });
            }
        }
        Ok(())
    }
}

/// True if `padded`, without the zero bytes at its end, equals `text`.
fn holds(padded: &[u8; 64], text: &str) -> bool {
    padded
        .strip_prefix(text.as_bytes())
        .is_some_and(|rest| rest.first().is_none_or(|byte| *byte == 0))
}
