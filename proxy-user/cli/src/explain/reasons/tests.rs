// SPDX-License-Identifier: Apache-2.0 OR MIT

use control::documents::values;
use rstest::rstest;

use k8s_openapi::api::discovery::v1::EndpointSlice;

use super::*;

pub(super) const WANTED: Wanted<'static> = Wanted {
    namespace: "shop",
    name: "cart",
    port: "http",
    protocol: Protocol::TCP,
    v6: false,
    agent: true,
};

/// Returns the objects of these manifests; pods are known if there is one.
pub(super) fn objects(manifests: &str) -> ServiceObjects {
    let mut found = ServiceObjects::default();
    for object in values("test", manifests) {
        let Some(kind) = object["kind"].as_str() else {
            continue;
        };
        match kind {
            "Service" => found.service = serde_json::from_value(object).expect("a Service"),
            "Pod" => {
                let pod = serde_json::from_value(object).expect("a pod");
                found.pods.push(pod);
                found.has_all_pods = true;
            }
            "NoPod" => found.has_all_pods = true,
            _ => {
                let slice: EndpointSlice = serde_json::from_value(object).expect("a slice");
                let is_own = service_of(&slice) == Some("cart")
                    && slice.metadata.namespace.as_deref() == Some("shop");
                if is_own {
                    found.slices.push(slice);
                } else {
                    found.strays.push(slice);
                }
            }
        }
    }
    found
}

const SERVICE: &str = "---
kind: Service
metadata: {name: cart, namespace: shop}
spec: {selector: {app: cart}, ports: [{name: http, port: 80, targetPort: 8080}]}
";
const BY_NAME: &str = "---
kind: Service
metadata: {name: cart, namespace: shop}
spec: {selector: {app: cart}, ports: [{name: http, port: 80, targetPort: web}]}
";
const ALONE: &str = "---
kind: Service
metadata: {name: cart, namespace: shop}
spec: {ports: [{name: http, port: 80}]}
";
const NO_POD: &str = "---
kind: NoPod
";

/// A slice with one endpoint of a pod, and these changes.
fn slice(changes: &[(&str, &str)]) -> String {
    let mut text = "---
kind: EndpointSlice
metadata: {name: cart-1, namespace: shop, labels: {kubernetes.io/service-name: cart}}
addressType: IPv4
ports: [{name: http, port: 8080}]
endpoints: [{addresses: [10.40.1.20], conditions: {ready: true}, targetRef: {kind: Pod, name: cart-a}}]
"
    .to_owned();
    for (from, to) in changes {
        assert!(text.contains(from), "{from}");
        text = text.replace(from, to);
    }
    text
}

/// A pod with this status of its container.
fn pod(status: &str) -> String {
    format!(
        "---
kind: Pod
metadata: {{name: cart-a, namespace: shop, labels: {{app: cart}}}}
spec: {{containers: [{{name: one, ports: [{{name: http, containerPort: 8080}}, {{name: metrics, containerPort: 9090}}], readinessProbe: {{}}}}]}}
status: {status}
"
    )
}

const RUNS: &str = "{phase: Running, containerStatuses: [{name: one, ready: true, image: x, imageID: x, restartCount: 0}]}";
const UNREADY: (&str, &str) = ("ready: true", "ready: false, serving: false");
const PORT: &str = "{name: http, port: 8080}";

