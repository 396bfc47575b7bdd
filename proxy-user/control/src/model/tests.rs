// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Faulty objects: each bad part causes a warning, and the rest of the object works.

mod addresses;

use super::{ClientAddress, Endpoints, Object, Selection, Service};
use crate::testing::{complaints, endpoint, objects, rows, service, slice};

/// Fields of a Service's spec, and below each the warning that it causes.
const SERVICES: &str = r#"
ports: [{name: http, port: 70000}, {name: web, port: 81}]
  | spec.ports[0] (http): port 70000 is not between 1 and 65535; this port is not served, correct its number
ports: [{port: 0}, {name: web, port: 81}]
  | spec.ports[0]: port 0 is not between 1 and 65535; this port is not served, correct its number
ports: [{name: http, port: 80, protocol: ICMP}, {name: web, port: 81}]
  | spec.ports[0] (http): protocol "ICMP" is not TCP, UDP or SCTP; this port is not served, correct its protocol
ports: [{name: http, port: 80, nodePort: 99999}]
  | spec.ports[0] (http): nodePort 99999 is not between 1 and 65535; the port is served without a node port, correct its number
ports: [{name: http, port: 80}, {name: http, port: 81}]
  | spec.ports[1] (http): an earlier port has the same name and protocol; this one is not served, give it another name
ports: [{name: http, port: 80}], clusterIPs: [172.30.0.1, 172.30.0.2]
  | clusterIPs has several addresses of one family; only 172.30.0.2 is served, keep one per family
ports: [{name: http, port: 80}], clusterIPs: [172.30.0.1, 172.30.0]
  | clusterIP "172.30.0" is not an IP address; it is not served, correct the address
ports: [{name: http, port: 80}], externalIPs: [cart.example.net]
  | externalIP "cart.example.net" is not an IP address; it is not served, correct the address
ports: [{name: http, port: 80}], externalIPs: ['2001:db8::1']
  | externalIP 2001:db8::1 is not served because the service has no IPv6 cluster IP; add IPv6 to its ipFamilies or remove the address
