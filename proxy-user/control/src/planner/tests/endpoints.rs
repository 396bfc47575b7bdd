// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests which endpoints of which slices become backends, in which sets and with which weights.
//! What a conformance case shows by its plans is left to those: `tests/planned_cases`. And
//! properties that every plan has, whatever the endpoints are.

use proptest::prelude::*;
use proxy_common::{EndpointSet, Port, ServiceFlags};
use rstest::rstest;

use super::{DRAINING, GONE, LOCAL_BALANCER, READY, UNREADY, ZONE_NODE, port};
use crate::{
    model::{ClientAddress, Kind},
    testing::{Cluster, endpoint, name, service, slice, weights},
};

pub(super) const A: &str = ", hints: {forZones: [{name: zone-a}]}";
const B: &str = ", hints: {forZones: [{name: zone-b}]}";
const AB: &str = ", hints: {forZones: [{name: zone-b}, {name: zone-a}]}";
const HERE: &str = ", hints: {forZones: [{name: zone-a}], forNodes: [{name: node-a}]}";
const THERE: &str = ", hints: {forZones: [{name: zone-a}], forNodes: [{name: node-b}]}";

const UNSAID: &str = ", conditions: {}";
const NOT_READY: &str = ", conditions: {ready: false}";
const ENDING: &str = ", conditions: {ready: false, terminating: true}";
const PUBLISHED: &str = ", conditions: {ready: true, serving: false, terminating: true}";

/// A slice's weight, and its endpoints: last octet, node, and more fields.
type Slice<'a> = (&'a str, Vec<(u8, &'a str, &'a str)>);

fn cluster(slices: &[Slice<'_>]) -> Cluster {
    let mut yaml = ZONE_NODE.to_owned() + &service("cart", "172.30.0.1", LOCAL_BALANCER);
    for (n, (weight, endpoints)) in slices.iter().enumerate() {
        let each = endpoints.iter();
        let each = each.map(|(octet, node, rest)| endpoint(*octet, node, rest));
        let annotation = format!("annotations: {{service.portolan.dev/weight: '{weight}'}}, ");
        let slice = slice(&format!("cart-{n}"), "cart", &Vec::from_iter(each));
        yaml += &slice.replace("metadata: {", &format!("metadata: {{{annotation}"));
    }
    Cluster::new(&yaml)
}

#[rstest]
#[case::draining_elsewhere_only(&[("1", vec![(2, "node-b", DRAINING)])], &[(2, 1)], &[])]
#[case::nothing_said_means_ready(&[("1", vec![(1, "node-a", UNSAID)])], &[(1, 1)], &[(1, 1)])]
#[case::serving_unless_said(&[("1", vec![(1, "node-a", ENDING)])], &[(1, 1)], &[(1, 1)])]
#[case::published_as_ready(&[("1", vec![(1, "node-a", PUBLISHED)])], &[(1, 1)], &[(1, 1)])]
#[case::in_several_slices_with_the_best_conditions(
    &[("1", vec![(1, "node-b", READY), (2, "node-b", UNREADY)]),
      ("1", vec![(1, "node-a", DRAINING), (2, "node-b", READY)])],
    &[(2, 1)], &[(1, 1)])]
#[case::an_unready_one_without_hints_does_no_harm(
    &[("1", vec![(1, "node-b", A), (2, "node-b", B), (3, "node-b", NOT_READY)])], &[(1, 1)], &[])]
#[case::one_without_node_hints_then_zones(
    &[("1", vec![(1, "node-b", HERE), (2, "node-b", A), (3, "node-b", B)])],
    &[(1, 1), (2, 1)], &[])]
#[case::hints_do_not_touch_the_local_set(
    &[("1", vec![(1, "node-a", B), (2, "node-b", A)])], &[(2, 1)], &[(1, 1)])]
#[case::each_slice_has_its_weight(
    &[("3", vec![(1, "node-a", READY), (2, "node-b", READY)]), ("256", vec![(3, "node-b", READY)])],
    &[(1, 3), (2, 3), (3, 256)], &[(1, 3)])]
#[case::the_larger_of_two_counts(
    &[("3", vec![(1, "node-a", READY)]), ("5", vec![(1, "node-a", READY)])], &[(1, 5)], &[(1, 5)])]
#[case::of_two_the_ready_one_counts_first(
    &[("3", vec![(1, "node-a", READY)]), ("5", vec![(1, "node-a", UNREADY)])], &[(1, 3)], &[(1, 3)])]
#[case::weight_0_beside_others_stays_in_its_sets(
    &[("0", vec![(1, "node-a", READY)]), ("5", vec![(2, "node-a", READY)])],
    &[(1, 0), (2, 5)], &[(1, 0), (2, 5)])]