#[rstest]
#[case::gone("".into(), "Kubernetes has no such Service any more: the agent", "ask again")]
#[case::no_selector(ALONE.into(), "it has no selector, and no EndpointSlice", "`kubernetes.io/service-name: cart`")]
#[case::no_pod(
    [SERVICE, NO_POD].concat(),
    "its selector app=cart matches no pod of namespace shop",
    "get pods --show-labels"
)]
#[case::ended([SERVICE, &pod("{phase: Failed}")].concat(), "all pods that its selector app=cart matches have ended", "get pods -l app=cart")]
#[case::no_slice(
    [SERVICE, &pod(RUNS)].concat(),
    "no EndpointSlice belongs to it, although its selector matches 1 pod",
    "kube-controller-manager"
)]
#[case::pods_unknown(SERVICE.into(), "no EndpointSlice belongs to it", "kube-controller-manager")]
#[case::of_another_service(
    [SERVICE, &slice(&[("service-name: cart", "service-name: card")])].concat(),
    "no EndpointSlice belongs to it; shop/cart-1 has the label of Service card",
    "with the label `kubernetes.io/service-name: cart`"
)]
#[case::unlabelled(
    [SERVICE, &slice(&[("labels: {kubernetes.io/service-name: cart}", "labels: {}")])].concat(),
    "no EndpointSlice belongs to it; shop/cart-1 has no label",
    "with the label"
)]
#[case::in_another_namespace(
    [SERVICE, &slice(&[("namespace: shop", "namespace: other")])].concat(),
    "no EndpointSlice belongs to it; other/cart-1 is in another namespace",
    "put it into namespace shop"
)]
#[case::of_ipv6(
    [SERVICE, &slice(&[("IPv4", "IPv6"), ("10.40.1.20", "'fd00::1'")])].concat(),
    "its EndpointSlices list IPv6 addresses only, and IPv4 is asked for",
    "ipFamilies"
)]
#[case::empty(
    [SERVICE, "---\nkind: EndpointSlice\nmetadata: {name: cart-1, namespace: shop, labels: {kubernetes.io/service-name: cart}}\naddressType: IPv4\nendpoints: []\n"].concat(),
    "its EndpointSlices list no endpoint",
    "get pods,endpointslices"
)]
#[case::null_ports(
    [SERVICE, &slice(&[("ports: [{name: http, port: 8080}]", "ports: null")])].concat(),
    "its only endpoint, pod shop/cart-a: its EndpointSlice cart-1 has no ports",
    "meet by name and protocol"
)]
#[case::unnamed_port(
    [SERVICE, &slice(&[(PORT, "{port: 8080}")])].concat(),
    "its only endpoint, pod shop/cart-a: its EndpointSlice cart-1 has no port named http (it has: one without a name)",
    "port named http (TCP)"
)]
#[case::other_name(
    [SERVICE, &slice(&[(PORT, "{name: web, port: 8080}, {name: metrics, port: 9090}")])].concat(),
    "its only endpoint, pod shop/cart-a: its EndpointSlice cart-1 has no port named http (it has: metrics, web)",
    "port named http (TCP)"
)]
#[case::other_protocol(
    [SERVICE, &slice(&[(PORT, "{name: http, port: 8080, protocol: UDP}")])].concat(),
    "its only endpoint, pod shop/cart-a: its EndpointSlice cart-1 has the port named http for UDP only, and TCP is asked for",
    "meet by name and protocol"
)]
#[case::no_number(
    [SERVICE, &slice(&[(PORT, "{name: http}")])].concat(),
    "its only endpoint, pod shop/cart-a: its EndpointSlice cart-1 gives the port named http no number",
    "port named http"
)]
#[case::no_container_port(
    [BY_NAME, &pod(RUNS), &slice(&[(PORT, "")])].concat(),
    "no container of its pods has a port named web, which is its targetPort (they have: http, metrics)",
    "correct targetPort"
)]
#[case::loopback(
    [SERVICE, &slice(&[("10.40.1.20", "127.0.0.1")])].concat(),
    "its only endpoint, pod shop/cart-a: a loopback address, which other hosts cannot reach: refused",
    "the pod's own address"
)]
#[case::link_local(
    [SERVICE, &slice(&[("10.40.1.20", "169.254.1.1")])].concat(),
    "its only endpoint, pod shop/cart-a: a link-local address",
    "the pod's own address"
)]
#[case::unreadable(
    [SERVICE, &slice(&[("10.40.1.20", "10.40.1.500")])].concat(),
    "its only endpoint, pod shop/cart-a: \"10.40.1.500\" of EndpointSlice cart-1 is no IP address",
    "correct EndpointSlice cart-1"
)]
#[case::of_the_other_family(
    [SERVICE, &slice(&[("10.40.1.20", "'fd00::1'")])].concat(),
    "its only endpoint, pod shop/cart-a: not of its EndpointSlice's addressType IPv4",
    "correct EndpointSlice cart-1"
)]
#[case::not_ready(
    [SERVICE, &slice(&[UNREADY])].concat(),
    "its only endpoint, pod shop/cart-a: not ready",
    "kubectl -n shop describe pod cart-a"
)]
#[case::terminating(
    [SERVICE, &slice(&[("ready: true", "ready: false, serving: false, terminating: true")])].concat(),
    "its only endpoint, pod shop/cart-a: terminating, and no longer serving",
    "get endpointslices"
)]
#[case::not_applied(
    [SERVICE, &slice(&[])].concat(),
    "its only endpoint, pod shop/cart-a: listed by Kubernetes, and not in the maps: the agent has not applied it yet",
    "portolan status"
)]
fn why_a_service_has_no_endpoint(
    #[case] manifests: String,
    #[case] because: &str,
    #[case] remedy: &str,
) {
    let reason = no_endpoint(&objects(&manifests), WANTED);
    assert!(reason.because.starts_with(because), "{}", reason.because);
    assert!(reason.remedy.contains(remedy), "{}", reason.remedy);
}

