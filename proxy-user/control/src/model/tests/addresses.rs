// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Addresses that a service cannot have are left out with a warning, whichever field has them.

use std::{net::IpAddr, sync::Arc};

use rstest::rstest;

use crate::{
    model::{Converter, Object, Service},
    object::Warning,
    testing::{converted, service},
};

/// The service of a YAML text, and the warnings about it.
fn read_by(mut converter: Converter, yaml: &str) -> (Arc<Service>, Vec<String>) {
    let Some((Object::Service(service), warnings)) = converted(yaml, &mut converter) else {
        panic!("no service in {yaml}")
    };
    let reasons = warnings.into_iter().map(|Warning { reason, .. }| reason);
    (service, reasons.collect())
}

fn read(yaml: &str, link_local: bool) -> (Arc<Service>, Vec<String>) {
    let mut converter = Converter::new("node-a");
    converter.link_local = link_local;
    read_by(converter, yaml)
}

/// Returns a dual-stack service that has 192.0.2.1 and `address` in the field.
fn with_address(field: &str, address: &str) -> String {
    let rest = match field {
        "externalIP" => format!(", externalIPs: [192.0.2.1, '{address}']"),
        _ => format!(
            "}}\nstatus: {{loadBalancer: {{ingress: [{{ip: 192.0.2.1}}, {{ip: '{address}'}}]}}"
        ),
    };
    let cluster_ips = ", clusterIPs: [172.30.0.1, 'fd00:30::1']";
    service("cart", "172.30.0.1", &format!("{cluster_ips}{rest}"))
}

fn external(service: &Service) -> Vec<IpAddr> {
    let all = service.external_ips.iter();
    all.chain(&service.load_balancer_ips).copied().collect()
}

#[rstest]
#[case("0.0.0.0", "0.0.0.0 is an unspecified address")]
#[case("000.0.0.0", "0.0.0.0 is an unspecified address")]
#[case("::", ":: is an unspecified address")]
#[case("::ffff:0.0.0.0", "0.0.0.0 is an unspecified address")]
#[case("127.0.0.1", "127.0.0.1 is a loopback address")]
#[case("127.9.9.9", "127.9.9.9 is a loopback address")]
#[case("::ffff:127.0.0.1", "127.0.0.1 is a loopback address")]
#[case("::1", "::1 is a loopback address")]
#[case("224.0.0.1", "224.0.0.1 is a multicast address")]
#[case("239.255.255.255", "239.255.255.255 is a multicast address")]
#[case("ff02::1", "ff02::1 is a multicast address")]
#[case("255.255.255.255", "255.255.255.255 is the broadcast address")]
fn an_address_that_no_service_can_have_is_left_out(
    #[values("externalIP", "load balancer IP", "clusterIP")] field: &str,
    #[case] address: &str,
    #[case] flaw: &str,
) {
    let (service, reasons) = match field {
        "clusterIP" => read(&service("cart", &format!("'{address}'"), ""), true),
        _ => read(&with_address(field, address), true),
    };
    let expected = "which no service can have; it is not served, use another address";
    assert_eq!(reasons, [format!("{field} {flaw}, {expected}")]);
    if field == "clusterIP" {
        assert!(!service.is_served());
    } else {
        assert_eq!(external(&service), [IpAddr::from([192, 0, 2, 1])]);
    }
}

#[rstest]
fn link_local_addresses_are_served_only_if_the_setting_says_so(
    #[values("169.254.0.1", "169.254.169.254", "fe80::1", "febf::1")] address: &str,
) {
    for field in ["externalIP", "load balancer IP"] {
        let yaml = with_address(field, address);
        let (left_out, reasons) = read(&yaml, false);
        let expected = "a link-local address, which no service can have; it is not served, use another address, or set portolan.serveLinkLocal to true";
        assert_eq!(reasons, [format!("{field} {address} is {expected}")]);
        assert_eq!(external(&left_out).len(), 1);
        let (served, reasons) = read(&yaml, true);
        assert_eq!((external(&served).len(), &reasons[..]), (2, &[][..]));
    }
    let yaml = service("cart", &format!("'{address}'"), "");
    assert!(!read(&yaml, false).0.is_served());
    assert!(read(&yaml, true).0.is_served());
}

#[test]
fn a_load_balancer_ip_of_a_family_that_the_service_has_not_is_no_fault() {
    let balancer = "}\nstatus: {loadBalancer: {ingress: [{ip: 192.0.2.1}, {ip: '2001:db8::1'}, {ip: 'fe80::1'}]}";
    let (service, reasons) = read(&service("cart", "172.30.0.1", balancer), false);
    assert_eq!(reasons, [""; 0]);
    assert_eq!(external(&service), [IpAddr::from([192, 0, 2, 1])]);
}

#[test]
fn only_services_of_the_proxy_name_are_served() {
    let label = "service.kubernetes.io/service-proxy-name";
    for (labels, is_served) in [
        (format!("{label}: canary"), true),
        (format!("{label}: other"), false),
        (String::new(), false),
    ] {
        let labels = format!("metadata: {{labels: {{{labels}}}, ");
        let yaml = service("cart", "172.30.0.1", "").replace("metadata: {", &labels);
        let mut converter = Converter::new("node-a");
        converter.proxy_name = Some("canary".to_owned());
        let (service, reasons) = read_by(converter, &yaml);
        assert_eq!((service.cluster_v4.is_some(), reasons), (is_served, vec![]));
    }
}
