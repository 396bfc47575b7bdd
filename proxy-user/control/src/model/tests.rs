// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Faulty objects: each bad part causes a warning, and the rest of the object works.

mod addresses;

use rstest::rstest;

use super::{Endpoints, Object, Selection};
use crate::testing::{complaints, endpoint, objects, service, slice};

#[rstest]
#[case::port_too_high(
    "ports: [{name: http, port: 70000}, {name: web, port: 81}]",
    "spec.ports[0] (http): port 70000 is not between 1 and 65535; this port is not served, correct its number"
)]
#[case::port_zero(
    "ports: [{port: 0}, {name: web, port: 81}]",
    "spec.ports[0]: port 0 is not between 1 and 65535; this port is not served, correct its number"
)]
#[case::protocol(
    "ports: [{name: http, port: 80, protocol: ICMP}, {name: web, port: 81}]",
    "spec.ports[0] (http): protocol \"ICMP\" is not TCP, UDP or SCTP; this port is not served, correct its protocol"
)]
#[case::node_port(
    "ports: [{name: http, port: 80, nodePort: 99999}]",
    "spec.ports[0] (http): nodePort 99999 is not between 1 and 65535; the port is served without a node port, correct its number"
)]
#[case::same_name(
    "ports: [{name: http, port: 80}, {name: http, port: 81}]",
    "spec.ports[1] (http): an earlier port has the same name and protocol; this one is not served, give it another name"
)]
#[case::external_ip(
    "ports: [{name: http, port: 80}], externalIPs: [cart.example.net]",
    "externalIP \"cart.example.net\" is not an IP address; it is not served, correct the address"
)]
#[case::external_ip_of_a_family_that_the_service_lacks(
    "ports: [{name: http, port: 80}], externalIPs: ['2001:db8::1']",
    "externalIP 2001:db8::1 is not served because the service has no IPv6 cluster IP; add IPv6 to its ipFamilies or remove the address"
)]
#[case::balancer_ip(
    "ports: [{name: http, port: 80}]}\nstatus: {loadBalancer: {ingress: [{ip: 198.51.100.300}]}",
    "load balancer IP \"198.51.100.300\" is not an IP address; it is not served, correct the address"
)]
#[case::source_range(
    "ports: [{name: http, port: 80}], loadBalancerSourceRanges: [203.0.113.0/24, 10.0.0.1]",
    "loadBalancerSourceRanges: \"10.0.0.1\" is not an address range and allows nobody; write it like 203.0.113.0/24"
)]
#[case::affinity(
    "ports: [{name: http, port: 80}], sessionAffinity: Cookie",
    "sessionAffinity \"Cookie\" is neither None nor ClientIP; there is no affinity, use one of the two"
)]
#[case::affinity_timeout(
    "ports: [{name: http, port: 80}], sessionAffinity: ClientIP, sessionAffinityConfig: {clientIP: {timeoutSeconds: 0}}",
    "sessionAffinityConfig.clientIP.timeoutSeconds 0 is not between 1 and 86400; the default of 10800 is used, correct the number"
)]
#[case::policy(
    "ports: [{name: http, port: 80}], internalTrafficPolicy: Nearby",
    "internalTrafficPolicy \"Nearby\" is neither Cluster nor Local; Cluster is used, set one of the two"
)]
#[case::health_check_port(
    "ports: [{name: http, port: 80}], type: LoadBalancer, externalTrafficPolicy: Local, healthCheckNodePort: -1",
    "healthCheckNodePort -1 is not between 1 and 65535; health checks get no answer, correct the number"
)]
fn an_invalid_service_field_gives_a_warning_and_the_rest_is_served(
    #[case] spec: &str,
    #[case] reason: &str,
) {
    let yaml = format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: cart, namespace: shop}}\nspec: {{clusterIP: 172.30.0.1, {spec}}}\n",
    );
    let (objects, warnings) = objects(&yaml);
    let found: Vec<_> = warnings.iter().map(ToString::to_string).collect();
    assert_eq!(found, [format!("Service shop/cart: {reason}")]);
    let [Object::Service(service)] = &objects[..] else {
        panic!("{objects:?}")
    };
    assert!(service.is_served());
    assert_eq!(service.ports.len(), 1);
}

