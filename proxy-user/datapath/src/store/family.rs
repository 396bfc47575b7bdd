// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Gives generic code access to the IPv4 or IPv6 parts of the types in `store`, so that no logic is
//! written twice.

use proxy_common::{RecordId, V4, V6};

use super::{
    batches::{Batches, FamilyBatches},
    maps::{FamilyMaps, Maps},
    state::{FamilyState, PortState, ServiceState},
};
use crate::maps::family::Family;

/// An address family, with functions that return its part of a value.
pub(crate) trait Stored: Family {
    fn maps(maps: &Maps) -> &FamilyMaps<Self>;
    fn maps_mut(maps: &mut Maps) -> &mut FamilyMaps<Self>;
    fn state(port: &PortState) -> &FamilyState;
    fn state_mut(port: &mut PortState) -> &mut FamilyState;
    fn guards(service: &ServiceState) -> &Vec<RecordId>;
    fn guards_mut(service: &mut ServiceState) -> &mut Vec<RecordId>;
    fn batches(batches: &Batches) -> &FamilyBatches<Self>;
    fn batches_mut(batches: &mut Batches) -> &mut FamilyBatches<Self>;
}

macro_rules! stored {
    ($family:ident, $lower:ident, $guards:ident) => {
        impl Stored for $family {
            fn maps(maps: &Maps) -> &FamilyMaps<Self> {
                &maps.$lower
            }
            fn maps_mut(maps: &mut Maps) -> &mut FamilyMaps<Self> {
                &mut maps.$lower
            }
            fn state(port: &PortState) -> &FamilyState {
                &port.$lower
            }
            fn state_mut(port: &mut PortState) -> &mut FamilyState {
                &mut port.$lower
            }
            fn guards(service: &ServiceState) -> &Vec<RecordId> {
                &service.$guards
            }
            fn guards_mut(service: &mut ServiceState) -> &mut Vec<RecordId> {
                &mut service.$guards
            }
            fn batches(batches: &Batches) -> &FamilyBatches<Self> {
                &batches.$lower
            }
            fn batches_mut(batches: &mut Batches) -> &mut FamilyBatches<Self> {
                &mut batches.$lower
            }
        }
    };
}

stored!(V4, v4, guards_v4);
stored!(V6, v6, guards_v6);
