// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What `repair` remembers from one look to the next. Kept by `steps`.

use tokio::time::Instant;

use crate::object::Warning;

/// When was looked, and what was found lately.
#[derive(Debug, Default)]
pub(super) struct Repairs {
    /// When the next whole look is due.
    pub(super) due: Option<Instant>,
    /// Something could not be put back: it is looked at wholly every second.
    pub(super) failing: bool,
    /// The services that come next.
    pub(super) cursor: usize,
    pub(super) told: Vec<(Instant, Warning)>,
}
