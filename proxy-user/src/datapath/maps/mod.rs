// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The pinned maps as typed tables and arrays. In: a pin directory and capacities; out: checked maps whose elements are
//! plain values. Used by every room above.

pub mod arrays;
pub mod family;
pub mod pins;
pub mod tables;