#[rstest]
#[case::probe(
    "containerStatuses: [{ready: false, state: {running: {}}}]",
    "the readiness probe of container one fails",
    "describe pod"
)]
#[case::startup(
    "containerStatuses: [{ready: false, started: false, state: {running: {}}}]",
    "the readiness probe of container one fails",
    "describe pod"
)]
#[case::crashes(
    "containerStatuses: [{ready: false, state: {waiting: {reason: CrashLoopBackOff}}}]",
    "container one waits: CrashLoopBackOff",
    "logs cart-a -c one --previous"
)]
#[case::image(
    "containerStatuses: [{ready: false, state: {waiting: {reason: ImagePullBackOff}}}]",
    "container one waits: ImagePullBackOff",
    "describe pod"
)]
#[case::ended(
    "containerStatuses: [{ready: false, state: {terminated: {exitCode: 3}}}]",
    "container one has ended with status 3",
    "logs"
)]
#[case::pending("phase: Pending", "its pod is Pending", "describe pod")]
fn why_a_pod_is_not_ready(#[case] status: &str, #[case] because: &str, #[case] remedy: &str) {
    let status = status.replace(
        "{ready",
        "{name: one, image: x, imageID: x, restartCount: 0, ready",
    );
    let manifests = [SERVICE, &pod(&format!("{{{status}}}")), &slice(&[UNREADY])].concat();
    let reason = no_endpoint(&objects(&manifests), WANTED);
    let expected = format!("its only endpoint, pod shop/cart-a: not ready: {because}");
    assert_eq!(reason.because, expected);
    assert!(reason.remedy.contains(remedy), "{}", reason.remedy);
}

#[test]
fn a_startup_probe_a_readiness_gate_and_a_deleted_pod_are_named() {
    let unready = "{phase: Running, containerStatuses: [{name: one, image: x, imageID: x, restartCount: 0, ready: false, started: false}]}";
    for (from, to, status, expected) in [
        (
            "readinessProbe",
            "startupProbe",
            unready,
            "the startup probe of container one has not succeeded yet",
        ),
        (
            "spec: {",
            "spec: {readinessGates: [{conditionType: lb}], ",
            RUNS,
            "its readiness gate lb is not met",
        ),
        (
            "readinessProbe: {}",
            "tty: false",
            unready,
            "so is its container one",
        ),
    ] {
        let manifests = [SERVICE, &pod(status).replace(from, to), &slice(&[UNREADY])].concat();
        let reason = no_endpoint(&objects(&manifests), WANTED);
        assert!(
            reason.because.ends_with(&format!("not ready: {expected}")),
            "{}",
            reason.because
        );
    }
}

#[test]
fn the_reason_of_several_endpoints_is_said_once() {
    let endpoint = "{addresses: [10.40.1.20], conditions: {ready: true}, targetRef: {kind: Pod, name: cart-a}}";
    let both = format!("{endpoint}, {{addresses: [10.40.1.21], conditions: {{ready: true}}}}");
    let unready = both.replace("ready: true", "ready: false, serving: false");
    let manifests = [SERVICE, &slice(&[(endpoint, &unready)])].concat();
    let reason = no_endpoint(&objects(&manifests), WANTED);
    assert_eq!(reason.because, "all 2 endpoints: not ready");
    let mixed = format!("{endpoint}, {{addresses: [127.0.0.2], conditions: {{ready: true}}}}")
        .replacen("ready: true", "ready: false, serving: false", 1);
    let manifests = [SERVICE, &slice(&[(endpoint, &mixed)])].concat();
    let reason = no_endpoint(&objects(&manifests), WANTED);
    assert_eq!(
        reason.because,
        "none of its 2 endpoints is usable; the first, pod shop/cart-a: not ready"
    );
}

#[test]
fn without_an_agent_nobody_will_apply_what_kubernetes_lists() {
    let wanted = Wanted {
        agent: false,
        ..WANTED
    };
    let reason = no_endpoint(&objects(&[SERVICE, &slice(&[])].concat()), wanted);
    assert!(
        reason
            .because
            .ends_with("no agent runs that would apply it"),
        "{}",
        reason.because
    );
    assert_eq!(reason.remedy, "start the agent");
}

#[test]
fn a_target_port_that_differs_is_named() {
    let other = slice(&[(PORT, "{name: http, port: 8081}")]);
    let reason = other_target(&objects(&[SERVICE, &other].concat()), WANTED).expect("a reason");
    assert_eq!(
        reason.because,
        "its targetPort is 8080, and EndpointSlice cart-1 leads to 8081: the slice decides"
    );
    assert_eq!(
        other_target(&objects(&[SERVICE, &slice(&[])].concat()), WANTED),
        None
    );
    assert_eq!(
        other_target(&objects(&[ALONE, &other].concat()), WANTED),
        None,
        "its writer decides"
    );
    let said = undeclared(&objects(&[SERVICE, &pod(RUNS), &other].concat()), WANTED);
    let said = said.expect("words");
    assert!(
        said.starts_with("no container of pod shop/cart-a declares port 8081"),
        "{said}"
    );
    assert!(said.contains("(they declare: 8080, 9090)"), "{said}");
    assert_eq!(
        undeclared(
            &objects(&[SERVICE, &pod(RUNS), &slice(&[])].concat()),
            WANTED
        ),
        None
    );
}
