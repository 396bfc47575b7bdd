// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Damaged manifests are read and planned or refused, but never cause a panic.

use proptest::prelude::*;
use serde_json::json;

use super::{ZONE_NODE, endpoints::A};
use crate::{
    documents,
    model::{Converter, gateway::tests::OBJECTS},
    testing::{Cluster, NODE, damaged, endpoint, service, slice},
};

/// Labels and annotations of a Service that are read.
const NOTED: &str = "namespace: shop, labels: {app: cart}, annotations: {service.kubernetes.io/topology-mode: Auto, service.portolan.dev/selection: maglev}}";

fn yaml() -> String {
    let rest = ", clusterIPs: [172.30.0.1, 'fd00:30::1'], ipFamilies: [IPv4, IPv6], type: LoadBalancer, externalIPs: [192.0.2.1], externalTrafficPolicy: Local, internalTrafficPolicy: Cluster, healthCheckNodePort: 31000, sessionAffinity: ClientIP, sessionAffinityConfig: {clientIP: {timeoutSeconds: 60}}, loadBalancerSourceRanges: [203.0.113.0/24]}\nstatus: {loadBalancer: {ingress: [{ip: 198.51.100.1, ipMode: VIP}]}";
    let ports = "port: 80, targetPort: web, nodePort: 30080}, {name: dns, port: 53, protocol: UDP}";
    let ready = ", zone: a, conditions: {ready: true, serving: true, terminating: false}";
    let endpoints = [endpoint(1, "node-a", ready), endpoint(2, "node-b", A)];
    let slice = slice("cart-1", "cart", &endpoints);
    let ranges = "apiVersion: networking.k8s.io/v1\nkind: ServiceCIDR\nmetadata: {name: kubernetes}\nspec: {cidrs: [172.30.0.0/16, 'fd00:30::/108']}\n";
    [
        &*service("cart", "172.30.0.1", rest)
            .replace("port: 80}", ports)
            .replace("namespace: shop}", NOTED),
        &*slice.replace("8080}", "8080}, {name: dns, protocol: UDP, port: 53}"),
        &*ZONE_NODE.replace("status:", "spec: {podCIDRs: [10.40.1.0/24]}\nstatus:"),
        ranges,
    ]
    .concat()
}

fn files() -> [(&'static str, String); 3] {
    let yaml = yaml();
    let list = json!({"kind": "List", "items": documents::values("a.yaml", &yaml)});
    [
        ("a.yaml", yaml),
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
