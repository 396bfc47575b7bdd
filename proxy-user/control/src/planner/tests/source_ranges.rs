// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests which clients may use a load balancer IP, and how that depends on the node.

use proxy_common::{FrontendKind, ServiceFlags};
use rstest::rstest;

use super::{ZONE_NODE, endpoints::A, flags, port};
use crate::testing::{Cluster, complaints, endpoint, service, slice};

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
