// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Foreign connections: another proxy has translated them, and nf_conntrack keeps them. While there
//! are some, segments of unknown connections must pass, and the kernel must go on translating. They
//! are looked for in a thread, because the table may be large.

use std::{
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    thread,
    time::Duration,
};

use control::{causes::chain, object::Warning};
use datapath::{ForeignConnections as Found, ForeignLookout};
use tokio::{sync::mpsc, time::Instant};

/// How often to look for foreign connections while some are left.
const EVERY: Duration = Duration::from_secs(30);
/// If looking for connections has failed for this long, the agent assumes that none is foreign.
const PATIENCE: Duration = Duration::from_secs(3600);

/// The foreign connections, or why they are not known.
pub(crate) type Answer = io::Result<Found>;

/// What the agent knows of foreign connections to services.
#[derive(Debug, Default)]
pub(super) struct ForeignConnections {
    /// The last answer; `None` before the first.
    found: Option<Found>,
    is_asked: bool,
    look_at: Option<Instant>,
    /// Since when every look has failed; `None` if the last one succeeded.
    failing: Option<Instant>,
}

impl ForeignConnections {
    /// True if there may be foreign connections, so that segments of unknown connections must pass.
    /// Also before the first look.
    pub(super) fn may_exist(&self) -> bool {
        self.found.is_none_or(|found| found.count > 0)
    }
    /// True if the other proxy's rules may be needed. Also before the first look.
    pub(super) fn need_rules(&self) -> bool {
        self.found.is_none_or(|found| found.need_rules)
    }

    /// Returns true if the caller must look now: at the start, and then at intervals as long as
    /// foreign connections are left, or what keeps them. [`Self::hear`] takes the result.
    pub(super) fn ask(&mut self, now: Instant) -> bool {
        let is_due = self.look_at.is_none_or(|at| now >= at);
        let is_left = self.may_exist() || self.found.is_some_and(|found| found.are_kept);
        let asks = is_due && !self.is_asked && is_left;
        self.is_asked |= asks;
        asks
    }

    /// Takes the result of a look. Returns a warning if it failed.
    pub(super) fn hear(&mut self, now: Instant, answer: &Answer) -> Option<Warning> {
        self.is_asked = false;
        self.look_at = Some(now + EVERY);
        match answer {
            Ok(found) => {
                self.failing = None;
                tell(*found, self.found.replace(*found));
                None
            }
            Err(error) => {
                let since = *self.failing.get_or_insert(now);
                // Resets would break foreign connections if there are some; if there are none,
                // clients of unknown connections only wait longer.
                let is_over = now >= since + PATIENCE;
                if is_over {
                    self.found = Some(Found::default());
                }
                Some(unlisted(error, is_over))
            }
        }
    }
}

/// Logs the result of a look if it is new. `before`: that of the last one.
fn tell(found: Found, before: Option<Found>) {
    let (connections, needed) = (found.count, found.need_rules);
    let had_some = before.is_some_and(|before| before.count > 0);
    if connections > 0 && !had_some {
        let rules = if needed {
            "IPVS translates some, and its services must stay until they end"
        } else {
            "the rules that have translated them may go"
        };
        tracing::info!(
            connections,
            "connections that another proxy has translated live on in nf_conntrack, and {rules}; until the last one ends, segments of unknown connections to services pass and are not reset"
        );
    } else if connections == 0 && had_some {
        tracing::info!("the last connection that another proxy had translated has ended");
    }
}

fn unlisted(error: &io::Error, is_over: bool) -> Warning {
    let consequence = if is_over {
        "connections of another proxy are not waited for any longer"
    } else {
        "clients of connections that nobody knows are not reset for an hour at most, in case that another proxy serves them; it is tried again every 30 s"
    };
    Warning {
        object: "nf_conntrack".to_owned(),
        reason: format!(
            "its connections cannot be listed, or not kept translated without another proxy's rules: {}; {consequence}",
            chain(error)
        ),
    }
}

/// Looks for foreign connections in a thread of its own.
pub(super) fn look(answers: mpsc::UnboundedSender<Answer>, lookout: ForeignLookout) {
    // Sending cannot fail: the receiver exists as long as the agent.
    thread::spawn(move || {
        let found = catch_unwind(AssertUnwindSafe(|| lookout.look()));
        let failed = |_| Err(io::Error::other("the look ended by a fault of portolan's"));
        _ = answers.send(found.unwrap_or_else(failed));
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn some(need_rules: bool) -> Answer {
        Ok(Found {
            count: 2,
            need_rules,
            are_kept: true,
        })
    }

    fn none() -> Answer {
        Ok(Found::default())
    }

    #[test]
    fn foreign_connections_are_looked_for_at_the_start_and_while_some_are_left() {
        let start = Instant::now();
        let mut never = ForeignConnections::default();
        assert!(never.may_exist() && never.need_rules() && never.ask(start));
        assert!(!never.ask(start), "it is asked already");
        assert_eq!(never.hear(start, &none()), None);
        assert!(!never.may_exist() && !never.need_rules() && !never.ask(start + EVERY));

        let mut foreign = ForeignConnections::default();
        assert!(foreign.ask(start));
        assert_eq!(foreign.hear(start, &some(true)), None);
        assert!(foreign.may_exist() && foreign.need_rules() && !foreign.ask(start + EVERY / 2));
        assert!(foreign.ask(start + EVERY) && foreign.may_exist());
        assert_eq!(foreign.hear(start + EVERY, &some(false)), None);
        assert!(foreign.may_exist() && !foreign.need_rules());
        let kept = Ok(Found {
            are_kept: true,
            ..Found::default()
        });
        for (number, answer) in [(2, kept), (3, none())] {
            let now = start + number * EVERY;
            assert!(foreign.ask(now));
            assert_eq!(foreign.hear(now, &answer), None);
            assert!(!foreign.may_exist(), "what is left is no service's");
        }
        assert!(!foreign.ask(start + 9 * EVERY));
    }

    #[test]
    fn a_failing_look_is_retried_with_warnings_and_not_awaited_forever() {
        let start = Instant::now();
        let mut foreign = ForeignConnections::default();
        let mut now = start;
        let refused = || Err(io::ErrorKind::PermissionDenied.into());
        for _ in 0..PATIENCE.as_secs() / EVERY.as_secs() {
            assert!(foreign.ask(now));
            let warning = foreign.hear(now, &refused()).expect("a warning");
            assert!(warning.reason.contains("permission denied"), "{warning}");
            assert!(foreign.may_exist() && foreign.need_rules());
            now += EVERY;
        }
        assert!(foreign.ask(now));
        let warning = foreign.hear(now, &refused()).expect("a warning");
        let over = "not waited for any longer";
        assert!(warning.reason.contains(over), "{warning}");
        assert!(!foreign.may_exist());

        let mut foreign = ForeignConnections::default();
        assert!(foreign.ask(start) && foreign.hear(start, &refused()).is_some());
        assert!(foreign.ask(start + EVERY));
        assert_eq!(foreign.hear(start + EVERY, &some(false)), None);
        assert!(foreign.may_exist() && foreign.failing.is_none());
    }
}
