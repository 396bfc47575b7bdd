// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Connections that another proxy made before us: they live on in nf_conntrack, so segments that we know
//! nothing of must pass until the last has ended. Kept by `steps`.

use std::{io, time::Duration};

use tokio::time::Instant;

use crate::causes::chain;

/// How often it is looked whether such connections are left.
const EVERY: Duration = Duration::from_secs(30);

/// What is known of others' connections to services.
#[derive(Debug, Default)]
pub(super) enum Others {
    /// It has not been looked yet.
    #[default]
    Unknown,
    /// There are some, as far as is known.
    Held { look_at: Instant },
    /// There are none, and no more come.
    Gone,
}

impl Others {
    /// Whether segments of unknown connections must be let through: until it has been looked, too.
    pub(super) fn are_held(&self) -> bool {
        !matches!(self, Self::Gone)
    }

    /// Looks, at the start and then as long as there are any; says whether the answer is another one than before.
    pub(super) fn look(&mut self, now: Instant, ask: impl FnOnce() -> io::Result<bool>) -> bool {
        let were_held = match self {
            Self::Gone => return false,
            Self::Held { look_at } if now < *look_at => return false,
            Self::Held { .. } => true,
            Self::Unknown => false,
        };
        let held = ask().unwrap_or_else(|error| {
            tracing::debug!(
                "nf_conntrack does not tell its connections: {}",
                chain(&error)
            );
            // Better a client that waits than a connection that breaks.
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
                "connections that another proxy has translated live on in nf_conntrack; until the last has ended, segments of unknown connections to cluster IPs pass and are not reset"
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
        let mut none = Others::default();
        assert!(none.are_held());
        assert!(!none.look(start, || Ok(false)) && !none.are_held());
        assert!(!none.look(start + EVERY, || panic!("not again")));

        let mut some = Others::default();
        assert!(some.look(start, || Ok(true)) && some.are_held());
        assert!(!some.look(start + EVERY / 2, || panic!("not yet")));
        assert!(!some.look(start + EVERY, || Ok(true)) && some.are_held());
        assert!(some.look(start + 2 * EVERY, || Ok(false)) && !some.are_held());
        assert!(!some.look(start + 9 * EVERY, || panic!("not again")));
    }

    #[test]
    fn who_cannot_be_asked_is_taken_to_hold_some() {
        let start = Instant::now();
        let mut others = Others::default();
        let refused = || Err(io::ErrorKind::PermissionDenied.into());
        assert!(others.look(start, refused) && others.are_held());
        assert!(others.look(start + EVERY, || Ok(false)) && !others.are_held());
    }
}
