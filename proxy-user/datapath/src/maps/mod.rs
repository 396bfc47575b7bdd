// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The pinned maps as typed tables and arrays. In: a pin directory and capacities. Out: maps whose
//! shape has been checked and whose elements are plain values. Used by every other module here.

pub mod arrays;
pub(super) mod counted;
pub mod family;
mod lock;
mod memory;
pub(super) mod names;
mod open;
mod pinned;
pub mod pins;
mod ports;
pub mod ranges;
pub mod shapes;

pub use linux::tables;
pub(super) use lock::Lock;
pub use lock::holder_of;
pub use memory::{memory_of, sizes_for};
pub(super) use open::OpenMaps;
pub(super) use pinned::{PinnedMaps, TRACE, TRACE_OUT};
pub(super) use ports::PortFilter;
pub use shapes::pinned_capacities;
pub use shapes::{Shape, shapes};
pub(super) use shapes::{capacities_in, find_difference};
