// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Cluster IPs that are the node's own addresses, as of a DNS cache on the node: names each in the
//! log once. Kept by `syncer`.

use std::{collections::HashMap, net::IpAddr};

use crate::object::ObjectName;

/// The services that have such cluster IPs, and these.
#[derive(Debug, Default)]
pub(super) struct OwnClusterIps(HashMap<ObjectName, Vec<IpAddr>>);

impl OwnClusterIps {
    /// Takes those of a service, and logs what has changed.
    pub(super) fn note(&mut self, name: &ObjectName, own: Vec<IpAddr>) {
        let before = self.0.remove(name).unwrap_or_default();
        for ip in own.iter().filter(|ip| !before.contains(ip)) {
            tracing::info!(
                "Service {name}: its cluster IP {ip} is an address of this node, so a process of the node answers there and not the service's endpoints"
            );
        }
        for ip in before.iter().filter(|ip| !own.contains(ip)) {
            tracing::info!("Service {name}: its cluster IP {ip} is served here again");
        }
        if !own.is_empty() {
            self.0.insert(name.clone(), own);
        }
    }
}
