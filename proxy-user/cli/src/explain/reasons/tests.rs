// SPDX-License-Identifier: Apache-2.0 OR MIT

use control::{documents::values, testing::rows};
use k8s_openapi::api::discovery::v1::EndpointSlice;

use super::*;

pub(crate) fn wanted(objects: &ServiceObjects) -> Wanted<'_> {
    Wanted {
        objects,
        namespace: "shop",
        name: "cart",
        port: "http",
        protocol: Protocol::TCP,
        v6: false,
        agent: true,
    }
}

/// Returns the objects of these manifests; pods are known if there is one.
pub(crate) fn objects(manifests: &str) -> ServiceObjects {
    let mut found = ServiceObjects::default();
    for object in values("test", manifests) {
        match object["kind"].as_str().unwrap_or_default() {
            "" => {}
            "Service" => found.service = serde_json::from_value(object).expect("a Service"),
            "Pod" => {
                let pod = serde_json::from_value(object).expect("a pod");
                found.pods.push(pod);
                found.has_all_pods = true;
            }
            "NoPod" => found.has_all_pods = true,
            _ => {
                let slice: EndpointSlice = serde_json::from_value(object).expect("a slice");
                let of = (service_of(&slice), slice.metadata.namespace.as_deref());
                match of == (Some("cart"), Some("shop")) {
                    true => found.slices.push(slice),
                    false => found.strays.push(slice),
                }
            }
        }
    }
    found
}

const SERVICE: &str = include_str!("service.yaml");

/// The Service without a selector.
fn alone() -> String {
    SERVICE.replace("selector: {app: cart}, ", "")
}

/// A slice with one endpoint of a pod, and these changes.
fn slice(changes: &[(&str, &str)]) -> String {
    let mut text = include_str!("slice.yaml").to_owned();
    for (from, to) in changes {
        assert!(text.contains(from), "{from}");
        text = text.replace(from, to);
    }
    text
}

/// A pod with this status of its container.
fn pod(status: &str) -> String {
    include_str!("pod.yaml").replace("STATUS", status)
}

const RUNS: &str = "{phase: Running, containerStatuses: [{name: one, ready: true, image: x, imageID: x, restartCount: 0}]}";
const UNREADY: (&str, &str) = ("ready: true", "ready: false, serving: false");
const PORT: &str = "{name: http, port: 8080}";
const ENDPOINT: &str =
    "{addresses: [10.40.1.20], conditions: {ready: true}, targetRef: {kind: Pod, name: cart-a}}";

/// Objects as [`made`] reads them, how the reason begins, and a part of the remedy.
const NO_ENDPOINT: &str = include_str!("no_endpoint.txt");

/// Returns the objects that these words name, each after ` + `.
fn made(words: &str) -> ServiceObjects {
    let text = |words: &str| match words.split_once(' ').unwrap_or((words, "")) {
        ("alone", _) => alone(),
        ("service", _) => SERVICE.to_owned(),
        ("by", _) => SERVICE.replace("8080", "web"),
        ("no", _) => "---\nkind: NoPod\n".to_owned(),
        ("pod", status) => pod(&status.replace("RUNS", RUNS)),
        ("slice", changes) => {
            let changes = changes.replace("UNREADY", "ready: true => ready: false, serving: false");
            let changes = changes.replace("PORT", PORT).replace("ENDPOINT", ENDPOINT);
            let changes = changes.split("; ").filter_map(|one| one.split_once("=>"));
            let changes = changes.map(|(from, to)| (from.trim(), to.trim()));
            slice(&Vec::from_iter(changes))
        }
        _ => String::new(),
    };
    objects(&words.split(" + ").map(text).collect::<String>())
}

#[test]
fn why_a_service_has_no_endpoint() {
    for [words, because, remedy] in rows(NO_ENDPOINT) {
        let reason = wanted(&made(&words)).no_endpoint();
        assert!(reason.because.starts_with(&because), "{words}: {reason:?}");
        assert!(reason.remedy.contains(&remedy), "{words}: {reason:?}");
    }
}

/// A change of the pod, its status, why it is not ready, and a part of the remedy.
const NOT_READY: &str = include_str!("not_ready.txt");

#[test]
fn why_a_pod_is_not_ready() {
    for [change, status, because, remedy] in rows(NOT_READY) {
        let named = "{name: one, image: x, imageID: x, restartCount: 0, ready";
        let pod = pod(&format!("{{{}}}", status.replace("{ready", named)));
        let (from, to) = change.split_once(" => ").unwrap_or_default();
        let manifests = [SERVICE, &pod.replace(from, to), &slice(&[UNREADY])].concat();
        let reason = wanted(&objects(&manifests)).no_endpoint();
        let expected = format!("its only endpoint, pod shop/cart-a: not ready: {because}");
        assert_eq!(reason.because, expected);
        assert!(reason.remedy.contains(&remedy), "{reason:?}");
    }
}

#[test]
fn without_an_agent_nobody_will_apply_what_kubernetes_lists() {
    let objects = objects(&[SERVICE, &slice(&[])].concat());
    let mut wanted = wanted(&objects);
    wanted.agent = false;
    let reason = wanted.no_endpoint();
    let nobody = "no agent runs that would apply it";
    assert!(reason.because.ends_with(nobody), "{reason:?}");
    assert_eq!(reason.remedy, "start the agent");
}

#[test]
fn a_target_port_that_differs_is_named() {
    let other = slice(&[(PORT, "{name: http, port: 8081}")]);
    let of = |service: &str, slice: &str| objects(&[service, &pod(RUNS), slice].concat());
    let reason = wanted(&of(SERVICE, &other)).other_target();
    let reason = reason.expect("a reason");
    let leads = "its targetPort is 8080, and EndpointSlice cart-1 leads to 8081";
    assert!(reason.because.starts_with(leads), "{reason:?}");
    assert_eq!(wanted(&of(SERVICE, &slice(&[]))).other_target(), None);
    let none = wanted(&of(&alone(), &other)).other_target();
    assert_eq!(none, None, "its writer decides");
    let undeclared = |slice: &str| wanted(&of(SERVICE, slice)).undeclared();
    let said = undeclared(&other).expect("a note").found;
    let declares = "no container of pod shop/cart-a declares port 8081";
    assert!(said.starts_with(declares) && said.contains("(they declare: 8080, 9090)"));
    assert_eq!(undeclared(&slice(&[])), None);
}
