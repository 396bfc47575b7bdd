// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Logs once each cluster IP that is also an address of the node, for example of a DNS cache on the
//! node. Kept by `syncer`.

use std::{collections::HashMap, net::IpAddr};

use crate::object::ObjectName;

/// For each service, those of its cluster IPs that are also addresses of the node.
#[derive(Debug, Default)]
pub(super) struct OwnClusterIps(HashMap<ObjectName, Vec<IpAddr>>);

impl OwnClusterIps {
    /// Notes which cluster IPs of a service are also addresses of the node, and logs what has
    /// changed.
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
