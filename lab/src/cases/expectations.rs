// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Compares what the connections of a flow saw with what the test case expects, and describes the
//! difference. Pure; called by `flows`.

use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use proxy_common::Protocol;

use crate::{
    cases::format::{Backends, Expect},
    traffic::{
        clients::PATIENCE,
        probe::{Answer, Attempt, Outcome, Packet},
    },
};

/// Connections for each endpoint that the case lists: enough to reach each one almost surely.
pub(super) const PER_ENDPOINT: usize = 24;
/// An endpoint that never answered is an error if pure chance is less probable than this.
const CHANCE: f64 = 1e-6;
/// How many standard deviations an endpoint's number of answers may be away from its share. Chance
/// alone goes further once in 1.7 million times.
const DEVIATIONS: f64 = 5.0;

/// Facts about a flow that the check needs besides the expectation.
#[derive(Clone, Copy, Debug)]
pub struct Situation<'a> {
    pub protocol: Protocol,
    pub to: SocketAddr,
    /// Addresses that belong to the node under test.
    pub node: &'a [IpAddr],
    /// Whether the client is a process on the node.
    pub client_is_node: bool,
    /// Whether the connections are translated at the client's socket, without masquerading.
    pub at_the_socket: bool,
    /// Whether all connections of the flow have one source port.
    pub same_port: bool,
}

/// Ok if all is as expected, else a description of what was seen instead.
pub type Verdict<T = ()> = Result<T, String>;

/// Judges the flow's connections.
pub fn check(expect: &Expect, attempts: &[Attempt], situation: &Situation<'_>) -> Verdict {
    if attempts.is_empty() {
        return Err("no connection at all".to_owned());
    }
    for (number, attempt) in (1..).zip(attempts) {
        let verdict = match expect {
            Expect::Backends(expected) => is_answered(expected, attempt, situation),
            Expect::Reject => is_refused(attempt),
            Expect::Drop => is_dropped(attempt, situation),
            Expect::Untouched => is_untouched(attempt, situation),
        };
        let from = attempt.source;
        verdict.map_err(|seen| format!("{seen} (connection {number} from {from})"))?;
    }
    match expect {
        Expect::Backends(expected) => covers(expected, attempts, situation),
        _ => Ok(()),
    }
}

fn is_answered(expected: &Backends, attempt: &Attempt, situation: &Situation<'_>) -> Verdict {
    let answer = soundly_answered(attempt, situation)?;
    if !expected.backends.contains(&answer.by) {
        return Err(format!("an answer by {}, which is not listed", answer.by));
    }
    let seen = answer.seen.ip();
    let is_node = situation.node.contains(&seen);
    let own = seen == attempt.source.ip() || situation.client_is_node && is_node;
    let holds = match expected.masquerade {
        None => true,
        Some(false) => own,
        // If the client is the node, one address is both the client's and the node's.
        Some(true) => {
            is_node && (seen != attempt.source.ip() || situation.client_is_node)
                || own && situation.at_the_socket
        }
    };
    match holds {
        true => Ok(()),
        false => Err(format!("{} sees {seen} as the source", answer.by)),
    }
}

/// Returns the connection's answer if it came in time, undamaged, from the address called.
fn soundly_answered<'a>(attempt: &'a Attempt, situation: &Situation<'_>) -> Verdict<&'a Answer> {
    let Outcome::Answered(answer) = &attempt.outcome else {
        return Err(describe(attempt));
    };
    let (from, to) = (answer.from, situation.to);
    if from != to {
        return Err(format!("an answer from {from} instead of {to}"));
    }
    if !answer.intact {
        return Err(format!("an answer by {} with a damaged payload", answer.by));
    }
    if attempt.after >= PATIENCE {
        return Err(format!("{}: its first packet was lost", describe(attempt)));
    }
    Ok(answer)
}

