// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests which frontends a service has, with which policy and affinity, and which health check node
//! port, and what that answers; and which clients may use a load balancer IP, and how that depends
//! on the node.

use proxy_common::{FrontendKind, ServiceFlags};
use rstest::rstest;

use super::{LOCAL_BALANCER, READY, ZONE_NODE, cart, endpoints::A, flags, port};
use crate::{
    model::{Kind, Selection},
    testing::{Cluster, complaints, endpoint, frontends, service, slice},
};

#[test]
fn a_cluster_ip_is_not_served_while_the_node_has_that_address() {
    let own: std::net::IpAddr = "172.30.0.1".parse().expect("an address");
    let rest = ", type: NodePort, externalIPs: [192.0.2.1]";
    let cart = service("cart", "172.30.0.1", rest).replace("port: 80", "port: 80, nodePort: 30080");
    let mut cluster = Cluster::new(&(cart + &service("till", "172.30.0.2", "")));
    cluster.state.set_own_addresses([own].into(), [].into());
    assert_eq!(cluster.apply(""), ["shop/cart"], "only this one has it");
    let (plan, warnings) = cluster.plan("shop/cart");
    assert_eq!(warnings, []);
    let served = ["ExternalIp 192.0.2.1:80", "NodePort 0.0.0.0:30080"];
    assert_eq!(frontends(&plan.ports[0].v4), served);
    assert_eq!(plan.guarded_v4, []);
    // Other changes of the node do not change this.
    cluster.state.set_fallback_ips(vec![own]);
    assert_eq!(cluster.plan("shop/cart").0, plan);
    cluster.state.set_own_addresses([].into(), [].into());
    assert_eq!(cluster.apply(""), ["shop/cart"]);
    let (plan, _) = cluster.plan("shop/cart");
    assert_eq!(frontends(&plan.ports[0].v4).len(), 3);
    assert_eq!(plan.guarded_v4.len(), 1);
}

#[rstest]
#[case::cluster_ip("172.30.0.1", 3)]
#[case::external_ip("192.0.2.1", 2)]
#[case::load_balancer_ip("198.51.100.1", 2)]
#[case::of_no_service("192.0.2.255", 4)]
fn the_broadcast_address_of_a_subnet_is_not_served(#[case] address: &str, #[case] left: usize) {
    let rest = ", type: LoadBalancer, externalIPs: [192.0.2.1]}\nstatus: {loadBalancer: {ingress: [{ip: 198.51.100.1}]}";
    let mut cluster = Cluster::new(&service("cart", "172.30.0.1", rest));
    cluster.state.view.answer_ping = true;
    cluster.apply("");
    let broadcast: std::net::IpAddr = address.parse().expect("an address");
    let state = &mut cluster.state;
    state.set_own_addresses([].into(), [broadcast].into());
    let (plan, warnings) = cluster.plan("shop/cart");
    let frontends = frontends(&plan.ports[0].v4);
    assert!(frontends.iter().all(|one| !one.contains(address)));
    let has_one = cluster.apply("") == ["shop/cart"];
    assert_eq!((warnings.len(), has_one), (usize::from(has_one), left < 4));
}

#[test]
fn the_selection_annotation_takes_precedence_over_the_setting() {
    for (setting, expected) in [
        (Selection::Random, [[false; 2], [false; 2], [true; 2]]),
        (Selection::Maglev, [[true; 2], [false; 2], [true; 2]]),
    ] {
        let mut cluster = Cluster::new("");
        cluster.state.view.selection = setting;
        let found = ["", "random", "maglev"].map(|word| {
            let yaml = service("cart", "172.30.0.1", ", externalIPs: [192.0.2.1]");
            let annotation = format!("annotations: {{service.portolan.dev/selection: {word}}}, ");
            let annotation = if word.is_empty() { "" } else { &annotation };
            cluster.apply(&yaml.replace("metadata: {", &format!("metadata: {{{annotation}")));
            let plan = port(&cluster, "shop/cart");
            let kinds = [FrontendKind::ClusterIp, FrontendKind::ExternalIp];
            kinds.map(|kind| flags(&plan.v4, kind).has(ServiceFlags::MAGLEV))
        });
        assert_eq!(found, expected, "{setting:?}");
    }
}

/// KUBE: external IPs make a service of type ClusterIP one for the outside.
#[test]
fn external_policy_local_counts_at_external_ips_of_a_cluster_ip_service() {
    let plan = cart(", type: ClusterIP, externalTrafficPolicy: Local, externalIPs: [192.0.2.1]");
    assert!(flags(&plan.v4, FrontendKind::ExternalIp).has(ServiceFlags::EXTERNAL_LOCAL));
}

