// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The objects of the tests: the node, and services of the pod that answers.

/// The Node object; a version is given where no server sets one.
pub(crate) fn node_object(version: Option<u64>) -> String {
    let version = version.map_or_else(String::new, |version| {
        format!(", resourceVersion: \"{version}\"")
    });
    format!(
        "{{apiVersion: v1, kind: Node, metadata: {{name: node-a{version}}}, status: {{addresses: [{{type: InternalIP, address: 10.40.0.1}}]}}}}"
    )
}

/// A service whose endpoint is the pod that answers. Its node port is 30000 plus the last number of
/// the cluster IP; that of `twin` is 31000.
pub(crate) fn service(name: &str, cluster_ip: &str) -> String {
    let last: u16 = cluster_ip
        .rsplit('.')
        .next()
        .and_then(|last| last.parse().ok())
        .expect("a cluster IP");
    let port = if name == "twin" { 31000 } else { 30000 + last };
    format!(
        "apiVersion: v1
kind: Service
metadata: {{name: {name}, namespace: shop}}
spec: {{type: NodePort, clusterIP: {cluster_ip}, clusterIPs: [{cluster_ip}], ports: [{{port: 80, nodePort: {port}}}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: {name}-1, namespace: shop, labels: {{kubernetes.io/service-name: {name}}}}}
addressType: IPv4
ports: [{{name: \"\", protocol: TCP, port: 8080}}]
endpoints: [{{addresses: [10.40.1.20], nodeName: node-a}}]
"
    )
}

/// A UDP service of the pod that answers.
pub(crate) const QUESTIONS: &str = "apiVersion: v1
kind: Service
metadata: {name: questions, namespace: shop}
spec: {clusterIP: 172.30.1.9, clusterIPs: [172.30.1.9], ports: [{port: 53, protocol: UDP}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: questions-1, namespace: shop, labels: {kubernetes.io/service-name: questions}}
addressType: IPv4
ports: [{name: \"\", protocol: UDP, port: 8080}]
endpoints: [{addresses: [10.40.1.20], nodeName: node-a}]
";