fn covers(expected: &Backends, attempts: &[Attempt], situation: &Situation<'_>) -> Verdict {
    let by = |attempt: &Attempt| match &attempt.outcome {
        Outcome::Answered(answer) => Some(answer.by),
        _ => None,
    };
    let answers = attempts.iter().filter_map(by);
    if !expected.shares.is_empty() {
        return has_shares(expected, &answers.collect::<Vec<_>>());
    }
    let seen: BTreeSet<_> = answers.collect();
    if expected.sticky {
        if seen.len() > 1 {
            let list: Vec<_> = seen.iter().map(ToString::to_string).collect();
            return Err(format!("answers by {}: not sticky", list.join(" and ")));
        }
        return Ok(());
    }
    // Datagrams from one source port are one flow to the proxy: all go to one endpoint.
    if situation.same_port && situation.protocol != Protocol::TCP {
        return Ok(());
    }
    let listed: BTreeSet<_> = expected.backends.iter().copied().collect();
    let count = listed.len() as f64;
    let chance =
        count * (1.0 - 1.0 / count).powi(i32::try_from(attempts.len()).unwrap_or(i32::MAX));
    let missing: Vec<_> = listed.difference(&seen).map(ToString::to_string).collect();
    if missing.is_empty() || chance > CHANCE {
        return Ok(());
    }
    let (missing, all) = (missing.join(", "), attempts.len());
    Err(format!("no answer by {missing} in {all} connections"))
}

/// Checks that each endpoint has answered its share of connections, as far as chance allows.
fn has_shares(expected: &Backends, answers: &[SocketAddr]) -> Verdict {
    let all: u32 = expected.shares.iter().sum();
    if expected.shares.len() != expected.backends.len() || all == 0 {
        return Err("the case has not one share for each endpoint".to_owned());
    }
    let count = answers.len() as f64;
    for (backend, share) in expected.backends.iter().zip(&expected.shares) {
        let own = answers.iter().filter(|by| *by == backend).count() as f64;
        let chance = f64::from(*share) / f64::from(all);
        let deviation = (count * chance * (1.0 - chance)).sqrt();
        if (own - count * chance).abs() > DEVIATIONS * deviation {
            return Err(format!(
                "{own} of {count} answers by {backend}, whose share is {share} of {all}"
            ));
        }
    }
    Ok(())
}

fn is_refused(attempt: &Attempt) -> Verdict {
    match attempt.outcome {
        Outcome::Refused if attempt.after < PATIENCE => Ok(()),
        _ => Err(describe(attempt)),
    }
}

fn is_dropped(attempt: &Attempt, situation: &Situation<'_>) -> Verdict {
    let can_be_denied = situation.client_is_node && situation.protocol == Protocol::UDP;
    match attempt.outcome {
        Outcome::Silence => Ok(()),
        Outcome::Denied if can_be_denied => Ok(()),
        _ => Err(describe(attempt)),
    }
}

fn is_untouched(attempt: &Attempt, situation: &Situation<'_>) -> Verdict {
    let Some(left) = &attempt.left else {
        let answer = soundly_answered(attempt, situation)?;
        if answer.by != situation.to {
            return Err(format!("an answer by {}: translated", answer.by));
        }
        let (seen, source) = (answer.seen, attempt.source);
        if seen != source {
            return Err(format!("the listener sees {seen} instead of {source}"));
        }
        return Ok(());
    };
    let as_sent = Packet {
        protocol: situation.protocol.0,
        source: attempt.source,
        destination: situation.to,
        payload: attempt.sent.clone(),
    };
    if attempt.outcome != Outcome::Silence {
        return Err(describe(attempt));
    }
    if left.contains(&as_sent) {
        return Ok(());
    }
    let ends = |packet: &Packet| format!("{} -> {}", packet.source, packet.destination);
    let left: Vec<_> = left.iter().map(ends).collect();
    let (sent, left) = (ends(&as_sent), left.join(", "));
    Err(format!("{sent} did not leave as it was sent: {left}"))
}

/// Describes the outcome of one connection in a few words.
pub fn describe(attempt: &Attempt) -> String {
    let late = match attempt.after {
        after if after < Duration::from_millis(100) => String::new(),
        after => format!(" after {:.1} s", after.as_secs_f64()),
    };
    match &attempt.outcome {
        Outcome::Answered(answer) => {
            format!("an answer by {} (source {}){late}", answer.by, answer.seen)
        }
        Outcome::Refused => format!("refused{late}"),
        Outcome::Unreachable(error) => format!("{error}{late}"),
        Outcome::Denied => "sending not permitted".to_owned(),
        Outcome::Silence => "no answer".to_owned(),
        Outcome::Broken(what) => what.clone(),
    }
}
