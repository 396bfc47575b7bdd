// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests which frontends a service has, with which policy and affinity.

use proxy_common::{EndpointSet, FrontendKind, ServiceFlags};
use rstest::rstest;

use super::{READY, flags, port};
use crate::{
    model::{Kind, Selection},
    testing::{Cluster, endpoint, frontends, service, slice},
};

#[test]
fn a_cluster_ip_is_not_served_while_the_node_has_that_address() {
    let own: std::net::IpAddr = "172.30.0.1".parse().expect("an address");
    let yaml = service(
        "cart",
        "172.30.0.1",
        ", type: NodePort, externalIPs: [192.0.2.1]",
    )
    .replace("port: 80}", "port: 80, nodePort: 30080}")
        + &service("till", "172.30.0.2", "");
    let mut cluster = Cluster::new(&yaml);
    cluster.state.set_own_addresses([own].into(), [].into());
    assert_eq!(cluster.apply(""), ["shop/cart"], "only this one has it");
    let (plan, warnings) = cluster.plan("shop/cart");
    assert_eq!(warnings, []);
    let served = ["external 192.0.2.1:80", "node 0.0.0.0:30080"];
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
    cluster.state.set_answer_ping(true);
    cluster.apply("");
    let broadcast: std::net::IpAddr = address.parse().expect("an address");
    cluster
        .state
        .set_own_addresses([].into(), [broadcast].into());
    let (plan, warnings) = cluster.plan("shop/cart");
    let frontends = frontends(&plan.ports[0].v4);
    assert!(frontends.iter().all(|one| !one.contains(address)));
    let has_one = cluster.apply("") == ["shop/cart"];
    assert_eq!((warnings.len(), has_one), (usize::from(has_one), left < 4));
}

#[rstest]
#[case::cluster("", false, false)]
#[case::internal_local(", internalTrafficPolicy: Local", true, false)]
#[case::external_local(", externalTrafficPolicy: Local", false, true)]
#[case::both_local(
    ", internalTrafficPolicy: Local, externalTrafficPolicy: Local",
    true,
    true
)]
fn traffic_policies_choose_the_endpoint_sets_of_each_frontend_kind(
    #[case] policy: &str,
    #[case] internal_local: bool,
    #[case] external_local: bool,
) {
    let rest = format!(
        ", type: LoadBalancer, externalIPs: [192.0.2.1]{policy}}}\nstatus: {{loadBalancer: {{ingress: [{{ip: 198.51.100.1}}]}}",
    );
    let yaml =
        service("cart", "172.30.0.1", &rest).replace("port: 80}", "port: 80, nodePort: 30080}");
    let cluster = Cluster::new(&(yaml + &slice("s", "cart", &[endpoint(1, "node-a", READY)])));
    let plan = port(&cluster, "shop/cart");
    assert_eq!(
        frontends(&plan.v4),
        [
            "cluster 172.30.0.1:80",
            "external 192.0.2.1:80",
            "balancer 198.51.100.1:80",
            "node 0.0.0.0:30080"
        ]
    );
    let cluster_ip = flags(&plan.v4, FrontendKind::ClusterIp);
    assert!(!cluster_ip.has(ServiceFlags::EXTERNAL_LOCAL));
    let set = |local| {
        if local {
            EndpointSet::LOCAL
        } else {
            EndpointSet::CLUSTER
        }
    };
    assert_eq!(cluster_ip.set_of_block(false), set(internal_local));
    assert_eq!(cluster_ip.set_of_block(true), set(internal_local));
    for kind in [
        FrontendKind::ExternalIp,
        FrontendKind::LoadBalancer,
        FrontendKind::NodePort,
    ] {
        let flags = flags(&plan.v4, kind);
        assert_eq!(flags.has(ServiceFlags::EXTERNAL_LOCAL), external_local);
        assert_eq!(flags.set_of_block(true), set(external_local));
        assert_eq!(flags.set_of_block(false), EndpointSet::CLUSTER);
    }
}

#[test]
fn the_selection_annotation_takes_precedence_over_the_setting() {
    let yaml = |name: &str, address: &str, annotations: &str| {
        let rest = ", type: NodePort";
        let annotations = format!("metadata: {{annotations: {{{annotations}}}, ");
        service(name, address, rest).replace("metadata: {", &annotations)
    };
    let word = |word: &str| format!("service.portolan.dev/selection: {word}");
    let all = yaml("none", "172.30.0.1", "")
        + &yaml("random", "172.30.0.2", &word("random"))
        + &yaml("maglev", "172.30.0.3", &word("maglev"))
        + &yaml("wrong", "172.30.0.4", &word("best"));
    for (setting, expected) in [
        (Selection::Random, [false, false, true, false]),
        (Selection::Maglev, [true, false, true, true]),
    ] {
        let mut cluster = Cluster::new("");
        cluster.state.set_selection(setting);
        cluster.apply(&all);
        let found = ["none", "random", "maglev", "wrong"].map(|name| {
            let plan = port(&cluster, &format!("shop/{name}"));
            let of_all: std::collections::BTreeSet<_> = plan
                .v4
                .frontends
                .iter()
                .map(|frontend| frontend.flags.has(ServiceFlags::MAGLEV))
                .collect();
            assert_eq!(of_all.len(), 1, "all frontends of {name}");
            of_all.contains(&true)
        });
        assert_eq!(found, expected, "{setting:?}");
    }
}

