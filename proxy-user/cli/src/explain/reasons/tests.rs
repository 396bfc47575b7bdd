// SPDX-License-Identifier: Apache-2.0 OR MIT

use control::{documents::values, testing::rows};
use k8s_openapi::api::discovery::v1::EndpointSlice;

use super::*;

pub(crate) const WANTED: Wanted<'static> = Wanted {
    namespace: "shop",
    name: "cart",
    port: "http",
    protocol: Protocol::TCP,
    v6: false,
    agent: true,
};

/// Returns the objects of these manifests; pods are known if there is one.
pub(crate) fn objects(manifests: &str) -> ServiceObjects {
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
const ENDPOINT: &str =
    "{addresses: [10.40.1.20], conditions: {ready: true}, targetRef: {kind: Pod, name: cart-a}}";

/// Objects as [`made`] reads them, how the reason begins, and a part of the remedy.
const NO_ENDPOINT: &str = r#"
 | Kubernetes has no such Service any more: the agent | ask again
alone | it has no selector, and no EndpointSlice | `kubernetes.io/service-name: cart`
service + no pod | its selector app=cart matches no pod of namespace shop | get pods --show-labels
service + pod {phase: Failed}
  | all pods that its selector app=cart matches have ended | get pods -l app=cart
service + pod RUNS
  | no EndpointSlice belongs to it, although its selector matches 1 pod | kube-controller-manager
service | no EndpointSlice belongs to it | kube-controller-manager
service + slice service-name: cart => service-name: card
  | no EndpointSlice belongs to it; shop/cart-1 has the label of Service card
  | with the label `kubernetes.io/service-name: cart`
service + slice labels: {kubernetes.io/service-name: cart} => labels: {}
  | no EndpointSlice belongs to it; shop/cart-1 has no label | with the label
service + slice namespace: shop => namespace: other
  | no EndpointSlice belongs to it; other/cart-1 is in another namespace | put it into namespace shop
service + slice IPv4 => IPv6; 10.40.1.20 => 'fd00::1'
  | its EndpointSlices list IPv6 addresses only, and IPv4 is asked for | ipFamilies
service + slice ENDPOINT =>
  | its EndpointSlices list no endpoint | get pods,endpointslices
service + slice [PORT] => null
  | its only endpoint, pod shop/cart-a: its EndpointSlice cart-1 has no ports
  | meet by name and protocol
service + slice PORT => {port: 8080}
  | its only endpoint, pod shop/cart-a: its EndpointSlice cart-1 has no port named http (it has: one without a name)
  | port named http (TCP)
service + slice PORT => {name: web, port: 8080}, {name: metrics, port: 9090}
  | its only endpoint, pod shop/cart-a: its EndpointSlice cart-1 has no port named http (it has: metrics, web)
  | port named http (TCP)
service + slice PORT => {name: http, port: 8080, protocol: UDP}
  | its only endpoint, pod shop/cart-a: its EndpointSlice cart-1 has the port named http for UDP only, and TCP is asked for
  | meet by name and protocol
service + slice PORT => {name: http}
  | its only endpoint, pod shop/cart-a: its EndpointSlice cart-1 gives the port named http no number
  | port named http
by name + pod RUNS + slice PORT =>
  | no container of its pods has a port named web, which is its targetPort (they have: http, metrics)
  | correct targetPort
service + slice 10.40.1.20 => 127.0.0.1
  | its only endpoint, pod shop/cart-a: a loopback address, which other hosts cannot reach: refused
  | the pod's own address
service + slice 10.40.1.20 => 169.254.1.1
  | its only endpoint, pod shop/cart-a: a link-local address | the pod's own address
service + slice 10.40.1.20 => 10.40.1.500
  | its only endpoint, pod shop/cart-a: "10.40.1.500" of EndpointSlice cart-1 is no IP address
  | correct EndpointSlice cart-1
service + slice 10.40.1.20 => 'fd00::1'
  | its only endpoint, pod shop/cart-a: not of its EndpointSlice's addressType IPv4
  | correct EndpointSlice cart-1
service + slice UNREADY
  | its only endpoint, pod shop/cart-a: not ready | kubectl -n shop describe pod cart-a
service + slice ready: true => ready: false, serving: false, terminating: true
  | its only endpoint, pod shop/cart-a: terminating, and no longer serving | get endpointslices
service + slice
  | its only endpoint, pod shop/cart-a: listed by Kubernetes, and not in the maps: the agent has not applied it yet
  | portolan status
"#;

/// Returns the objects that these words name, each after ` + `.
fn made(words: &str) -> ServiceObjects {
    let text = |words: &str| match words.split_once(' ').unwrap_or((words, "")) {
        ("alone", _) => ALONE.to_owned(),
        ("service", _) => SERVICE.to_owned(),
        ("by", _) => BY_NAME.to_owned(),
        ("no", _) => NO_POD.to_owned(),
        ("pod", status) => pod(&status.replace("RUNS", RUNS)),
        ("slice", changes) => {
            let changes = changes.replace("UNREADY", "ready: true => ready: false, serving: false");
            let changes = changes.replace("PORT", PORT).replace("ENDPOINT", ENDPOINT);
            let changes = changes
                .split("; ")
                .filter_map(|change| change.split_once("=>"));
            let changes: Vec<_> = changes.map(|(from, to)| (from.trim(), to.trim())).collect();
            slice(&changes)
        }
        _ => String::new(),
    };
    objects(&words.split(" + ").map(text).collect::<String>())
}

#[test]
fn why_a_service_has_no_endpoint() {
    for [words, because, remedy] in rows(NO_ENDPOINT) {
        let reason = no_endpoint(&made(&words), WANTED);
        assert!(reason.because.starts_with(&because), "{words}: {reason:?}");
        assert!(reason.remedy.contains(&remedy), "{words}: {reason:?}");
    }
}

/// A change of the pod, its status, why it is not ready, and a part of the remedy.
const NOT_READY: &str = "
 | containerStatuses: [{ready: false, state: {running: {}}}]
  | the readiness probe of container one fails | describe pod
 | containerStatuses: [{ready: false, started: false, state: {running: {}}}]
  | the readiness probe of container one fails | describe pod
readinessProbe => startupProbe | phase: Running, containerStatuses: [{ready: false, started: false}]
  | the startup probe of container one has not succeeded yet | describe pod
readinessProbe: {} => tty: false | phase: Running, containerStatuses: [{ready: false, started: false}]
  | so is its container one | describe pod
spec: { => spec: {readinessGates: [{conditionType: lb}],
  | phase: Running, containerStatuses: [{ready: true}] | its readiness gate lb is not met |
 | containerStatuses: [{ready: false, state: {waiting: {reason: CrashLoopBackOff}}}]
  | container one waits: CrashLoopBackOff | logs cart-a -c one --previous
 | containerStatuses: [{ready: false, state: {waiting: {reason: ImagePullBackOff}}}]
  | container one waits: ImagePullBackOff | describe pod
 | containerStatuses: [{ready: false, state: {terminated: {exitCode: 3}}}]
  | container one has ended with status 3 | logs
 | phase: Pending | its pod is Pending | describe pod
";

#[test]
fn why_a_pod_is_not_ready() {
    for [change, status, because, remedy] in rows(NOT_READY) {
        let named = "{name: one, image: x, imageID: x, restartCount: 0, ready";
        let pod = pod(&format!("{{{}}}", status.replace("{ready", named)));
        let (from, to) = change.split_once(" => ").unwrap_or_default();
        let pod = if from.is_empty() {
            pod
        } else {
            pod.replace(from, to)
        };
        let reason = no_endpoint(
            &objects(&[SERVICE, &pod, &slice(&[UNREADY])].concat()),
            WANTED,
        );
        let expected = format!("its only endpoint, pod shop/cart-a: not ready: {because}");
        assert_eq!(reason.because, expected);
        assert!(reason.remedy.contains(&remedy), "{reason:?}");
    }
}

#[test]
fn the_reason_of_several_endpoints_is_said_once() {
    let both = format!("{ENDPOINT}, {{addresses: [10.40.1.21], conditions: {{ready: true}}}}");
    let unready = both.replace("ready: true", "ready: false, serving: false");
    let manifests = [SERVICE, &slice(&[(ENDPOINT, &unready)])].concat();
    let reason = no_endpoint(&objects(&manifests), WANTED);
    assert_eq!(reason.because, "all 2 endpoints: not ready");
    let mixed = format!("{ENDPOINT}, {{addresses: [127.0.0.2], conditions: {{ready: true}}}}")
        .replacen("ready: true", "ready: false, serving: false", 1);
    let manifests = [SERVICE, &slice(&[(ENDPOINT, &mixed)])].concat();
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
    let nobody = "no agent runs that would apply it";
    assert!(reason.because.ends_with(nobody), "{reason:?}");
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
