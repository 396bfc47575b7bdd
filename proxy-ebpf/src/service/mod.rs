// SPDX-License-Identifier: (Apache-2.0 OR MIT) AND GPL-2.0-only
//! Finds a backend for a destination: the service's record (`lookup`), the verdict (`policy`), the
//! backend (`select`). Used by every hook at which a connection may begin.

pub mod lookup;
pub mod policy;
pub mod select;
