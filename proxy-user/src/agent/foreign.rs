// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Foreign connections: another proxy made them, and nf_conntrack still holds them. While there are any, segments of unknown
//! connections must pass. Kept by `steps`.

use std::{io, time::Duration};

use tokio::time::Instant;

use crate::causes::chain;

/// How often to look for them.
const EVERY: Duration = Duration::from_secs(30);

/// What is known of foreign connections to services.
#[derive(Debug, Default)]
pub(super) enum ForeignConnections {
    /// Nobody has looked yet.
    #[default]
    Unknown,
    /// There are some, or nf_conntrack could not be asked.
    Held { look_at: Instant },
    /// There are none, and there will be none.
    Gone,
}

impl ForeignConnections {
    /// Whether segments of unknown connections must pass; also before the first look.
    pub(super) fn are_held(&self) -> bool {
        !matches!(self, Self::Gone)
    }

    /// Looks for them: at the start, and then at intervals as long as there are any. Returns whether the answer has changed.
    pub(super) fn look(&mut self, now: Instant, ask: impl FnOnce() -> io::Result<bool>) -> bool {
        let were_held = match self {
            Self::Gone => return false,
            Self::Held { look_at } if now < *look_at => return false,
            Self::Held { .. } => true,
            Self::Unknown => false,
        };
        let held = ask().unwrap_or_else(|error| {
            tracing::debug!(
                "the connections of nf_conntrack cannot be listed: {}",
                chain(&error)
            );
            // If they exist, resets would break them; if not, a client only waits longer.
            true
        });
        *self = if held {
            Self::Held {
                look_at: now + EVERY,
            }
        } else {
            Self::Gone
        };
        let changed = held != were_held;
        if changed && held {
            tracing::info!(
                "connections that another proxy has translated live on in nf_conntrack; until the last one ends, segments of unknown connections to services pass and are not reset"
            );
        } else if changed {
            tracing::info!("the last connection that another proxy had translated has ended");
        }
        changed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_looked_at_the_start_and_then_only_while_there_are_any() {
        let start = Instant::now();
        let mut none = ForeignConnections::default();
        assert!(none.are_held());
        assert!(!none.look(start, || Ok(false)) && !none.are_held());
        assert!(!none.look(start + EVERY, || panic!("not again")));

        let mut some = ForeignConnections::default();
        assert!(some.look(start, || Ok(true)) && some.are_held());
        assert!(!some.look(start + EVERY / 2, || panic!("not yet")));
        assert!(!some.look(start + EVERY, || Ok(true)) && some.are_held());
        assert!(some.look(start + 2 * EVERY, || Ok(false)) && !some.are_held());
        assert!(!some.look(start + 9 * EVERY, || panic!("not again")));
    }

    #[test]
    fn who_cannot_be_asked_is_taken_to_hold_some() {
        let start = Instant::now();
        let mut foreign = ForeignConnections::default();
        let refused = || Err(io::ErrorKind::PermissionDenied.into());
        assert!(foreign.look(start, refused) && foreign.are_held());
        assert!(foreign.look(start + EVERY, || Ok(false)) && !foreign.are_held());
    }
}
