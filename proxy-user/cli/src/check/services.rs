// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reads the cluster's services once, from the source that `portolan run` would follow. Returns
//! findings about those that portolan would serve differently from kube-proxy.

use std::{fmt::Display, net::IpAddr, time::Duration};

use anyhow::{Context, bail};
use config::{Config, SocketBalancing};
use control::{
    change::{Batch, Change},
    model::{Endpoints, Object, Service},
};
use linux::interfaces::{Interface, InterfaceKind};
use proxy_common::Protocol;
use source::ObjectSource;
use tokio::{sync::mpsc, time::timeout};

use crate::{finding::Finding, frame::some_if_any, run::Given};

/// How long to wait for the first lists of objects.
const PATIENCE: Duration = Duration::from_secs(30);

/// All objects of the cluster, in the batches that the source has sent.
pub(super) struct Cluster {
    pub(super) batches: Vec<Batch>,
}

/// Reads all objects of the cluster once, from the manifests or the API server in `given`.
pub(super) async fn read(given: &Given, config: &Config, node: &str) -> anyhow::Result<Cluster> {
    if let Some(source) = given.manifests(config, node) {
        return listed(source).await;
    }
    let source = given.api_server(config, node).context(
        "--migration compares with the cluster's services; `portolan check` alone looks at the node only",
    )?;
    listed(source).await
}

async fn listed(source: impl ObjectSource) -> anyhow::Result<Cluster> {
    let (sender, mut receiver) = mpsc::channel(16);
    let following = tokio::spawn(source.run(sender));
    let mut batches = Vec::new();
    let complete = timeout(PATIENCE, async {
        while let Some(batch) = receiver.recv().await {
            let is_last = batch.listed;
            batches.push(batch);
            if is_last {
                return;
            }
        }
    })
    .await;
    if batches.last().is_some_and(|batch: &Batch| batch.listed) {
        following.abort();
        return Ok(Cluster { batches });
    }
    if complete.is_err() {
        following.abort();
        let warnings = batches.iter().flat_map(|batch| &batch.warnings);
        let reason = warnings.flat_map(|(_, about)| about).next_back();
        let reason = reason.map_or_else(String::new, |warning| format!(": {warning}"));
        let seconds = PATIENCE.as_secs();
        bail!("the cluster's services could not be listed in {seconds} s{reason}");
    }
    following.await.context("list the cluster's services")??;
    bail!("the cluster's services were not listed to the end");
}

impl Cluster {
    fn objects(&self) -> impl Iterator<Item = &Object> {
        let changes = self.batches.iter().flat_map(|batch| &batch.changes);
        changes.filter_map(|change| match change {
            Change::Upsert(object) => Some(object),
            _ => None,
        })
    }
    /// Returns how many endpoints the EndpointSlices of all services have together.
    pub(super) fn endpoints(&self) -> usize {
        let counts = self.objects().map(|object| match object {
            Object::EndpointSlice(slice) if slice.service.is_some() => match &slice.endpoints {
                Endpoints::V4(endpoints) => endpoints.len(),
                Endpoints::V6(endpoints) => endpoints.len(),
            },
            _ => 0,
        });
        counts.sum()
    }
    fn services(&self) -> impl Iterator<Item = &Service> {
        self.objects().filter_map(|object| match object {
            Object::Service(service) if service.is_served() => Some(&**service),
            _ => None,
        })
    }
}

pub(super) fn findings(
    cluster: &Cluster,
    config: &Config,
    interfaces: &[Interface],
) -> Vec<Finding> {
    let services: Vec<_> = cluster.services().collect();
    let of_all = |code, wanted: fn(&Service) -> bool| {
        let named = services.iter().filter(|service| wanted(service));
        let names = some_if_any(named.map(|service| &service.name).collect::<Vec<_>>())?;
        Some(Finding::of(code, &[&names]))
    };
    let mut findings = Vec::new();
    if config.socket_balancing == SocketBalancing::All {
        let has_affinity = |service: &Service| service.affinity_timeout != 0;
        findings.extend(of_all("affinity-at-sockets", has_affinity));
    }
    findings.extend(of_all("sctp", |service| {
        let mut ports = service.ports.iter();
        ports.any(|port| port.protocol == Protocol::SCTP)
    }));
    for service in &services {
        let addresses = cluster_ips(service);
        findings.extend(addresses.filter_map(|ip| of_own_address(service, ip, interfaces)));
    }
    findings
}

fn cluster_ips(service: &Service) -> impl Iterator<Item = IpAddr> {
    let v4 = service.cluster_v4.map(IpAddr::from);
    v4.into_iter().chain(service.cluster_v6.map(IpAddr::from))
}

/// Returns a note if `address`, a cluster IP of the service, is also the node's own. NodeLocal
/// DNSCache does that with the cluster IP of the cluster's DNS.
fn of_own_address(service: &Service, address: IpAddr, interfaces: &[Interface]) -> Option<Finding> {
    let holder = interfaces.iter().find(|one| {
        one.kind == InterfaceKind::Other
            && !one.is_of_ipvs()
            && one.addresses.iter().any(|net| net.addr() == address)
    })?;
    let words: [&dyn Display; 3] = [&service.name, &address, &holder.name];
    Some(Finding::of("own-cluster-ip", &words))
}

#[cfg(test)]
mod tests {
    use super::*;
    use control::testing::objects;
    use linux::testing::interface;

    fn found(spec: &str, config: &Config, interfaces: &[Interface]) -> Vec<Finding> {
        let yaml = format!(
            "{{apiVersion: v1, kind: Service, metadata: {{name: cart, namespace: shop}}, spec: {{clusterIP: 172.30.1.1, \
             clusterIPs: [172.30.1.1], {spec}}}}}"
        );
        let changes = objects(&yaml).0.into_iter().map(Change::Upsert).collect();
        let batches = vec![Batch {
            changes,
            ..Batch::default()
        }];
        findings(&Cluster { batches }, config, interfaces)
    }

    const PORTS: &str = "ports: [{port: 80}]";

    #[test]
    fn affinity_at_sockets_of_pods_and_sctp_are_findings() {
        let host = Config {
            socket_balancing: SocketBalancing::Host,
            ..Config::default()
        };
        let affinity = format!("sessionAffinity: ClientIP, {PORTS}");
        let held = "shop/cart: a pod's connections";
        let sctp = "ports: [{port: 80, protocol: SCTP}]";
        for (spec, config, words) in [
            (PORTS, &Config::default(), None),
            (&affinity, &Config::default(), Some(held)),
            (&affinity, &host, None),
            (sctp, &host, Some("shop/cart: the node's own processes")),
        ] {
            let found = found(spec, config, &[]);
            assert_eq!(found.len(), usize::from(words.is_some()), "{spec}");
            let is_begun = |words| found.iter().all(|one| one.found.starts_with(words));
            assert!(words.is_none_or(is_begun), "{found:?}");
        }
    }

    #[test]
    fn a_dns_cache_device_with_a_cluster_ip_is_named() {
        let mut cache = interface(7, "nodelocaldns", InterfaceKind::Other);
        cache.addresses = vec!["172.30.1.1/32".parse().expect("an address")];
        let about = found(PORTS, &Config::default(), std::slice::from_ref(&cache));
        assert!(about[0].found.contains("the device nodelocaldns"));
        cache.name = "kube-ipvs0".into();
        assert_eq!(found(PORTS, &Config::default(), &[cache]), []);
    }
}
