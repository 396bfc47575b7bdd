// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests for the shared arguments: which values they accept and which they refuse.

use super::*;
use crate::format::PathArg;

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
    let named = |text: &str| {
        let named = text.parse::<ServiceArg>().ok()?;
        Some((named.namespace, named.name, named.port))
    };
    let own = |text: &str| text.to_owned();
    assert_eq!(named("cart"), Some((None, own("cart"), None)));
    let whole = Some((Some(own("shop")), own("cart"), Some(own("http"))));
    for text in [
        "shop/cart:http",
        "service/shop/cart:http",
        "svc/shop/cart:http",
    ] {
        assert_eq!(named(text), whole, "{text}");
    }
    // `svc/cart` is not kubectl's short form of a kind here: a namespace may have the name `svc`.
    assert_eq!(named("svc/cart"), Some((None, own("cart"), None)));
    for wrong in ["", "/", "a/b/c", "cart:", "Cart", "shop/", "-n x", "a_b"] {
        assert_eq!(named(wrong), None, "{wrong:?}");
    }
}

#[test]
fn an_empty_list_names_the_filters_that_no_row_has() {
    let more = [("--state", Some(String::new())), ("--client", None)];
    assert_eq!(select("cart -n shop").filters(&more), "");
    let given = select("cart:http --address 10.0.0.0/8 --protocol udp").filters(&more);
    assert_eq!(
        given,
        "the port http and --address 10.0.0.0/8 and --protocol UDP"
    );
}

#[test]
fn a_namespace_that_contradicts_the_name_is_refused() {
    assert!(select("shop/cart -n shop").check().is_ok());
    assert!(select("cart -n other").check().is_ok());
    let refused = select("shop/cart -n other").check();
    let said = refused.expect_err("refused").to_string();
    assert!(said.contains("shop") && said.contains("other"), "{said}");
}

#[test]
fn jsonpaths_are_accepted_in_kubectls_spelling() {
    let path = |text: &str| {
        text.parse::<PathArg>()
            .ok()
            .map(|path| (path.expression, path.by_items))
    };
    assert_eq!(path("$[*].service"), Some(("$[*].service".into(), false)));
    assert_eq!(
        path("{.items[*].service}"),
        Some(("$.items[*].service".into(), true))
    );
    assert_eq!(path("[0]"), Some(("$[0]".into(), false)));
    assert_eq!(path("{.items[}"), None);
    assert_eq!(path("service"), None);
}
