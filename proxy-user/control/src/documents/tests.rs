// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Well-formed and malformed files, as people write them.

use super::*;
use crate::testing::rows;
use rstest::rstest;

const SERVICE: &str = "apiVersion: v1\nkind: Service\nmetadata: {name: cart}\nspec:\n  clusterIP: 172.30.0.1\n  ports:\n    - port: 80\n";

fn read_text(file: &str, text: &str) -> Result<Content, Malformed> {
    read(file, text, &mut Converter::new("node-a"))
}
fn names(content: &Content) -> Vec<String> {
    let keys = content.objects.iter().map(|(object, _)| object.key());
    keys.map(|key| key.to_string()).collect()
}

#[rstest]
#[case::one(SERVICE, 1)]
#[case::leading_marker(&format!("---\n{SERVICE}"), 1)]
#[case::several(&format!("# a comment\n---\n{SERVICE}---\n{SERVICE}...\n---\n"), 2)]
#[case::windows_line_ends(&format!("{SERVICE}---\n{SERVICE}").replace('\n', "\r\n"), 2)]
#[case::on_the_markers_line("--- {apiVersion: v1, kind: Service, metadata: {name: cart}}\n", 1)]
#[case::with_directive(&format!("%YAML 1.2\n---\n{SERVICE}"), 1)]
#[case::after_a_documents_end(&format!("{SERVICE}...\n{SERVICE}"), 2)]
#[case::with_a_byte_order_mark(&format!("\u{feff}{SERVICE}---\n{SERVICE}"), 2)]
#[case::nothing("", 0)]
#[case::comments_only("# nothing yet\n", 0)]
fn a_text_is_split_into_its_yaml_documents(#[case] text: &str, #[case] count: usize) {
    let content = read_text("a.yaml", text).expect("readable");
    assert_eq!(names(&content), vec!["Service default/cart"; count]);
    assert_eq!(content.warnings, []);
}

const ITEMS: &str = r#"{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "cart"}}, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-a"}}"#;

#[rstest]
#[case::yaml(
    "a.yaml",
    "apiVersion: v1\nkind: List\nitems:\n  - {apiVersion: v1, kind: Service, metadata: {name: cart}}\n  - {apiVersion: v1, kind: Node, metadata: {name: node-a}}\n"
)]
#[case::typed_list("a.yaml", &format!("apiVersion: v1\nkind: ServiceList\nitems: [{ITEMS}]\n"))]
#[case::json("a.json", &format!("{{\n\t\"apiVersion\": \"v1\",\n\t\"kind\": \"List\",\n\t\"items\": [{ITEMS}]}}"))]
#[case::json_objects("a.json", &ITEMS.replace("}, {\"api", "}\n{\"api"))]
#[case::json_with_a_byte_order_mark("a.json", &format!("\u{feff}{}", ITEMS.replace("}, {\"api", "}\n{\"api")))]
fn items_of_a_list_object_are_read_one_by_one(#[case] file: &str, #[case] text: &str) {
    let content = read_text(file, text).expect("readable");
    assert_eq!(names(&content), ["Service default/cart", "Node node-a"]);
}

#[test]
fn objects_of_other_kinds_are_skipped_with_a_warning() {
    let text = format!(
        "{SERVICE}---\napiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: cart}}\n---\nkind: Service\n"
    );
    let content = read_text("dir/a.yaml", &text).expect("readable");
    assert_eq!(names(&content), ["Service default/cart"]);
    let warnings: Vec<_> = content.warnings.iter().map(ToString::to_string).collect();
    let about = [
        "document 2, line 9: kind Deployment of apps/v1",
        "document 3, line 13: kind Service without an apiVersion",
    ];
    let expected = about.map(|what| format!("dir/a.yaml, {what} is skipped; only Service and Node of v1, EndpointSlice of discovery.k8s.io/v1 and ServiceCIDR of networking.k8s.io/v1 are read here, move it out of this folder"));
    assert_eq!(warnings, expected);
}

