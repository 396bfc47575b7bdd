// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Foreign connections: another proxy has made them, and nf_conntrack keeps them. The agent imports
//! them, so that the other proxy's rules can be removed. While some cannot be imported, segments of
//! unknown connections must pass. The import runs in a thread, because the table may be large.

use std::{
    fmt::Write,
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    thread,
    time::Duration,
};

use control::{causes::chain, object::Warning};
use datapath::{Imported, Importer};
use tokio::{sync::mpsc, time::Instant};

/// How often foreign connections are imported while some are left.
const EVERY: Duration = Duration::from_secs(30);
/// How long new flows of datagrams wait at most for the first import, from the start of the agent.
const LONGEST_WAIT: Duration = Duration::from_secs(120);
/// If listing connections has failed for this long, the agent assumes that none is foreign.
const PATIENCE: Duration = Duration::from_secs(3600);

/// The result of an import: the number of imported connections and of others, or why nf_conntrack
/// could not be listed.
pub(crate) type Answer = io::Result<Imported>;

/// What the agent knows of foreign connections to services.
#[derive(Debug, Default)]
pub(super) struct ForeignConnections {
    state: State,
    /// Since when every attempt to list connections has failed; `None` if the last one succeeded.
    failing: Option<Instant>,
    /// The time at which new flows of datagrams stop waiting for the import of another proxy's
    /// flows. `None` if they do not wait, also after the first import.
    datagrams_wait: Option<Instant>,
}

#[derive(Debug, Default)]
enum State {
    /// No import has begun yet.
    #[default]
    Unknown,
    /// An import is under way. `held`: `Some(true)` if an earlier import has left connections in
    /// nf_conntrack, `None` if this is the first.
    Asked { held: Option<bool> },
    /// Some connections could not be imported, or nf_conntrack could not be listed. The next import
    /// is at `look_at`.
    Held { look_at: Instant },
    /// There are no foreign connections any more, and no new ones will come.
    Gone,
}

impl ForeignConnections {
    /// Makes new flows of datagrams wait for the first import. For a node that portolan has not
    /// served yet.
    pub(super) fn defer_udp(&mut self, now: Instant) {
        self.datagrams_wait = Some(now + LONGEST_WAIT);
    }
    /// Lets new flows of datagrams begin; true if they had to wait before.
    pub(super) fn end_wait(&mut self) -> bool {
        self.datagrams_wait.take().is_some()
    }
    /// Lets new flows of datagrams begin if they have waited too long; true if it has done so.
    pub(super) fn expire_udp_deferral(&mut self, now: Instant) -> bool {
        self.datagrams_wait.take_if(|until| *until <= now).is_some()
    }
    /// True if a datagram that would begin a flow is left to the previous proxy.
    pub(super) fn do_datagrams_wait(&self) -> bool {
        self.datagrams_wait.is_some()
    }
    /// True if there may be foreign connections, so that segments of unknown connections must pass.
    /// Also before the first import.
    pub(super) fn may_exist(&self) -> bool {
        !matches!(self.state, State::Gone)
    }
    /// True while the import of foreign connections is under way.
    pub(super) fn are_imported(&self) -> bool {
        matches!(self.state, State::Asked { .. })
    }

    /// Returns true if the caller must start an import now: at the start, and then at intervals as
    /// long as foreign connections are left. [`Self::hear`] takes its result.
    pub(super) fn ask(&mut self, now: Instant) -> bool {
        let held = match self.state {
            State::Unknown => None,
            State::Held { look_at } if now >= look_at => Some(true),
            _ => return false,
        };
        self.state = State::Asked { held };
        true
    }

    /// Takes the result of an import. Returns a warning if connections could not be listed.
    pub(super) fn hear(&mut self, now: Instant, answer: &Answer) -> Option<Warning> {
        self.datagrams_wait = None;
        let (held, warning) = match answer {
            Ok(imported) => {
                self.failing = None;
                (imported.held > 0, None)
            }
            Err(error) => {
                let since = *self.failing.get_or_insert(now);
                // Resets would break foreign connections if there are some; if there are none,
                // clients of unknown connections only wait longer.
                let held = now < since + PATIENCE;
                (held, Some(unlisted(error, held)))
            }
        };
        let before = match self.state {
            State::Asked { held } => held,
            _ => None,
        };
        self.state = if held {
            State::Held {
                look_at: now + EVERY,
            }
        } else {
            State::Gone
        };
        if let Ok(imported) = answer {
            tell(imported, held, before);
        }
        warning
    }
}

/// Logs the result of an import if it is new. `held`: whether connections are left now; `before`:
/// whether an earlier import left some, `None` if this is the first.
fn tell(imported: &Imported, held: bool, before: Option<bool>) {
    let (connections, left) = (imported.connections, left(imported));
    if connections > 0 {
        tracing::info!(
            connections,
            left,
            "imported connections of another proxy from nf_conntrack"
        );
    }
    if held && before.is_none() {
        tracing::info!(
            left,
            "connections that another proxy has translated live on in nf_conntrack; until the last one ends or can be imported, segments of unknown connections to services pass and are not reset"
        );
    } else if !held && (before == Some(true) || connections > 0) {
        tracing::info!(
            "the last connection that another proxy had translated has ended or is imported; its rules are not needed any more"
        );
    }
}