#[test]
fn an_unknown_selection_annotation_gives_a_warning_and_is_ignored() {
    let yaml = |word: &str| {
        let annotation = format!("annotations: {{service.portolan.dev/selection: {word}}}");
        service("cart", "172.30.0.1", "")
            .replace("metadata: {", &format!("metadata: {{{annotation}, "))
    };
    for (word, selection) in [("maglev", Selection::Maglev), ("random", Selection::Random)] {
        let (found, warnings) = objects(&yaml(word));
        assert!(warnings.is_empty(), "{warnings:?}");
        let Object::Service(service) = &found[0] else {
            panic!("{found:?}")
        };
        assert_eq!(service.selection, Some(selection));
    }
    assert_eq!(
        complaints(&yaml("Maglev")),
        [
            "Service shop/cart: annotation service.portolan.dev/selection \"Maglev\" is neither random nor maglev; the setting portolan.selection counts, use one of the two"
        ]
    );
}

#[test]
fn a_wrong_weight_gives_a_warning_and_the_slice_counts_as_without_one() {
    let yaml = |weight: &str| {
        let annotation = format!("annotations: {{service.portolan.dev/weight: '{weight}'}}");
        slice("cart-1", "cart", &[endpoint(1, "node-a", "")])
            .replace("metadata: {", &format!("metadata: {{{annotation}, "))
    };
    let read = |weight: &str| {
        let (found, warnings) = objects(&yaml(weight));
        let Object::EndpointSlice(slice) = &found[0] else {
            panic!("{found:?}")
        };
        let warnings: Vec<_> = warnings.iter().map(ToString::to_string).collect();
        (slice.weight, warnings)
    };
    for weight in [0, 1, 256] {
        assert_eq!(read(&weight.to_string()), (weight, Vec::new()));
    }
    for wrong in ["257", "-1", "1.5", "", "heavy", "70000"] {
        let warning = format!(
            "EndpointSlice shop/cart-1: annotation service.portolan.dev/weight {wrong:?} is not a whole number between 0 and 256; the endpoints have weight 1, as without it, correct the number"
        );
        assert_eq!(read(wrong), (1, vec![warning]));
    }
}

#[test]
fn an_invalid_or_surplus_cluster_ip_gives_a_warning() {
    assert_eq!(
        complaints(&service("cart", "172.30.0", "")),
        [
            "Service shop/cart: clusterIP \"172.30.0\" is not an IP address; it is not served, correct the address"
        ]
    );
    assert_eq!(
        complaints(&service(
            "cart",
            "172.30.0.1",
            ", clusterIPs: [172.30.0.1, 172.30.0.2]"
        )),
        [
            "Service shop/cart: clusterIPs has several addresses of one family; only 172.30.0.2 is served, keep one per family"
        ]
    );
}

