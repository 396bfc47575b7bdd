// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Pod names in lists: from the manifests, and for clients that are known only by their network
//! namespace.

use std::process::{Child, Command};

use lab::node::netns::NetNs;
use serde_json::Value;

use crate::world::World;

/// A process that is running; dropping this kills it.
pub(crate) struct Sleeping(Child);

impl Sleeping {
    /// Starts a process in the client pod: by it, others see the pod's network namespace.
    pub(crate) fn in_client(world: &World) -> Self {
        Self::in_pod(world.client())
    }

    /// Starts a process in a pod.
    pub(crate) fn in_pod(pod: &NetNs) -> Self {
        let process = pod.enter(|| Command::new("sleep").arg("600").spawn());
        Self(process.expect("the pod").expect("it runs"))
    }
}

impl Drop for Sleeping {
    fn drop(&mut self) {
        _ = self.0.kill();
        _ = self.0.wait();
    }
}

/// The slice of another service, whose pod is the client.
pub(crate) const WEB: &str = "kind: EndpointSlice
apiVersion: discovery.k8s.io/v1
metadata: {name: web-1, namespace: shop}
addressType: IPv4
endpoints: [{addresses: [10.40.1.10], targetRef: {kind: Pod, name: web-a}}]
";

pub(crate) fn lists_name_the_pods_of_endpoints_and_clients(world: &World) {
    // One connection is translated packet by packet, one at its socket. The client of the latter is
    // known only by its network namespace.
    let _packets = world.connect("172.30.1.1:80").expect("served");
    let _socket = world.connect_at_socket("172.30.1.1:80");
    let _process = Sleeping::in_client(world);

    let folder = world.manifests();
    let folder = ["--manifests", folder.as_str()];
    let rows = |command: &str| -> Vec<Value> {
        let words = [&[command, "cart", "-o", "json"], &folder[..]].concat();
        serde_json::from_str(&world.told(&words)).expect("rows")
    };
    assert_eq!(rows("backends")[0]["pod"], "shop/cart-a");
    let flows = rows("flows");
    assert_eq!(flows[0]["clientPod"], "shop/web-a", "{flows:?}");
    assert_eq!(flows[0]["backendPod"], "shop/cart-a");
    let affinity = rows("affinity");
    let of_namespace = affinity.iter().find(|row| {
        let client = row["client"].as_str().expect("a client");
        client.starts_with("netns:")
    });
    let of_namespace = of_namespace.unwrap_or_else(|| panic!("{affinity:?}"));
    assert_eq!(of_namespace["clientAddress"], "10.40.1.10");
    assert_eq!(of_namespace["clientPod"], "shop/web-a");
    assert_eq!(of_namespace["endpointPod"], "shop/cart-a");
    let by_address = world.told(&["affinity", "--address", "10.40.1.10"]);
    assert!(by_address.contains("10.40.1.10 (netns:"), "{by_address}");

    let wide = world.told(&[&["backends", "-o", "wide"], &folder[..]].concat());
    assert!(wide.contains("shop/cart-a"), "{wide}");
    let plain = world.told(&[&["backends"], &folder[..]].concat());
    assert!(!plain.contains("POD"), "{plain}");
    let nobody = ["backends", "-o", "wide", "--manifests", "/nonexistent"];
    let output = world.asking(&nobody).output().expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.starts_with("portolan: pods are not named: "), "{said}");
    assert!(output.status.success(), "the rows are there");
}
