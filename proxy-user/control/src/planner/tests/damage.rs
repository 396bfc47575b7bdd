// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Damaged manifests are read and planned or refused, but never cause a panic.

use proptest::prelude::*;
use serde_json::json;

use crate::{
    documents,
    model::{Converter, gateway::tests::OBJECTS},
    testing::{Cluster, NODE, damaged},
};

const YAML: &str = "
apiVersion: v1
kind: Service
metadata: {name: cart, namespace: shop, labels: {app: cart}, annotations: {service.kubernetes.io/topology-mode: Auto}}
spec:
  type: LoadBalancer
  clusterIP: 172.30.0.1
  clusterIPs: [172.30.0.1, 'fd00:30::1']
  ipFamilies: [IPv4, IPv6]
  externalIPs: [192.0.2.1]
  externalTrafficPolicy: Local
  internalTrafficPolicy: Cluster
  healthCheckNodePort: 31000
  sessionAffinity: ClientIP
  sessionAffinityConfig: {clientIP: {timeoutSeconds: 60}}
  loadBalancerSourceRanges: [203.0.113.0/24]
  ports:
    - {name: http, port: 80, targetPort: web, nodePort: 30080}
    - {name: dns, port: 53, protocol: UDP}
status: {loadBalancer: {ingress: [{ip: 198.51.100.1, ipMode: VIP}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: cart-1, namespace: shop, labels: {kubernetes.io/service-name: cart}}
addressType: IPv4
ports: [{name: http, protocol: TCP, port: 8080}, {name: dns, protocol: UDP, port: 53}]
endpoints:
  - {addresses: [10.40.1.10], nodeName: node-a, zone: a, conditions: {ready: true, serving: true, terminating: false}}
  - {addresses: [10.40.2.10], nodeName: node-b, hints: {forZones: [{name: a}]}}
---
apiVersion: v1
kind: Node
metadata: {name: node-a, labels: {topology.kubernetes.io/zone: a}}
spec: {podCIDRs: [10.40.1.0/24]}
status: {addresses: [{type: InternalIP, address: 192.168.40.2}]}
---
apiVersion: networking.k8s.io/v1
kind: ServiceCIDR
metadata: {name: kubernetes}
spec: {cidrs: [172.30.0.0/16, 'fd00:30::/108']}
";

fn files() -> [(&'static str, String); 3] {
    let list = json!({"kind": "List", "items": documents::values("a.yaml", YAML)});
    [
        ("a.yaml", YAML.to_owned()),
        ("a.json", list.to_string()),
        ("b.yaml", OBJECTS.to_owned()),
    ]
}

/// Reads a file and plans every service in it; returns how many have a port, or why the file cannot
/// be read.
fn planned(file: &str, text: &str) -> Result<usize, String> {
    let mut converter = Converter::new(NODE);
    converter.gateways = true;
    let content = documents::read(file, text, &mut converter);
    let content = content.map_err(|malformed| malformed.to_string())?;
    let mut cluster = Cluster::new("");
    cluster.take(content.objects.into_iter().map(|(object, _)| object));
    let served = cluster.state.served().into_iter();
    let plans = served.map(|name| cluster.plan_of(&name).0);
    Ok(plans.filter(|plan| !plan.ports.is_empty()).count())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn a_damaged_manifest_is_planned_or_refused(
        edits in prop::collection::vec(any::<(u16, u8, u8)>(), 0..6), which in 0..3_usize,
    ) {
        let (file, text) = &files()[which];
        if let Err(reason) = planned(file, &damaged(text, &edits)) {
            prop_assert!(!reason.is_empty() && !reason.contains('\n'), "{}", reason);
        }
    }
}

#[test]
fn the_undamaged_manifests_can_be_planned() {
    let plans = files().map(|(file, text)| planned(file, &text).expect("readable"));
    assert_eq!(plans, [1, 1, 0]);
}