#[rstest]
#[case::other_family(
    "['fd00::1']",
    "fd00::1 does not match addressType IPv4; this endpoint is ignored, put it into a slice of its own family"
)]
#[case::loopback(
    "[127.0.0.1]",
    "127.0.0.1 is a loopback address, which other hosts cannot reach; this endpoint is ignored, use the pod's own address"
)]
#[case::link_local(
    "[169.254.1.1]",
    "169.254.1.1 is a link-local address, which other hosts cannot reach; this endpoint is ignored, use the pod's own address"
)]
#[case::unspecified(
    "[0.0.0.0]",
    "0.0.0.0 is an unspecified address, which other hosts cannot reach; this endpoint is ignored, use the pod's own address"
)]
#[case::multicast(
    "[224.0.0.1]",
    "224.0.0.1 is a multicast address, which other hosts cannot reach; this endpoint is ignored, use the pod's own address"
)]
#[case::broadcast(
    "[255.255.255.255]",
    "255.255.255.255 is the broadcast address, which other hosts cannot reach; this endpoint is ignored, use the pod's own address"
)]
#[case::loopback_of_the_other_family(
    "['::1']",
    "::1 is a loopback address, which other hosts cannot reach; this endpoint is ignored, use the pod's own address"
)]
#[case::link_local_of_the_other_family(
    "['fe80::1']",
    "fe80::1 is a link-local address, which other hosts cannot reach; this endpoint is ignored, use the pod's own address"
)]
#[case::no_address_at_all(
    "[pod-1]",
    "\"pod-1\" is not an IP address; this endpoint is ignored, correct the address"
)]
fn an_invalid_endpoint_address_gives_a_warning_and_the_others_serve(
    #[case] addresses: &str,
    #[case] reason: &str,
) {
    let bad = format!("    - {{addresses: {addresses}}}\n");
    let yaml = slice(
        "cart-1",
        "cart",
        &[endpoint(1, "node-a", ""), bad, endpoint(3, "node-a", "")],
    );
    let (objects, warnings) = objects(&yaml);
    let found: Vec<_> = warnings.iter().map(ToString::to_string).collect();
    assert_eq!(
        found,
        [format!("EndpointSlice shop/cart-1: endpoints[1]: {reason}")]
    );
    let [Object::EndpointSlice(slice)] = &objects[..] else {
        panic!("{objects:?}")
    };
    let Endpoints::V4(endpoints) = &slice.endpoints else {
        panic!("{slice:?}")
    };
    assert_eq!(endpoints.len(), 2);
}

#[rstest]
#[case::number(
    "{name: x, port: 70000}",
    "ports[0] (x): port 70000 is not between 1 and 65535; this port is ignored, correct its number"
)]
#[case::none(
    "{name: x}",
    "ports[0] (x): port (none) is not between 1 and 65535; this port is ignored, correct its number"
)]
#[case::protocol(
    "{port: 1, protocol: GRE}",
    "ports[0]: protocol \"GRE\" is not TCP, UDP or SCTP; this port is ignored, correct its protocol"
)]
fn an_invalid_slice_port_gives_a_warning_and_the_others_serve(
    #[case] port: &str,
    #[case] reason: &str,
) {
    let yaml = slice("cart-1", "cart", &[endpoint(1, "node-a", "")])
        .replace("ports: [", &format!("ports: [{port}, "));
    let (objects, warnings) = objects(&yaml);
    let found: Vec<_> = warnings.iter().map(ToString::to_string).collect();
    assert_eq!(found, [format!("EndpointSlice shop/cart-1: {reason}")]);
    let [Object::EndpointSlice(slice)] = &objects[..] else {
        panic!("{objects:?}")
    };
    assert_eq!(slice.ports.len(), 1);
}

#[rstest]
#[case::host_names("addressType: FQDN", None)]
#[case::unknown_type(
    "addressType: IPX",
    Some(
        "EndpointSlice shop/cart-1: addressType \"IPX\" is not IPv4, IPv6 or FQDN; the slice is ignored, correct its addressType"
    )
)]
fn slices_of_other_address_types_are_ignored(#[case] field: &str, #[case] expected: Option<&str>) {
    let yaml = slice("cart-1", "cart", &[]).replace("addressType: IPv4", field);
    let yaml = yaml.replace(
        "endpoints:\n",
        "endpoints: [{addresses: [pod.example.net]}]\n",
    );
    assert_eq!(
        complaints(&yaml.replace("pod.example.net", "10.40.1.1")),
        Vec::from_iter(expected)
    );
    let (objects, _) = objects(&yaml);
    let [Object::EndpointSlice(slice)] = &objects[..] else {
        panic!("{objects:?}")
    };
    assert_eq!(slice.service, None);
}

