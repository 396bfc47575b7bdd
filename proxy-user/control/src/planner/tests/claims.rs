// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Frontends that several services, or several ports of one service, claim.

use super::port;
use crate::{
    model::Kind,
    testing::{Cluster, created, frontends, service},
};

fn external(name: &str, cluster_ip: &str) -> String {
    service(name, cluster_ip, ", externalIPs: [192.0.2.1]")
}

#[test]
fn a_frontend_two_services_want_goes_to_the_older_until_it_is_deleted() {
    let mut cluster = Cluster::new(&created("2026-02-01", &external("a", "172.30.0.1")));
    assert_eq!(frontends(&port(&cluster, "shop/a").v4).len(), 2);
    let older = created("2026-01-01", &external("b", "172.30.0.2"));
    assert_eq!(cluster.apply(&older), ["shop/a", "shop/b"]);

    assert_eq!(frontends(&port(&cluster, "shop/b").v4).len(), 2);
    let (plan, warnings) = cluster.plan("shop/a");
    assert_eq!(frontends(&plan.ports[0].v4), ["ClusterIp 172.30.0.1:80"]);
    let reason = "external IP 192.0.2.1:80/TCP already belongs to Service shop/b, which is older (or comes first by name). This one does not get it: remove it from one of the two";
    assert_eq!(warnings.len(), 1);
    assert_eq!(warnings[0].to_string(), format!("Service shop/a: {reason}"));
    let changed = cluster.delete(Kind::Service, "shop/b");
    assert_eq!(changed, ["shop/a", "shop/b"]);
    assert_eq!(frontends(&port(&cluster, "shop/a").v4).len(), 2);
}

#[test]
fn among_services_of_one_age_the_first_by_name_has_the_frontend() {
    let all = ["shop/a", "shop/b", "shop/c"];
    let [b, c] = [("b", "172.30.0.2"), ("c", "172.30.0.3")].map(|(name, ip)| external(name, ip));
    let mut cluster = Cluster::new(&(b + &c));
    assert_eq!(cluster.plan("shop/b").1.len(), 0);
    assert_eq!(cluster.plan("shop/c").1.len(), 1);
    assert_eq!(cluster.apply(&external("a", "172.30.0.1")), all);
    assert_eq!(cluster.plan("shop/b").1.len(), 1);
    // A service that gives up the address also lets the next one have it.
    assert_eq!(cluster.apply(&service("a", "172.30.0.1", "")), all);
    assert_eq!(cluster.plan("shop/b").1.len(), 0);
    // The removal of a service without the frontend affects no other.
    assert_eq!(cluster.delete(Kind::Service, "shop/c"), ["shop/c"]);
}

#[test]
fn an_external_ip_equal_to_another_services_cluster_ip_is_not_served() {
    // Neither age nor name gives it the address.
    let older = service("a", "172.30.0.2", ", externalIPs: [172.30.0.1]");
    let mut cluster = Cluster::new(&created("2026-01-01", &older));
    let changed = cluster.apply(&service("b", "172.30.0.1", ""));
    assert_eq!(changed, ["shop/a", "shop/b"]);
    assert_eq!(cluster.plan("shop/b").1, []);
    let (plan, warnings) = cluster.plan("shop/a");
    assert_eq!(frontends(&plan.ports[0].v4), ["ClusterIp 172.30.0.2:80"]);
    let reason = "external IP 172.30.0.1:80/TCP already belongs to Service shop/b, whose cluster IP it is. This one does not get it: remove it from one of the two";
    assert_eq!(warnings.len(), 1);
    assert_eq!(warnings[0].reason, reason);
}

#[test]
fn a_cluster_ip_and_a_node_port_of_two_services_are_one_of_thems_only() {
    let numbered = |name: &str, port: &str| {
        let port = format!("{port}, nodePort: 30080");
        service(name, "172.30.0.1", "").replace("port: 80", &port)
    };
    let cluster = Cluster::new(&(numbered("a", "port: 80") + &numbered("b", "port: 81")));
    let (a, b) = (cluster.plan("shop/a"), cluster.plan("shop/b"));
    assert_eq!((a.0.guarded_v4.len(), b.0.guarded_v4.len()), (1, 0));
    assert_eq!(frontends(&b.0.ports[0].v4), ["ClusterIp 172.30.0.1:81"]);
    let expected = "node port 30080/TCP already belongs";
    assert!(b.1[0].reason.starts_with(expected), "{:?}", b.1);
}

#[test]
fn of_two_service_ports_with_one_number_the_first_gets_the_cluster_ip() {
    let yaml = service("cart", "172.30.0.1", "").replace(
        "[{name: http, port: 80}]",
        "[{name: http, port: 80, nodePort: 30080}, {name: web, port: 80, nodePort: 30081}]",
    );
    let (plan, warnings) = Cluster::new(&yaml).plan("shop/cart");
    let first = ["ClusterIp 172.30.0.1:80", "NodePort 0.0.0.0:30080"];
    assert_eq!(frontends(&plan.ports[0].v4), first);
    assert_eq!(frontends(&plan.ports[1].v4), ["NodePort 0.0.0.0:30081"]);
    assert_eq!(warnings.len(), 1);
    let both = "spec.ports[0] and spec.ports[1]";
    assert!(warnings[0].reason.contains(both), "{warnings:?}");
}
