// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The names that a Gateway has elsewhere: of its plan, and of the Service that is made for it.

use sha2::{Digest, Sha256};

use crate::{
    model::{Kind, ObjectKey},
    object::ObjectName,
};

/// Begins the name of a Gateway's plan. No Kubernetes name has a colon, so no Service has it.
const PREFIX: &str = "gateway:";
/// The most that the maps, a label or the name of a Service hold.
const MAX: usize = 63;

/// Returns the name of a Gateway's plan, by which commands show it: `NAMESPACE/gateway:NAME`.
pub fn plan_name(gateway: &ObjectName) -> ObjectName {
    gateway.beside(short(&format!("{PREFIX}{}", gateway.name)))
}

/// Whether a plan of this name is a Gateway's.
pub fn is_plan(name: &ObjectName) -> bool {
    name.name.starts_with(PREFIX)
}

/// Returns the object whose plan has this name. A long name of a Gateway is not known from it.
pub fn owner(plan: &ObjectName) -> ObjectKey {
    match plan.name.strip_prefix(PREFIX) {
        Some(gateway) => ObjectKey::new(Kind::Gateway, &plan.namespace, gateway),
        None => ObjectKey::new(Kind::Service, &plan.namespace, &plan.name),
    }
}

/// Describes whose plan has this name: `Gateway shop/edge`, or `Service shop/cart`.
pub fn described(plan: &ObjectName) -> String {
    owner(plan).to_string()
}

/// Returns the name of the Service that is made for a Gateway without addresses.
pub fn made_for(gateway: &ObjectName) -> ObjectName {
    // A Service's name begins with a letter and has no dots.
    let plain = format!("gateway-{}", gateway.name.replace('.', "-"));
    gateway.beside(if gateway.name.contains('.') {
        hashed(&plain, &gateway.name)
    } else {
        short(&plain)
    })
}

/// Shortens a name to what the maps hold; different names stay different.
pub fn short(name: &str) -> String {
    if name.len() <= MAX {
        name.to_owned()
    } else {
        hashed(name, name)
    }
}

fn hashed(name: &str, of: &str) -> String {
    // The same hash in every version: names in the cluster have it.
    let hash = &format!("{:x}", Sha256::digest(of))[..8];
    let start = name.floor_char_boundary(MAX - hash.len() - 1);
    format!("{}-{hash}", name.get(..start).unwrap_or(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gateway_keeps_its_name_in_the_maps_unless_it_is_too_long() {
        let of = |name: &str| plan_name(&ObjectName::new("shop", name)).name;
        assert_eq!(&*of("edge"), "gateway:edge");
        let [one, other] = ["a", "b"].map(|last| of(&("e".repeat(200) + last)));
        assert_eq!((one.len(), other.len()), (MAX, MAX));
        assert_ne!(one, other);
        for (name, expected) in [
            ("gateway:edge", "Gateway shop/edge"),
            ("cart", "Service shop/cart"),
        ] {
            assert_eq!(described(&ObjectName::new("shop", name)), expected);
        }
    }

    #[test]
    fn the_service_of_a_gateway_has_a_name_that_a_service_may_have() {
        let of = |name: &str| made_for(&ObjectName::new("shop", name)).name;
        assert_eq!(&*of("edge"), "gateway-edge");
        assert!(of("a.b").starts_with("gateway-a-b-") && of("a.b") != of("a-b"));
        assert_eq!(of(&"e".repeat(253)).len(), MAX);
    }
}