#[test]
fn external_policy_local_of_a_cluster_ip_service_needs_external_ips() {
    let policy = ", type: ClusterIP, externalTrafficPolicy: Local";
    let with = service(
        "with",
        "172.30.0.1",
        &format!("{policy}, externalIPs: [192.0.2.1]"),
    );
    let without = service("without", "172.30.0.2", policy);
    let cluster = Cluster::new(&(with + &without));
    let plan = port(&cluster, "shop/with");
    assert!(flags(&plan.v4, FrontendKind::ExternalIp).has(ServiceFlags::EXTERNAL_LOCAL));
    assert_eq!(
        frontends(&port(&cluster, "shop/without").v4),
        ["cluster 172.30.0.2:80"]
    );
}

#[rstest]
#[case::none("", 0)]
#[case::by_default(", sessionAffinity: ClientIP", 10_800)]
#[case::given(
    ", sessionAffinity: ClientIP, sessionAffinityConfig: {clientIP: {timeoutSeconds: 3}}",
    3
)]
fn affinity_has_its_timeout_and_flag(#[case] rest: &str, #[case] timeout: u32) {
    let plan = port(
        &Cluster::new(&service("cart", "172.30.0.1", rest)),
        "shop/cart",
    );
    assert_eq!(plan.affinity_timeout, timeout);
    let flags = flags(&plan.v4, FrontendKind::ClusterIp);
    assert_eq!(flags.has(ServiceFlags::AFFINITY), timeout > 0);
}

#[test]
fn an_address_listed_twice_by_a_service_gets_one_frontend() {
    let rest = ", type: LoadBalancer, externalIPs: [192.0.2.1, 192.0.2.1], loadBalancerSourceRanges: [203.0.113.0/24]}\nstatus: {loadBalancer: {ingress: [{ip: 192.0.2.1}]}";
    let plan = port(
        &Cluster::new(&service("cart", "172.30.0.1", rest)),
        "shop/cart",
    );
    assert_eq!(
        frontends(&plan.v4),
        ["cluster 172.30.0.1:80", "external 192.0.2.1:80"]
    );
}

#[rstest]
#[case::headless("clusterIP: None", "")]
#[case::headless_by_list("clusterIP: None, clusterIPs: [None]", "")]
#[case::without_cluster_ip("type: ClusterIP", "")]
#[case::external_name(
    "clusterIP: 172.30.0.1, type: ExternalName, externalName: db.example.net",
    ""
)]
#[case::another_proxys(
    "clusterIP: 172.30.0.1",
    ", labels: {service.kubernetes.io/service-proxy-name: other}"
)]
fn headless_external_name_and_foreign_services_are_not_served(
    #[case] spec: &str,
    #[case] labels: &str,
) {
    let unserved = format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: cart, namespace: shop{labels}}}\nspec: {{{spec}, externalIPs: [192.0.2.1], ports: [{{name: http, port: 80}}]}}\n",
    );
    let mut cluster = Cluster::new(&unserved);
    assert_eq!(cluster.plan("shop/cart").0.ports, []);
    cluster.apply(&service("cart", "172.30.0.1", ""));
    assert_eq!(cluster.plan("shop/cart").0.ports.len(), 1);
    assert_eq!(cluster.apply(&unserved), ["shop/cart"]);
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
        let is_echo = |text: &String| text.starts_with("echo");
        frontends.into_iter().filter(is_echo).collect()
    };
    assert_eq!(echoes(&cluster, "shop/cart"), [""; 0], "by default");
    cluster.state.set_answer_ping(true);
    // The cluster IP needs no echo frontend.
    let both = ["echo 192.0.2.1:0", "echo 198.51.100.1:0"];
    assert_eq!(echoes(&cluster, "shop/cart"), both);
    // Of two services with the same addresses, one owns them. The other gets them later, without a
    // warning.
    cluster.apply(&external("other", "172.30.0.2", 81));
    assert_eq!(echoes(&cluster, "shop/other"), ["echo 172.30.0.1:0"]);
    assert_eq!(
        cluster.delete(Kind::Service, "shop/cart"),
        ["shop/cart", "shop/other"]
    );
    assert_eq!(
        echoes(&cluster, "shop/other"),
        [
            "echo 192.0.2.1:0",
            "echo 172.30.0.1:0",
            "echo 198.51.100.1:0"
        ]
    );
}
