// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reads the cluster's services once, from the source that `portolan run` would follow. Returns
//! findings about those that portolan would serve differently from kube-proxy.

use std::{net::IpAddr, sync::Arc, time::Duration};

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
        bail!(
            "the cluster's services could not be listed in {} s{reason}",
            PATIENCE.as_secs()
        );
    }
    following.await.context("list the cluster's services")??;
    bail!("the cluster's services were not listed to the end");
}

impl Cluster {
    /// Returns how many endpoints the EndpointSlices of all services have together.
    pub(super) fn endpoints(&self) -> usize {
        let changes = self.batches.iter().flat_map(|batch| &batch.changes);
        let counts = changes.filter_map(|change| match change {
            Change::Upsert(Object::EndpointSlice(slice)) => {
                slice.service.as_ref()?;
                Some(match &slice.endpoints {
                    Endpoints::V4(endpoints) => endpoints.len(),
                    Endpoints::V6(endpoints) => endpoints.len(),
                })
            }
            _ => None,
        });
        counts.sum()
    }
    fn services(&self) -> impl Iterator<Item = &Arc<Service>> {
        let changes = self.batches.iter().flat_map(|batch| &batch.changes);
        let services = changes.filter_map(|change| match change {
            Change::Upsert(Object::Service(service)) => Some(service),
            _ => None,
        });
        services.filter(|service| service.is_served())
    }
}

pub(super) fn findings(
    cluster: &Cluster,
    config: &Config,
    interfaces: &[Interface],
) -> Vec<Finding> {
    let services: Vec<_> = cluster.services().map(AsRef::as_ref).collect();
    let mut findings = Vec::new();
    let named = |wanted: &dyn Fn(&Service) -> bool| {
        let names = services.iter().filter(|service| wanted(service));
        some_if_any(
            names
                .map(|service: &&Service| &service.name)
                .collect::<Vec<_>>(),
        )
    };
    if config.socket_balancing == SocketBalancing::All
        && let Some(names) = named(&|service| service.affinity_timeout != 0)
    {
        findings.push(Finding::differs(
            "session affinity",
            format!("{names}: a pod's connections are translated at the socket, and held to an endpoint by pod, not by address"),
            "nothing, unless a client's address moves between pods: then set portolan.socketBalancing: host",
        ));
    }
    let has_sctp = |service: &Service| {
        let mut ports = service.ports.iter();
        ports.any(|port| port.protocol == Protocol::SCTP)
    };
    if let Some(names) = named(&has_sctp) {
        findings.push(Finding::differs(
            "SCTP",
            format!("{names}: the node's own processes and pods with the node's network do not reach these by SCTP"),
            "have such clients use an endpoint's address",
        ));
    }
    for service in &services {
        for address in cluster_ips(service) {
            findings.extend(of_own_address(service, address, interfaces));
        }
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
    Some(Finding::note(
        format!("Service {}", service.name),
        format!(
            "its cluster IP {address} is an address of the device {}, as NodeLocal DNSCache makes it: portolan leaves it to the process \
             that answers there",
            holder.name
        ),
    ))
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
    fn an_ordinary_service_gives_no_finding() {
        assert_eq!(found(PORTS, &Config::default(), &[]), []);
    }

    #[test]
    fn affinity_is_a_finding_if_sockets_of_pods_are_translated() {
        let spec = format!("sessionAffinity: ClientIP, {PORTS}");
        let about = found(&spec, &Config::default(), &[]);
        assert!(
            about[0].found.starts_with("shop/cart: a pod's connections"),
            "{about:?}"
        );
        let host = Config {
            socket_balancing: SocketBalancing::Host,
            ..Config::default()
        };
        assert_eq!(found(&spec, &host, &[]), []);
    }

    #[test]
    fn an_sctp_port_is_a_finding() {
        let about = found(
            "ports: [{port: 80, protocol: SCTP}]",
            &Config::default(),
            &[],
        );
        assert_eq!(about[0].about, "SCTP");
    }

    #[test]
    fn a_dns_cache_device_with_a_cluster_ip_is_named() {
        let mut cache = interface(7, "nodelocaldns", InterfaceKind::Other);
        cache.addresses = vec!["172.30.1.1/32".parse().expect("an address")];
        let about = found(PORTS, &Config::default(), std::slice::from_ref(&cache));
        assert!(
            about[0].found.contains("the device nodelocaldns"),
            "{about:?}"
        );
        cache.name = "kube-ipvs0".into();
        assert_eq!(found(PORTS, &Config::default(), &[cache]), []);
    }
}
