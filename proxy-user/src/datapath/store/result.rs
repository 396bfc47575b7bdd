// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the kernel side tells: what an apply did, how full its maps are.

use crate::plan::Warning;

/// What an apply did.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ApplyReport {
    /// Elements written to or removed from maps; 0 when everything was as planned already.
    pub written: usize,
    /// What could not be published; hand these services in again later.
    pub errors: Vec<Warning>,
    /// UDP backends have gone, to which sockets may be connected.
    pub(crate) udp_lost: bool,
}

/// How full a map is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fill {
    pub map: &'static str,
    pub entries: u32,
    pub capacity: u32,
}