#[test]
fn affinity_has_a_timeout() {
    let given = ", sessionAffinityConfig: {clientIP: {timeoutSeconds: 3}}";
    for (config, timeout) in [("", 10_800), (given, 3)] {
        let plan = cart(&format!(", sessionAffinity: ClientIP{config}"));
        assert_eq!(plan.affinity_timeout, timeout);
    }
}

#[test]
fn an_address_listed_twice_by_a_service_gets_one_frontend() {
    let plan = cart(
        ", type: LoadBalancer, externalIPs: [192.0.2.1, 192.0.2.1], loadBalancerSourceRanges: [203.0.113.0/24]}\nstatus: {loadBalancer: {ingress: [{ip: 192.0.2.1}]}",
    );
    let once = ["ClusterIp 172.30.0.1:80", "ExternalIp 192.0.2.1:80"];
    assert_eq!(frontends(&plan.v4), once);
}

#[test]
fn a_service_without_a_cluster_ip_yet_is_not_served() {
    let yaml = service("cart", "172.30.0.1", ", externalIPs: [192.0.2.1]");
    let cluster = Cluster::new(&yaml.replace("clusterIP: 172.30.0.1", "type: ClusterIP"));
    assert_eq!(cluster.plan("shop/cart"), Default::default());
}

#[test]
fn echo_requests_have_frontends_at_external_addresses_if_they_are_answered() {
    let external = |name: &str, address: &str, port: u16| {
        let rest = ", externalIPs: [192.0.2.1, 172.30.0.1]}\nstatus: {loadBalancer: {ingress: [{ip: 198.51.100.1}, {ip: 192.0.2.1}]}";
        service(name, address, rest).replace("port: 80", &format!("port: {port}"))
    };
    let mut cluster = Cluster::new("");
    cluster.apply(&external("cart", "172.30.0.1", 80));
    let echoes = |cluster: &Cluster, name: &str| -> Vec<String> {
        let frontends = frontends(&port(cluster, name).v4);
        let is_echo = |text: &String| text.starts_with("Echo");
        frontends.into_iter().filter(is_echo).collect()
    };
    assert_eq!(echoes(&cluster, "shop/cart"), [""; 0], "by default");
    cluster.state.view.answer_ping = true;
    // The cluster IP needs no echo frontend.
    let both = ["Echo 192.0.2.1:0", "Echo 198.51.100.1:0"];
    assert_eq!(echoes(&cluster, "shop/cart"), both);
    // Of two services with the same addresses, one owns them. The other gets them later, without a
    // warning.
    cluster.apply(&external("other", "172.30.0.2", 81));
    assert_eq!(echoes(&cluster, "shop/other"), ["Echo 172.30.0.1:0"]);
    let changed = cluster.delete(Kind::Service, "shop/cart");
    assert_eq!(changed, ["shop/cart", "shop/other"]);
    let all = ["192.0.2.1", "172.30.0.1", "198.51.100.1"].map(|ip| format!("Echo {ip}:0"));
    assert_eq!(echoes(&cluster, "shop/other"), all);
}

#[test]
fn a_health_check_counts_each_ready_endpoint_of_this_node_once() {
    let endpoints = [1, 2].map(|octet| endpoint(octet, "node-a", READY));
    let slices = slice("a", "cart", &endpoints) + &slice("b", "cart", &endpoints);
    let cluster = Cluster::new(&(service("cart", "172.30.0.1", LOCAL_BALANCER) + &slices));
    let health = cluster.plan("shop/cart").0.health_check;
    let health = health.map(|health| (health.port, health.local_endpoints));
    assert_eq!(health, Some((31_000, 2)));
}

#[test]
fn a_node_port_equal_to_a_health_check_node_port_gives_a_warning() {
    let with_node_port = |name: &str, ip: &str, rest: &str, port: &str| {
        service(name, ip, rest).replace("port: 80", &format!("port: 80, nodePort: {port}"))
    };
    let told = |cluster: &Cluster| {
        let (plan, warnings) = cluster.plan("shop/cart");
        assert_eq!(plan.health_check.expect("it stays").port, 31_000);
        Vec::from_iter(warnings.iter().map(ToString::to_string))
    };
    let text = |whose| {
        [format!(
            "Service shop/cart: healthCheckNodePort 31000 is {whose} node port, too, and that gets the packets: load balancers are answered by its endpoints; give one of the two another number"
        )]
    };
    let own = with_node_port("cart", "172.30.0.1", LOCAL_BALANCER, "31000");
    let mut cluster = Cluster::new(&own);
    assert_eq!(told(&cluster), text("its own"));
    cluster.apply(&service("cart", "172.30.0.1", LOCAL_BALANCER));
    assert_eq!(told(&cluster), [""; 0]);
    // A node port of another service is added, changed and removed.
    for ip in ["172.30.0.2", "'fd00:30::2'"] {
        let other = |port| with_node_port("till", ip, "", port);
        assert_eq!(cluster.apply(&other("31000")), ["shop/cart", "shop/till"]);
        assert_eq!(told(&cluster), text("Service shop/till's"));
        assert_eq!(cluster.apply(&other("31001")), ["shop/cart", "shop/till"]);
        assert_eq!(told(&cluster), [""; 0]);
        assert_eq!(cluster.apply(&other("31002")), ["shop/till"]);
    }
    // A node port of another protocol does not conflict.
    let udp = with_node_port("till", "172.30.0.2", "", "31000, protocol: UDP");
    cluster.apply(&udp);
    assert_eq!(told(&cluster), [""; 0]);
}