/// Returns a text: how many connections were not imported, and why.
fn left(imported: &Imported) -> String {
    let mut text = imported.left.values().sum::<usize>().to_string();
    for (n, (why, count)) in imported.left.iter().enumerate() {
        // Writing to a string does not fail.
        _ = write!(text, "{} {count} {why}", if n == 0 { ":" } else { "," });
    }
    text
}

fn unlisted(error: &io::Error, held: bool) -> Warning {
    let consequence = if held {
        "clients of connections that nobody knows are not reset for an hour at most, in case that another proxy serves them; it is tried again every 30 s"
    } else {
        "connections of another proxy are not waited for any longer"
    };
    Warning {
        object: "nf_conntrack".to_owned(),
        reason: format!(
            "its connections cannot be listed: {}; {consequence}",
            chain(error)
        ),
    }
}

/// Imports foreign connections in a thread of its own.
pub(super) fn import(answers: mpsc::UnboundedSender<Answer>, importer: Importer) {
    // Sending cannot fail: the receiver exists as long as the agent.
    thread::spawn(move || {
        let imported = catch_unwind(AssertUnwindSafe(|| importer.import()));
        let failed = |_| {
            Err(io::Error::other(
                "the import ended by a fault of portolan's",
            ))
        };
        _ = answers.send(imported.unwrap_or_else(failed));
    });
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use datapath::Left;

    fn some() -> Answer {
        Ok(Imported {
            connections: 2,
            left: BTreeMap::from([(Left::Own, 2), (Left::NoEndpoint, 1)]),
            held: 3,
        })
    }

    fn none() -> Answer {
        Ok(Imported::default())
    }

    #[test]
    fn foreign_connections_are_imported_at_the_start_and_while_some_are_left() {
        let start = Instant::now();
        let mut never = ForeignConnections::default();
        assert!(never.may_exist() && !never.are_imported());
        assert!(never.ask(start) && never.may_exist() && never.are_imported());
        assert!(!never.ask(start), "it is asked already");
        assert_eq!(never.hear(start, &none()), None);
        assert!(!never.may_exist() && !never.are_imported() && !never.ask(start + EVERY));

        let mut foreign = ForeignConnections::default();
        assert!(foreign.ask(start));
        assert_eq!(foreign.hear(start, &some()), None);
        assert!(foreign.may_exist() && !foreign.ask(start + EVERY / 2));
        assert!(foreign.ask(start + EVERY) && foreign.may_exist());
        assert_eq!(foreign.hear(start + EVERY, &none()), None);
        assert!(!foreign.may_exist(), "what is left is no service's");
        assert!(!foreign.ask(start + 9 * EVERY));
    }

    #[test]
    fn udp_is_deferred_until_the_first_answer_even_if_that_is_an_error() {
        let start = Instant::now();
        for answer in [some(), none(), Err(io::ErrorKind::PermissionDenied.into())] {
            let mut foreign = ForeignConnections::default();
            assert!(!foreign.do_datagrams_wait());
            foreign.defer_udp(start);
            assert!(foreign.ask(start) && foreign.do_datagrams_wait());
            assert!(!foreign.expire_udp_deferral(start));
            _ = foreign.hear(start, &answer);
            assert!(!foreign.do_datagrams_wait());
            assert!(!foreign.expire_udp_deferral(start + LONGEST_WAIT) && !foreign.end_wait());
        }
        let mut unanswered = ForeignConnections::default();
        unanswered.defer_udp(start);
        assert!(unanswered.ask(start) && unanswered.expire_udp_deferral(start + LONGEST_WAIT));
        assert!(!unanswered.do_datagrams_wait());
    }

    #[test]
    fn the_count_of_foreign_connections_left_is_shown_with_the_reasons() {
        let text = left(&some().expect("some"));
        let expected =
            "3: 2 of the node's own processes, 1 to endpoints that the service no longer has";
        assert_eq!(text, expected);
        assert_eq!(left(&Imported::default()), "0");
    }

    #[test]
    fn a_failing_import_is_retried_with_warnings_and_not_awaited_forever() {
        let start = Instant::now();
        let mut foreign = ForeignConnections::default();
        let mut now = start;
        let refused = || Err(io::ErrorKind::PermissionDenied.into());
        for _ in 0..PATIENCE.as_secs() / EVERY.as_secs() {
            assert!(foreign.ask(now));
            let warning = foreign.hear(now, &refused()).expect("a warning");
            assert!(warning.reason.contains("permission denied"), "{warning}");
            assert!(foreign.may_exist());
            now += EVERY;
        }
        assert!(foreign.ask(now));
        let warning = foreign.hear(now, &refused()).expect("a warning");
        assert!(
            warning.reason.contains("not waited for any longer"),
            "{warning}"
        );
        assert!(!foreign.may_exist());

        let mut foreign = ForeignConnections::default();
        assert!(foreign.ask(start) && foreign.hear(start, &refused()).is_some());
        assert!(foreign.ask(start + EVERY));
        assert_eq!(foreign.hear(start + EVERY, &some()), None);
        assert!(foreign.may_exist() && foreign.failing.is_none());
    }
}