#[case::what_drains_serves_when_all_ready_ones_have_weight_0(
    &[("0", vec![(1, "node-a", READY)]), ("5", vec![(2, "node-a", DRAINING)])],
    &[(1, 0), (2, 5)], &[(1, 0), (2, 5)])]
#[case::what_drains_with_weight_0_does_not_serve(
    &[("0", vec![(1, "node-a", DRAINING)]), ("5", vec![(2, "node-b", DRAINING)])], &[(2, 5)], &[])]
#[case::each_set_falls_back_for_itself(
    &[("0", vec![(1, "node-a", READY)]), ("5", vec![(2, "node-a", DRAINING), (3, "node-b", READY)])],
    &[(1, 0), (3, 5)], &[(1, 0), (2, 5)])]
#[case::hints_for_this_zone_count_only_with_a_weight(
    &[("0", vec![(1, "node-b", A)]), ("5", vec![(2, "node-b", B)])], &[(1, 0), (2, 5)], &[])]
#[case::hints_may_be_missing_at_weight_0(
    &[("0", vec![(1, "node-b", "")]), ("5", vec![(2, "node-b", A), (3, "node-b", B)])], &[(2, 5)], &[])]
fn readiness_hints_and_weights_choose_the_backends_of_each_set(
    #[case] slices: &[Slice<'_>],
    #[case] cluster_set: &[(u8, u32)],
    #[case] local_set: &[(u8, u32)],
) {
    let plan = port(&cluster(slices), "shop/cart");
    assert_eq!(weights(&plan, EndpointSet::CLUSTER), cluster_set);
    assert_eq!(weights(&plan, EndpointSet::LOCAL), local_set);
    assert!(plan.v4.frontends[0].flags.has(ServiceFlags::HAS_ENDPOINTS));
}

#[test]
fn a_service_whose_endpoints_all_have_weight_0_rejects_like_one_without_endpoints() {
    let cluster = cluster(&[("0", vec![(1, "node-a", READY), (2, "node-b", READY)])]);
    let (plan, _) = cluster.plan("shop/cart");
    assert_eq!(plan.health_check.expect("a port").local_endpoints, 0);
    assert_eq!(plan.lacks_local_endpoints(), [false, false, true, false]);
    assert_eq!(plan.ready, [0, 0]);
    assert!(plan.is_weighted());
    let port = &plan.ports[0];
    assert_eq!(weights(port, EndpointSet::CLUSTER), [(1, 0), (2, 0)]);
    for frontend in &port.v4.frontends {
        assert!(!frontend.flags.has(ServiceFlags::HAS_ENDPOINTS));
    }
}

#[test]
fn every_serving_endpoint_is_a_backend_whether_selected_or_not() {
    let endpoints = [(3, DRAINING), (1, READY), (2, UNREADY)];
    let endpoints = endpoints.map(|(octet, rest)| endpoint(octet, "node-b", rest));
    let cluster =
        Cluster::new(&(service("cart", "172.30.0.1", "") + &slice("cart-1", "cart", &endpoints)));
    let plan = cluster.plan("shop/cart").0;
    let all = plan.ports[0].v4.backends.iter();
    let all: Vec<_> = all.map(|b| (b.address.octets[3], b.sets)).collect();
    assert_eq!(all, [(1, EndpointSet::CLUSTER), (3, EndpointSet::NONE)]);
    assert_eq!(plan.ready, [0, 1]);
    assert!(!plan.is_weighted());
}

#[test]
fn a_slice_that_gets_another_label_moves_or_takes_its_endpoints() {
    let services = service("a", "172.30.0.1", "") + &service("b", "172.30.0.2", "");
    let of = |name: &str| slice("s", name, &[endpoint(1, "node-a", READY)]);
    let mut cluster = Cluster::new(&(services + &of("a")));
    let count = |cluster: &Cluster| {
        let plans = ["shop/a", "shop/b"].map(|name| port(cluster, name));
        plans.map(|plan| plan.v4.backends.len())
    };
    assert_eq!(cluster.apply(&of("a")), [""; 0]);
    assert_eq!(cluster.apply(&of("b")), ["shop/a", "shop/b"]);
    assert_eq!(count(&cluster), [0, 1]);
    let headless = "labels: {service.kubernetes.io/headless: '', ";
    let unused = of("b").replace("labels: {", headless);
    assert_eq!(cluster.apply(&unused), ["shop/b"]);
    assert_eq!(count(&cluster), [0, 0]);
    cluster.apply(&of("b"));
    assert_eq!(cluster.delete(Kind::EndpointSlice, "shop/s"), ["shop/b"]);
}

