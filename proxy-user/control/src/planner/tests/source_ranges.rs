// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests which clients may use a load balancer IP, and how that depends on the node.

use proxy_common::{FrontendKind, ServiceFlags};
use rstest::rstest;

use super::{ZONE_NODE, flags, port};
use crate::testing::{Cluster, complaints, frontends, service};

fn balancer(ranges: &str) -> String {
    let rest = format!(
        ", type: LoadBalancer, externalIPs: [192.0.2.1], loadBalancerSourceRanges: {ranges}}}\nstatus: {{loadBalancer: {{ingress: [{{ip: 198.51.100.1}}, {{ip: 198.51.100.2, ipMode: Proxy}}]}}",
    );
    service("cart", "172.30.0.1", &rest)
}

#[rstest]
#[case::none_given("[]", &[], false)]
#[case::blanks_are_trimmed("[' 203.0.113.0/24 ']", &["203.0.113.0/24"], true)]
#[case::the_other_family_leaves_this_one_open("['2001:db8::/32']", &["2001:db8::/32"], false)]
#[case::a_range_with_the_node_lets_the_balancers_address_in("[192.168.0.0/16]", &["192.168.0.0/16", "198.51.100.1/32"], true)]
fn source_ranges_restrict_only_load_balancer_ips(
    #[case] ranges: &str,
    #[case] expected: &[&str],
    #[case] restricted: bool,
) {
    let cluster = Cluster::new(&(ZONE_NODE.to_owned() + &balancer(ranges)));
    let plan = port(&cluster, "shop/cart");
    let planned: Vec<_> = plan.source_ranges.iter().map(ToString::to_string).collect();
    assert_eq!(planned, expected);
    assert_eq!(
        frontends(&plan.v4),
        [
            "cluster 172.30.0.1:80",
            "external 192.0.2.1:80",
            "balancer 198.51.100.1:80"
        ]
    );
    for frontend in &plan.v4.frontends {
        let balancer = frontend.kind() == FrontendKind::LoadBalancer;
        assert_eq!(
            frontend.flags.has(ServiceFlags::SOURCE_RANGES),
            restricted && balancer
        );
    }
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
    assert_eq!(
        flags(&plan.v4, FrontendKind::LoadBalancer).has(ServiceFlags::SOURCE_RANGES),
        restricted
    );
    let found = complaints(&yaml);
    assert_eq!(found.len(), warned.len(), "{found:?}");
    for (found, end) in found.iter().zip(warned) {
        assert!(found.ends_with(end), "{found}");
    }
}

#[test]
fn a_new_internal_ip_dirties_services_with_source_ranges_only() {
    let mut cluster =
        Cluster::new(&(balancer("[192.168.0.0/16]") + &service("b", "172.30.0.2", "")));
    assert_eq!(cluster.apply(ZONE_NODE), ["shop/cart"]);
}

#[test]
fn other_nodes_objects_change_nothing() {
    let mut cluster = Cluster::new(&(ZONE_NODE.to_owned() + &balancer("[192.168.0.0/16]")));
    assert_eq!(
        cluster.apply(
            &ZONE_NODE
                .replace("node-a", "node-b")
                .replace("zone-a", "zone-b")
        ),
        [""; 0]
    );
    assert_eq!(cluster.state.view().zone.as_deref(), Some("zone-a"));
}
