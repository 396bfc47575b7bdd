// SPDX-License-Identifier: (Apache-2.0 OR MIT) AND GPL-2.0-only
//! An IP family as the programs' type parameter: what differs between the families on the wire, and
//! the family's maps. All other code is generic over the family.

use crate::{packet::Wire, service::lookup::Lookup};

pub use crate::packet::{Ipv4, Ipv6};

/// An IP family: its headers ([`Wire`]), its maps ([`crate::maps::tables::Tables`]) and its
/// look-ups of services ([`Lookup`]).
pub trait Family: Wire + Lookup {}

impl<T: Wire + Lookup> Family for T {}