#[rstest]
#[case::broken_yaml("a.yaml", &format!("{SERVICE}---\napiVersion: v1\nkind: [Service\n"), "document 2, line 1")]
#[case::wrong_type("a.yaml", &format!("{SERVICE}---\n{}", SERVICE.replace("port: 80", "port: eighty")), "document 2, line 15")]
#[case::duplicate_key("a.yaml", &SERVICE.replace("spec:", "kind: Node\nspec:"), "document 1, line 4")]
#[case::no_object("a.yaml", "just text\n", "document 1, line 1")]
#[case::broken_json("a.json", "{\"kind\": ", "object 1")]
fn a_malformed_document_rejects_the_file_with_its_position(
    #[case] file: &str,
    #[case] text: &str,
    #[case] place: &str,
) {
    let malformed = read_text(file, text).expect_err("malformed");
    assert!(malformed.place.starts_with(place), "{malformed}");
    let reason = &malformed.reason;
    assert!(!reason.is_empty() && !reason.contains('\n'), "{malformed}");
}

/// The ending of a file, its text (`¶`: a line ends), and the error.
const UNREADABLE: &str = r#"
.yaml | {kind: List, items: [{apiVersion: v1, kind: Service, metadata: {name: cart, namespace: shop}, spec: {ports: [{port: 1}, {port: eighty}]}}]}
  | document 1, line 1, items[0], Service shop/cart: spec.ports[1].port: a number is wanted, not string "eighty"
.json | {"kind": "List", "items": [{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "a", "labels": []}}]}
  | object 1, items[0], Node a: metadata.labels: a mapping is wanted, not sequence
.json | {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "cart"}, "spec": {"ports": {}}}
  | object 1, Service cart: spec.ports: a list is wanted, not map
.yaml | apiVersion: v1¶kind: Service¶metadata: {name: cart}¶spec:¶  ports: 80
  | document 1, line 5: a list is wanted in `ports: 80`
.yaml | apiVersion: v1¶kind: Service¶metadata: {name: cart}¶spec:¶  ports:¶  - port: eighty
  | document 1, line 6: a number is wanted in `- port: eighty`
.yaml | apiVersion: v1¶kind: Service¶metadata: {name: cart}¶spec: [1]
  | document 1, line 4: a mapping is wanted in `spec: [1]`
.yaml | apiVersion: v1¶kind: Service¶metadata: {name: cart, labels: {a: null}}
  | document 1, line 3: null is not allowed here in `metadata: {name: cart, labels: {a: null}}`
"#;

#[test]
fn an_unreadable_object_is_rejected_with_an_error_for_operators() {
    for [file, text, expected] in rows(UNREADABLE) {
        let malformed = read_text(&file, &text.replace('¶', "\n")).expect_err("malformed");
        assert_eq!(malformed.to_string(), expected);
    }
}

#[test]
fn all_30000_items_of_a_list_are_read() {
    let mut text = "kind: List\nitems:\n".to_owned();
    for n in 0..30_000 {
        text += &format!(
            "  - {{apiVersion: v1, kind: Service, metadata: {{name: s{n}}}, spec: {{clusterIP: 172.30.0.1}}}}\n"
        );
    }
    let content = read_text("a.yaml", &text).expect("readable");
    assert_eq!(content.objects.len(), 30_000);
}

#[test]
fn service_cidrs_are_read_and_invalid_ranges_give_a_warning() {
    let text = "apiVersion: networking.k8s.io/v1\nkind: ServiceCIDR\nmetadata: {name: kubernetes}\nspec: {cidrs: [10.96.0.0/16, 'fd00:10:96::/112', 10.97.0.0]}\n";
    let content = read_text("a.yaml", text).expect("readable");
    assert_eq!(names(&content), ["ServiceCIDR kubernetes"]);
    let [(Object::ServiceCidr(ranges), warnings)] = &content.objects[..] else {
        panic!("{content:?}")
    };
    let ranges: Vec<_> = ranges.ranges.iter().map(ToString::to_string).collect();
    assert_eq!(ranges, ["10.96.0.0/16", "fd00:10:96::/112"]);
    let expected = "ServiceCIDR kubernetes: spec.cidrs: \"10.97.0.0\" is not an address range and is ignored; write it like 192.0.2.0/24";
    assert_eq!(warnings[0].to_string(), expected);
}
