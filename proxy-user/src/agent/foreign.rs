// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Foreign connections: another proxy made them, and nf_conntrack still holds them. While there are any, segments of unknown
//! connections must pass. A thread reads the table, which may be large; kept by `steps`.

use std::{collections::HashSet, io, net::SocketAddr, thread, time::Duration};

use tokio::{sync::mpsc, time::Instant};

use crate::{causes::chain, object::Warning};

/// How often to look for them.
const EVERY: Duration = Duration::from_secs(30);
/// Connections that nobody can list for so long are not waited for any longer.
const PATIENCE: Duration = Duration::from_secs(3600);

/// The destinations that another proxy translates, or why they cannot be listed.
pub(super) type Answer = io::Result<HashSet<SocketAddr>>;

/// What is known of foreign connections to services.
#[derive(Debug, Default)]
pub(super) struct ForeignConnections {
    state: State,
    /// Since when every attempt to list them has failed.
    failing: Option<Instant>,
}

#[derive(Debug, Default)]
enum State {
    /// Nobody has looked yet.
    #[default]
    Unknown,
    /// Somebody looks. Whether there were some before; not known at the start.
    Asked { held: Option<bool> },
    /// There are some, or nf_conntrack could not be asked.
    Held { look_at: Instant },
    /// There are none, and there will be none.
    Gone,
}

impl ForeignConnections {
    /// Whether segments of unknown connections must pass; also before the first look.
    pub(super) fn are_held(&self) -> bool {
        !matches!(self.state, State::Gone)
    }

    /// Whether to look for them now: at the start, and then at intervals as long as there are any. The answer goes to
    /// [`Self::hear`].
    pub(super) fn ask(&mut self, now: Instant) -> bool {
        let held = match self.state {
            State::Unknown => None,
            State::Held { look_at } if now >= look_at => Some(true),
            _ => return false,
        };
        self.state = State::Asked { held };
        true
    }

    /// Takes the answer; `counts` says whether a destination is a service's. Returns a warning while nobody can be asked.
    pub(super) fn hear(
        &mut self,
        now: Instant,
        answer: Answer,
        counts: impl Fn(&SocketAddr) -> bool,
    ) -> Option<Warning> {
        let (held, warning) = match answer {
            Ok(destinations) => {
                self.failing = None;
                (destinations.iter().any(counts), None)
            }
            Err(error) => {
                let since = *self.failing.get_or_insert(now);
                // If they exist, resets would break them; if not, a client only waits longer.
                let held = now < since + PATIENCE;
                (held, Some(unlisted(&error, held)))
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
        if held && before.is_none() && warning.is_none() {
            tracing::info!(
                "connections that another proxy has translated live on in nf_conntrack; until the last one ends, segments of unknown connections to services pass and are not reset"
            );
        } else if !held && before == Some(true) && warning.is_none() {
            tracing::info!("the last connection that another proxy had translated has ended");
        }
        warning
    }
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

/// Lists them in a thread of its own.
pub(super) fn list(
    answers: mpsc::UnboundedSender<Answer>,
    list: impl FnOnce() -> Answer + Send + 'static,
) {
    // Its receiver lives as long as the agent.
    thread::spawn(move || _ = answers.send(list()));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn some() -> Answer {
        Ok(HashSet::from([([172, 30, 0, 1], 80).into()]))
    }

    #[test]
    fn it_is_looked_at_the_start_and_then_only_while_there_are_any() {
        let start = Instant::now();
        let mut none = ForeignConnections::default();
        assert!(none.are_held() && none.ask(start) && none.are_held());
        assert!(!none.ask(start), "it is asked already");
        assert_eq!(none.hear(start, Ok(HashSet::new()), |_| true), None);
        assert!(!none.are_held() && !none.ask(start + EVERY));

        let mut foreign = ForeignConnections::default();
        assert!(foreign.ask(start));
        assert_eq!(foreign.hear(start, some(), |_| true), None);
        assert!(foreign.are_held() && !foreign.ask(start + EVERY / 2));
        assert!(foreign.ask(start + EVERY) && foreign.are_held());
        assert_eq!(foreign.hear(start + EVERY, some(), |_| false), None);
        assert!(!foreign.are_held(), "what is left is no service's");
        assert!(!foreign.ask(start + 9 * EVERY));
    }

    #[test]
    fn who_cannot_be_asked_is_named_asked_again_and_in_the_end_not_waited_for() {
        let start = Instant::now();
        let mut foreign = ForeignConnections::default();
        let mut now = start;
        let refused = || Err(io::ErrorKind::PermissionDenied.into());
        for _ in 0..PATIENCE.as_secs() / EVERY.as_secs() {
            assert!(foreign.ask(now));
            let warning = foreign.hear(now, refused(), |_| true).expect("a warning");
            assert!(warning.reason.contains("permission denied"), "{warning}");
            assert!(foreign.are_held());
            now += EVERY;
        }
        assert!(foreign.ask(now));
        let warning = foreign.hear(now, refused(), |_| true).expect("a warning");
        assert!(
            warning.reason.contains("not waited for any longer"),
            "{warning}"
        );
        assert!(!foreign.are_held());

        let mut foreign = ForeignConnections::default();
        assert!(foreign.ask(start) && foreign.hear(start, refused(), |_| true).is_some());
        assert!(foreign.ask(start + EVERY));
        assert_eq!(foreign.hear(start + EVERY, some(), |_| true), None);
        assert!(foreign.are_held() && foreign.failing.is_none());
    }
}
