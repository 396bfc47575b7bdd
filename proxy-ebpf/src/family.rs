// SPDX-License-Identifier: (Apache-2.0 OR MIT) AND GPL-2.0-only
//! An IP family as the programs' type parameter: what differs between the families on the wire, and
//! the family's maps. All other code is generic over the family.

use crate::{maps::tables::Tables, packet::Wire};

pub use crate::packet::{Ipv4, Ipv6};

/// An IP family: its headers ([`Wire`]), and its maps and settings ([`Tables`]).
pub trait Family: Wire + Tables {}

impl<T: Wire + Tables> Family for T {}
