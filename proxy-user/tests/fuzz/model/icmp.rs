// SPDX-License-Identifier: Apache-2.0 OR MIT
//! ICMP errors about flows: translated both ways, outside and inside.

use super::{Given, Judgement, Model, Seen, ingress::untouched, wire::Headers};

pub(crate) fn ingress(_: &mut Model, given: &Given<'_>, _: &Headers, seen: &Seen) -> Judgement {
    untouched(given, seen)
}

pub(crate) fn egress(_: &mut Model, given: &Given<'_>, _: &Headers, seen: &Seen) -> Judgement {
    untouched(given, seen)
}