fn any_endpoint() -> impl Strategy<Value = String> {
    let hints = prop::sample::select(vec!["", A, B, AB, HERE, THERE]);
    let conditions = prop::sample::select(vec![READY, UNREADY, DRAINING, GONE]);
    let node = prop::sample::select(vec!["node-a", "node-b"]);
    (1_u8..6, node, conditions, hints).prop_map(|(octet, node, conditions, hints)| {
        endpoint(octet, node, &format!("{conditions}{hints}"))
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn plans_keep_the_invariants_that_the_datapath_relies_on(
        slices in prop::collection::vec(prop::collection::vec(any_endpoint(), 0..6), 0..4),
        policies in prop::sample::select(vec!["", ", internalTrafficPolicy: Local", ", externalTrafficPolicy: Local"]),
    ) {
        let yaml = |order: &mut dyn Iterator<Item = (usize, &Vec<String>)>| {
            let rest = format!(", type: LoadBalancer, externalIPs: [192.0.2.1]{policies}");
            let mut text = ZONE_NODE.to_owned() + &service("cart", "172.30.0.1", &rest);
            for (n, endpoints) in order {
                text += &slice(&format!("s{n}"), "cart", endpoints);
            }
            text
        };
        let forward = yaml(&mut slices.iter().enumerate());
        let backward = yaml(&mut slices.iter().enumerate().rev());
        let plan = port(&Cluster::new(&forward), "shop/cart");
        // The order of slices does not matter.
        prop_assert_eq!(&plan, &port(&Cluster::new(&backward), "shop/cart"));
        let keys: Vec<_> = plan.v4.backends.iter().map(|b| (b.address, b.port)).collect();
        prop_assert!(keys.windows(2).all(|pair| pair[0] < pair[1]), "ordered, each once: {:?}", keys);
        let has_endpoints = plan.v4.frontends[0].flags.has(ServiceFlags::HAS_ENDPOINTS);
        let cluster_set = weights(&plan, EndpointSet::CLUSTER);
        prop_assert_eq!(has_endpoints, !cluster_set.is_empty());
        prop_assert!(has_endpoints || weights(&plan, EndpointSet::LOCAL).is_empty());
        prop_assert_eq!(plan.v4.frontends[0].port, Port::from_host(80));
    }
}

#[test]
fn clients_keep_their_addresses_where_the_endpoints_node_has_a_ready_agent() {
    let mut cluster = Cluster::new("");
    cluster.state.view.client_address = Some(ClientAddress::Masquerade);
    cluster.state.agents = Some(name("shop/agents"));
    let keep = "metadata: {annotations: {service.portolan.dev/client-address: keep}, ";
    let cart = service("cart", "172.30.0.1", "").replace("metadata: {", keep);
    let nodes = [(1, "node-a"), (2, "node-b"), (3, "node-c")];
    let endpoints = nodes.map(|(octet, node)| endpoint(octet, node, ""));
    let slices = ["cart", "till"].map(|name| slice(&format!("{name}-1"), name, &endpoints));
    cluster.apply(&(cart + &service("till", "172.30.0.2", "") + &slices.concat()));
    let locations = |cluster: &Cluster, name| -> Vec<_> {
        let plan = port(cluster, name).v4;
        let keeps = plan.frontends.iter();
        let keeps = keeps.map(|one| one.flags.has(ServiceFlags::KEEP_CLIENT));
        assert!(keeps.eq([name == "shop/cart"]));
        let backends = plan.backends.iter();
        backends.map(|one| one.sets.location()).collect()
    };
    let none = EndpointSet::NONE;
    let alone = [EndpointSet::HERE, none, none];
    assert_eq!(locations(&cluster, "shop/cart"), alone);
    let agents = [
        endpoint(12, "node-b", ""),
        endpoint(13, "node-c", NOT_READY),
    ];
    let agents = service("agents", "172.30.0.9", "") + &slice("agents-1", "agents", &agents);
    assert_eq!(cluster.apply(&agents), ["shop/agents", "shop/cart"]);
    let with_agents = [EndpointSet::HERE, EndpointSet::TAKES_HEADERS, none];
    assert_eq!(locations(&cluster, "shop/cart"), with_agents);
    assert_eq!(locations(&cluster, "shop/till"), [none; 3]);
    let gone = cluster.delete(Kind::EndpointSlice, "shop/agents-1");
    assert_eq!(gone, ["shop/agents", "shop/cart"]);
    assert_eq!(locations(&cluster, "shop/cart"), alone);

    // This node puts no headers on, whatever the service says.
    cluster.state.view.client_address = None;
    assert!(
        !port(&cluster, "shop/cart").v4.frontends[0]
            .flags
            .has(ServiceFlags::KEEP_CLIENT)
    );
}