ports: [{name: http, port: 80}]}, status: {loadBalancer: {ingress: [{ip: 198.51.100.300}]}
  | load balancer IP "198.51.100.300" is not an IP address; it is not served, correct the address
ports: [{name: http, port: 80}], loadBalancerSourceRanges: [203.0.113.0/24, 10.0.0.1]
  | loadBalancerSourceRanges: "10.0.0.1" is not an address range and allows nobody; write it like 203.0.113.0/24
ports: [{name: http, port: 80}], sessionAffinity: Cookie
  | sessionAffinity "Cookie" is neither None nor ClientIP; there is no affinity, use one of the two
ports: [{name: http, port: 80}], sessionAffinity: ClientIP, sessionAffinityConfig: {clientIP: {timeoutSeconds: 0}}
  | sessionAffinityConfig.clientIP.timeoutSeconds 0 is not between 1 and 86400; the default of 10800 is used, correct the number
ports: [{name: http, port: 80}], internalTrafficPolicy: Nearby
  | internalTrafficPolicy "Nearby" is neither Cluster nor Local; Cluster is used, set one of the two
ports: [{name: http, port: 80}], type: LoadBalancer, externalTrafficPolicy: Local, healthCheckNodePort: -1
  | healthCheckNodePort -1 is not between 1 and 65535; health checks get no answer, correct the number
"#;

/// Returns the one object of a text, and the warnings about it.
fn read(yaml: &str) -> (Object, Vec<String>) {
    let (mut objects, warnings) = objects(yaml);
    assert_eq!(objects.len(), 1, "{objects:?}");
    let warnings = warnings.iter().map(ToString::to_string).collect();
    (objects.remove(0), warnings)
}

#[test]
fn a_service_whose_only_cluster_ip_is_invalid_gives_one_warning_and_is_not_served() {
    let (object, warnings) = read(&service("cart", "172.30.0", ""));
    let reason =
        "clusterIP \"172.30.0\" is not an IP address; it is not served, correct the address";
    assert_eq!(warnings, [format!("Service shop/cart: {reason}")]);
    assert!(matches!(object, Object::Service(one) if !one.is_served()));
}

#[test]
fn an_invalid_service_field_gives_a_warning_and_the_rest_is_served() {
    for [spec, reason] in rows(SERVICES) {
        let yaml = format!(
            "{{apiVersion: v1, kind: Service, metadata: {{name: cart, namespace: shop}}, spec: {{clusterIP: 172.30.0.1, {spec}}}}}",
        );
        let (object, warnings) = read(&yaml);
        assert_eq!(warnings, [format!("Service shop/cart: {reason}")]);
        let is_served =
            matches!(object, Object::Service(one) if one.is_served() && one.ports.len() == 1);
        assert!(is_served, "{spec}");
    }
}

#[test]
fn an_unknown_word_in_an_annotation_gives_a_warning_and_is_ignored() {
    let unknown = |given: &str, words: &str, setting: &str| {
        Some(format!(
            "Service shop/cart: annotation service.portolan.dev/{given} is neither {words}; the setting portolan.{setting} counts, use one of the two"
        ))
    };
    let selection = unknown("selection \"Maglev\"", "random nor maglev", "selection");
    let words = "keep nor masquerade";
    let client = unknown("client-address \"preserve\"", words, "clientAddress");
    let (keep, masquerade) = (ClientAddress::Keep, ClientAddress::Masquerade);
    for (given, known, expected) in [
        ("selection: maglev", (Some(Selection::Maglev), None), None),
        ("selection: random", (Some(Selection::Random), None), None),
        ("selection: Maglev", (None, None), selection),
        ("client-address: keep", (None, Some(keep)), None),
        ("client-address: masquerade", (None, Some(masquerade)), None),
        ("client-address: preserve", (None, None), client),
    ] {
        let annotation = format!("metadata: {{annotations: {{service.portolan.dev/{given}}}, ");
        let yaml = service("cart", "172.30.0.1", "").replace("metadata: {", &annotation);
        let (object, warnings) = read(&yaml);
        let read = |one: &Service| (one.selection, one.client_address) == known;
        assert!(matches!(object, Object::Service(one) if read(&one)));
        assert_eq!(warnings, Vec::from_iter(expected));
    }
}

#[test]
fn a_wrong_weight_gives_a_warning_and_the_slice_counts_as_without_one() {
    let read = |weight: &str| {
        let annotation = format!("annotations: {{service.portolan.dev/weight: '{weight}'}}");
        let yaml = slice("cart-1", "cart", &[endpoint(1, "node-a", "")]);
        match read(&yaml.replace("metadata: {", &format!("metadata: {{{annotation}, "))) {
            (Object::EndpointSlice(slice), warnings) => (slice.weight, warnings),
            (other, _) => panic!("{other:?}"),
        }
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

/// A part of a slice, and below each the warning that it causes. Which addresses have a flaw:
/// `addresses`.
const SLICES: &str = r#"
{addresses: ['fd00::1']}
  | endpoints[1]: fd00::1 does not match addressType IPv4; this endpoint is ignored, put it into a slice of its own family
{addresses: [169.254.1.1]}
  | endpoints[1]: 169.254.1.1 is a link-local address, which other hosts cannot reach; this endpoint is ignored, use the pod's own address
{addresses: ['::1']}
  | endpoints[1]: ::1 is a loopback address, which other hosts cannot reach; this endpoint is ignored, use the pod's own address
{addresses: [pod-1]}
  | endpoints[1]: "pod-1" is not an IP address; this endpoint is ignored, correct the address
ports: {name: x, port: 70000}
  | ports[0] (x): port 70000 is not between 1 and 65535; this port is ignored, correct its number
ports: {name: x}
  | ports[0] (x): port (none) is not between 1 and 65535; this port is ignored, correct its number
ports: {port: 1, protocol: GRE}
  | ports[0]: protocol "GRE" is not TCP, UDP or SCTP; this port is ignored, correct its protocol
"#;

#[test]
fn an_invalid_part_of_a_slice_gives_a_warning_and_the_others_serve() {
    for [part, reason] in rows(SLICES) {
        let mut endpoints = vec![endpoint(1, "node-a", ""), endpoint(3, "node-a", "")];
        let yaml = if let Some(port) = part.strip_prefix("ports: ") {
            slice("cart-1", "cart", &endpoints).replace("ports: [", &format!("ports: [{port}, "))
        } else {
            endpoints.insert(1, format!("    - {part}\n"));
            slice("cart-1", "cart", &endpoints)
        };
        let (object, warnings) = read(&yaml);
        assert_eq!(warnings, [format!("EndpointSlice shop/cart-1: {reason}")]);
        let Object::EndpointSlice(slice) = object else {
            panic!("{object:?}")
        };
        let Endpoints::V4(endpoints) = &slice.endpoints else {
            panic!("{slice:?}")
        };
        assert_eq!((endpoints.len(), slice.ports.len()), (2, 1), "{part}");
    }
}

#[test]
fn slices_of_other_address_types_or_without_a_service_are_ignored() {
    let unknown = "EndpointSlice shop/cart-1: addressType \"IPX\" is not IPv4, IPv6 or FQDN; the slice is ignored, correct its addressType";
    let unlabelled = "EndpointSlice shop/cart-1: it has no label kubernetes.io/service-name, so no service uses it; set this label to the service's name";
    for (part, other, expected) in [
        ("IPv4", "FQDN", None),
        ("IPv4", "IPX", Some(unknown)),
        ("kubernetes.io/service-name", "app", Some(unlabelled)),
    ] {
        let host = "    - {addresses: [pod.example.net]}\n".to_owned();
        let (object, warnings) = read(&slice("cart-1", "cart", &[host]).replace(part, other));
        assert_eq!(warnings, Vec::from_iter(expected));
        assert!(matches!(object, Object::EndpointSlice(slice) if slice.service.is_none()));
    }
}

#[test]
fn at_most_20_faults_of_a_slice_are_shown_and_the_others_counted() {
    let bad = (0..100).map(|n| format!("    - {{addresses: [pod-{n}]}}\n"));
    let found = complaints(&slice("cart-1", "cart", &bad.collect::<Vec<_>>()));
    assert_eq!(found.len(), 21);
    let last = "EndpointSlice shop/cart-1: 80 more faults are not shown; correct the ones above to see them";
    assert_eq!(found[20], last);
}

#[test]
fn an_object_without_a_name_is_reported_by_file_and_line() {
    let yaml = "apiVersion: v1\nkind: Service\nmetadata: {}\n---\n".to_owned()
        + &service("cart", "172.30.0.1", "");
    let (_, warnings) = read(&yaml);
    let expected = "test.yaml, document 1, line 1: Service: metadata.name is missing, so the object is ignored; give it a name";
    assert_eq!(warnings, [expected]);
}

/// A node's addresses, how many warnings they cause, and which of them it has. Without an internal
/// address of a family it has an external one.
const NODES: &str = "
{type: Hostname, address: node-a}, {type: InternalIP, address: nowhere}, {type: InternalIP, address: 0.0.0.0}, {type: InternalIP, address: '::1'}, {type: InternalIP, address: 192.168.40.2}, {type: InternalIP, address: 192.168.41.2}, {type: InternalIP, address: 'fd00:c0::2'}
  | 3 | 192.168.40.2 | fd00:c0::2
{type: ExternalIP, address: 203.0.113.7}, {type: ExternalIP, address: '2001:db8::7'}, {type: InternalIP, address: 192.168.40.2}
  | 0 | 192.168.40.2 | 2001:db8::7
";

#[test]
fn a_node_has_its_first_valid_address_per_family_zone_and_eligibility() {
    for [addresses, warned, v4, v6] in rows(NODES) {
        let (object, warnings) = read(&format!(
            "{{apiVersion: v1, kind: Node, metadata: {{name: node-a, resourceVersion: '7', labels: {{topology.kubernetes.io/zone: zone-a}}}}, spec: {{taints: [{{key: ToBeDeletedByClusterAutoscaler, effect: NoSchedule}}]}}, status: {{addresses: [{addresses}]}}}}"
        ));
        assert_eq!(warnings.len().to_string(), warned, "{warnings:?}");
        let Object::Node(node) = object else {
            panic!("{object:?}")
        };
        assert_eq!(&*node.resource_version, "7");
        assert_eq!(node.zone.as_deref(), Some("zone-a"));
        assert_eq!(node.internal_v4, v4.parse().ok());
        assert_eq!(node.internal_v6, v6.parse().ok());
        assert!(!node.eligible);
    }
}

#[test]
fn an_endpoint_takes_at_most_16_bytes_for_ipv4_and_32_for_ipv6() {
    assert!(size_of::<super::Endpoint<proxy_common::V4>>() <= 16);
    assert!(size_of::<super::Endpoint<proxy_common::V6>>() <= 32);
}