#[test]
fn a_slice_without_the_service_name_label_gives_a_warning() {
    let yaml = slice("cart-1", "cart", &[endpoint(1, "node-a", "")])
        .replace("kubernetes.io/service-name", "app");
    assert_eq!(
        complaints(&yaml),
        [
            "EndpointSlice shop/cart-1: it has no label kubernetes.io/service-name, so no service uses it; set this label to the service's name"
        ]
    );
}

#[test]
fn at_most_20_faults_of_a_slice_are_shown_and_the_others_counted() {
    let bad: Vec<_> = (0..100)
        .map(|n| format!("    - {{addresses: [pod-{n}]}}\n"))
        .collect();
    let found = complaints(&slice("cart-1", "cart", &bad));
    assert_eq!(found.len(), 21);
    assert_eq!(
        found[20],
        "EndpointSlice shop/cart-1: 80 more faults are not shown; correct the ones above to see them"
    );
}

#[test]
fn an_object_without_a_name_is_reported_by_file_and_line() {
    let yaml = "apiVersion: v1\nkind: Service\nmetadata: {}\n---\n".to_owned()
        + &service("cart", "172.30.0.1", "");
    let (objects, _) = objects(&yaml);
    assert_eq!(objects.len(), 1);
    assert_eq!(
        complaints(&yaml),
        [
            "test.yaml, document 1, line 1: Service: metadata.name is missing, so the object is ignored; give it a name"
        ]
    );
}

#[test]
fn a_node_has_its_first_valid_address_per_family_zone_and_eligibility() {
    let yaml = "
apiVersion: v1
kind: Node
metadata: {name: node-a, resourceVersion: '7', labels: {topology.kubernetes.io/zone: zone-a}}
spec: {taints: [{key: ToBeDeletedByClusterAutoscaler, effect: NoSchedule}]}
status:
  addresses:
    - {type: Hostname, address: node-a}
    - {type: InternalIP, address: nowhere}
    - {type: InternalIP, address: 0.0.0.0}
    - {type: InternalIP, address: '::1'}
    - {type: InternalIP, address: 192.168.40.2}
    - {type: InternalIP, address: 192.168.41.2}
    - {type: InternalIP, address: 'fd00:c0::2'}
";
    let (objects, warnings) = objects(yaml);
    assert_eq!(warnings.len(), 3);
    let [Object::Node(node)] = &objects[..] else {
        panic!("{objects:?}")
    };
    assert_eq!(&*node.resource_version, "7");
    assert_eq!(node.zone.as_deref(), Some("zone-a"));
    assert_eq!(node.internal_v4, "192.168.40.2".parse().ok());
    assert_eq!(node.internal_v6, "fd00:c0::2".parse().ok());
    assert!(!node.eligible);
}

#[test]
fn a_node_without_an_internal_address_has_its_external_one() {
    let yaml = "
apiVersion: v1
kind: Node
metadata: {name: node-a}
status:
  addresses:
    - {type: ExternalIP, address: 203.0.113.7}
    - {type: ExternalIP, address: '2001:db8::7'}
    - {type: InternalIP, address: 192.168.40.2}
";
    let (objects, warnings) = objects(yaml);
    assert_eq!(warnings.len(), 0);
    let [Object::Node(node)] = &objects[..] else {
        panic!("{objects:?}")
    };
    assert_eq!(node.internal_v4, "192.168.40.2".parse().ok());
    assert_eq!(node.internal_v6, "2001:db8::7".parse().ok());
}

#[test]
fn an_endpoint_takes_at_most_16_bytes_for_ipv4_and_32_for_ipv6() {
    assert!(size_of::<super::Endpoint<proxy_common::V4>>() <= 16);
    assert!(size_of::<super::Endpoint<proxy_common::V6>>() <= 32);
}