#[rstest]
#[case(", type: LoadBalancer, externalTrafficPolicy: Cluster, healthCheckNodePort: 31000")]
#[case(", type: NodePort, externalTrafficPolicy: Local, healthCheckNodePort: 31000")]
#[case(", type: LoadBalancer, externalTrafficPolicy: Local")]
fn only_load_balancers_with_policy_local_and_a_port_have_health_checks(#[case] rest: &str) {
    let cluster = Cluster::new(&service("cart", "172.30.0.1", rest));
    assert_eq!(cluster.plan("shop/cart").0.health_check, None);
}

fn balancer(ranges: &str) -> String {
    let rest = format!(
        ", type: LoadBalancer, externalIPs: [192.0.2.1], loadBalancerSourceRanges: {ranges}}}\nstatus: {{loadBalancer: {{ingress: [{{ip: 198.51.100.1}}, {{ip: 198.51.100.2, ipMode: Proxy}}]}}",
    );
    service("cart", "172.30.0.1", &rest)
}

#[test]
fn a_range_with_the_nodes_own_address_lets_in_the_load_balancer_ip() {
    let cluster = Cluster::new(&(ZONE_NODE.to_owned() + &balancer("[192.168.0.0/16]")));
    let plan = port(&cluster, "shop/cart");
    let planned: Vec<_> = plan.source_ranges.iter().map(ToString::to_string).collect();
    assert_eq!(planned, ["192.168.0.0/16", "198.51.100.1/32"]);
}

const UNREADABLE: &str = "is not an address range and allows nobody; write it like 203.0.113.0/24";
const CLOSED: &str = "so no client may use the IPv4 load balancer IPs; correct the list";

#[rstest]
#[case::none_is_readable("[everyone]", true, &[UNREADABLE, CLOSED])]
#[case::an_empty_one("['']", true, &[UNREADABLE, CLOSED])]
#[case::a_length_of_the_other_family("['::ffff:203.0.113.0/120']", true, &[UNREADABLE, CLOSED])]
#[case::only_the_other_family_is_readable("[192.0.2.500/32, '2001:db8::/32']", true, &[UNREADABLE, CLOSED])]
#[case::the_unreadable_one_looks_like_the_other_familys("[203.0.113.0/24, '2001:db8::/200']", true, &[UNREADABLE])]
#[case::only_the_other_family_is_named("['2001:db8::/32']", false, &["so every client may use the IPv4 load balancer IPs; add ranges of IPv4, or 0.0.0.0/0 if this is meant"])]
#[case::both_families("[203.0.113.0/24, '2001:db8::/32']", true, &[])]
fn an_unreadable_source_range_opens_no_address_family(
    #[case] ranges: &str,
    #[case] restricted: bool,
    #[case] warned: &[&str],
) {
    let yaml = balancer(ranges);
    let plan = port(&Cluster::new(&yaml), "shop/cart");
    let flags = flags(&plan.v4, FrontendKind::LoadBalancer);
    assert_eq!(flags.has(ServiceFlags::SOURCE_RANGES), restricted);
    let found = complaints(&yaml);
    assert_eq!(found.len(), warned.len(), "{found:?}");
    for (found, end) in found.iter().zip(warned) {
        assert!(found.ends_with(end), "{found}");
    }
}

#[test]
fn a_changed_node_dirties_only_services_that_depend_on_it() {
    let hinted = slice("s", "hinted", &[endpoint(1, "node-a", A)]);
    let services = service("hinted", "172.30.0.2", "") + &service("other", "172.30.0.3", "");
    let mut cluster = Cluster::new(&(balancer("[192.168.0.0/16]") + &services + &hinted));
    assert_eq!(cluster.apply(ZONE_NODE), ["shop/cart", "shop/hinted"]);
    let others = ZONE_NODE.replace("node-a", "node-b");
    assert_eq!(cluster.apply(&others.replace("zone-a", "zone-b")), [""; 0]);
    assert_eq!(cluster.state.view.zone.as_deref(), Some("zone-a"));
}
