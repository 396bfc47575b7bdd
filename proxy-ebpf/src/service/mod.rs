// SPDX-License-Identifier: (Apache-2.0 OR MIT) AND GPL-2.0-only
//! Finds a backend for a destination: its record (`lookup`), the verdict (`policy`), the backend
//! (`select`). Used by every hook that begins a connection.

pub mod lookup;
pub mod policy;
pub mod select;
