// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests for the shared arguments: which values they accept and which they refuse.

use super::*;

/// Parses these flags as arguments.
pub(crate) fn parsed<A: clap::Args>(flags: &str) -> A {
    let command = A::augment_args(clap::Command::new("test").no_binary_name(true));
    let matches = command.try_get_matches_from(flags.split_whitespace());
    A::from_arg_matches(&matches.expect("flags")).expect("flags")
}

fn select(flags: &str) -> Select {
    parsed::<ListArgs>(flags).select
}

#[test]
fn a_service_is_named_as_kubectl_names_it() {
    for (text, parts) in [
        ("cart", Some("cart")),
        ("shop/cart:http", Some("shop/cart:http")),
        ("service/shop/cart:http", Some("shop/cart:http")),
        ("svc/shop/cart:http", Some("shop/cart:http")),
        // `svc/cart` is not kubectl's short form of a kind here: a namespace may be named `svc`.
        ("svc/cart", Some("cart")),
        ("", None),
        ("/", None),
        ("a/b/c", None),
        ("cart:", None),
        ("Cart", None),
        ("shop/", None),
        ("-n x", None),
        ("a_b", None),
    ] {
        let named = text.parse().ok().map(|named: ServiceArg| named.to_string());
        assert_eq!(named.as_deref(), parts, "{text:?}");
    }
}

#[test]
fn an_empty_list_names_the_filters_that_no_row_has() {
    let more = [("--state", Some(String::new())), ("--client", None)];
    assert_eq!(select("cart -n shop").filters(&more), "");
    let given = select("cart:http --address 10.0.0.0/8 --protocol udp").filters(&more);
    let named = "the port http and --address 10.0.0.0/8 and --protocol UDP";
    assert_eq!(given, named);
}

#[test]
fn a_namespace_that_contradicts_the_name_is_refused() {
    assert!(select("shop/cart -n shop").check().is_ok());
    assert!(select("cart -n other").check().is_ok());
    let refused = select("shop/cart -n other").check();
    let said = refused.expect_err("refused").to_string();
    assert!(said.contains("shop") && said.contains("other"), "{said}");
}
