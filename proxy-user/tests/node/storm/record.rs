// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Counts the requests and their results by the disturbance at that time, and keeps the failures.

use std::{
    collections::BTreeMap,
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Mutex,
    time::{Duration, Instant},
};

use k8s_openapi::jiff::{SignedDuration, Timestamp};

use super::{
    kinds::{ClientKind, Harm, Kind, Service},
    moving::Moving,
    topology::STEADY,
};

pub(crate) const BETWEEN: &str = "none";
/// The number of failures that are printed.
const PRINTED: usize = 30;

/// A request and its answer.
pub(crate) struct Asked {
    pub(crate) kind: Kind,
    pub(crate) way: ClientKind,
    pub(crate) local: Option<SocketAddr>,
    /// When this connection or client last got an answer, or when it began.
    pub(crate) since: Instant,
    pub(crate) begun: Instant,
    pub(crate) is_new: bool,
    /// The number of the backend that answered.
    pub(crate) answer: Result<u8, String>,
    /// The backend that must answer, if the client has had an answer before.
    pub(crate) expected: Option<u8>,
    /// The number of segments retransmitted for the request.
    pub(crate) repeated: u32,
}

#[derive(Default, Clone)]
pub(crate) struct Tally {
    pub(crate) connections: u64,
    pub(crate) requests: u64,
    pub(crate) lost: u64,
    pub(crate) wrong: u64,
    /// The number of requests that were lost or wrong during damage by hand.
    pub(crate) harmed: u64,
    pub(crate) repeated: u64,
    pub(crate) longest: Duration,
}

impl Tally {
    pub(crate) fn add(&mut self, other: &Self) {
        self.connections += other.connections;
        self.requests += other.requests;
        self.lost += other.lost;
        self.wrong += other.wrong;
        self.harmed += other.harmed;
        self.repeated += other.repeated;
        self.longest = self.longest.max(other.longest);
    }
}

/// A disturbance, or the time between two.
struct Phase {
    name: &'static str,
    harm: Harm,
    begun: Instant,
    ended: Option<Instant>,
}

/// How often a disturbance came, and the longest time until everything was served again.
#[derive(Default, Clone, Copy)]
pub(crate) struct Times {
    pub(crate) count: u32,
    pub(crate) longest: Duration,
}

type Key = (&'static str, Kind, ClientKind);

#[derive(Default)]
struct State {
    phases: Vec<Phase>,
    tallies: BTreeMap<Key, Tally>,
    failures: Vec<String>,
    times: BTreeMap<&'static str, Times>,
    /// The logs of all agents.
    logs: Vec<PathBuf>,
}

pub(crate) struct Record {
    state: Mutex<State>,
    pub(crate) moving: Moving,
}

impl Record {
    pub(crate) fn new(moving: u8) -> Self {
        let record = Self {
            state: Mutex::default(),
            moving: Moving::new(moving),
        };
        record.enter(BETWEEN, Harm::Nothing);
        record
    }

    /// Records that a disturbance begins, or has ended.
    pub(crate) fn enter(&self, name: &'static str, harm: Harm) {
        let mut state = self.state.lock().expect("no panic");
        let now = Instant::now();
        if let Some(last) = state.phases.last_mut() {
            last.ended = Some(now);
        }
        state.phases.push(Phase {
            name,
            harm,
            begun: now,
            ended: None,
        });
    }

    /// Records that everything is served again after a disturbance.
    pub(crate) fn done(&self, name: &'static str, took: Duration) {
        let mut state = self.state.lock().expect("no panic");
        let times = state.times.entry(name).or_default();
        times.count += 1;
        times.longest = times.longest.max(took);
    }

    /// Adds the log of the agent that runs now.
    pub(crate) fn follow(&self, log: &Path) {
        self.state
            .lock()
            .expect("no panic")
            .logs
            .push(log.to_owned());
    }

    pub(crate) fn note(&self, asked: &Asked) {
        let now = Instant::now();
        let fault = self.fault(asked, now);
        let mut state = self.state.lock().expect("no panic");
        let during = |from: Instant| {
            let recent = state.phases.iter().rev();
            recent.take_while(move |phase| phase.ended.is_none_or(|ended| ended >= from))
        };
        let is_allowed = fault.is_some()
            && during(asked.since)
                .any(|phase| phase.harm.includes(asked.kind, asked.way, asked.is_new));
        // A fault is counted for the last disturbance since `asked.since`, a good answer for the
        // disturbance at the time of the request.
        let from = if fault.is_some() {
            asked.since
        } else {
            asked.begun
        };
        let named = during(from).find(|phase| {
            if is_allowed {
                return phase.harm.includes(asked.kind, asked.way, asked.is_new);
            }
            phase.name != BETWEEN && (fault.is_some() || phase.begun <= asked.begun)
        });
        let name = named.map_or(BETWEEN, |phase| phase.name);
        let message = fault.as_ref().filter(|_| !is_allowed).map(|(_, fault)| {
            // The time as the agent's log writes it.
            let at = Timestamp::now() - SignedDuration::try_from(now - asked.begun).expect("short");
            let phases: Vec<_> = during(asked.since)
                .map(|phase| format!("{} ({:.1?} ago)", phase.name, now - phase.begun))
                .collect();
            let local = asked
                .local
                .map_or_else(String::new, |local| format!("{local} -> "));
            format!(
                "{}, {}, {local}{}: {fault}, asked at {at}, {:.1?} ago, answered before {:.1?} ago; disturbance: {}",
                asked.kind.name(),
                asked.way.name(),
                super::topology::target(asked.kind, asked.way),
                now - asked.begun,
                now - asked.since,
                phases.join(", before that ")
            )
        });
        let tally = state
            .tallies
            .entry((name, asked.kind, asked.way))
            .or_default();
        tally.requests += 1;
        tally.connections += u64::from(asked.is_new);
        tally.repeated += u64::from(asked.repeated > 0);
        match &fault {
            None => tally.longest = tally.longest.max(now - asked.begun),
            Some(_) if is_allowed => tally.harmed += 1,
            Some((true, _)) => tally.lost += 1,
            Some((false, _)) => tally.wrong += 1,
        }
        if let Some(message) = message {
            if state.failures.len() < PRINTED {
                println!("FAILED {message}");
                let recent = state.logs.iter().rev().take(3).rev();
                let text: String = recent
                    .filter_map(|log| fs::read_to_string(log).ok())
                    .collect();
                let lines: Vec<_> = text.lines().rev().take(20).collect();
                for line in lines.iter().rev() {
                    println!("    {line}");
                }
            }
            state.failures.push(message);
        }
    }

    /// The fault of an answer, if any, as text; true if there was no answer.
    fn fault(&self, asked: &Asked, now: Instant) -> Option<(bool, String)> {
        let by = match &asked.answer {
            Ok(by) => *by,
            Err(error) => return Some((true, format!("lost: {error}"))),
        };
        let is_moving = asked.kind.service() == Service::Moving;
        if let Some(expected) = asked.expected.filter(|expected| *expected != by) {
            let may_move = asked.kind == Kind::MovingTalk
                && self.moving.may_be_left(expected, asked.since, now);
            if !may_move {
                return Some((false, format!("wrong: {by} answers, not {expected}")));
            }
        }
        let has = if is_moving {
            // An open connection may outlive its endpoint.
            let may_outlive = asked.kind == Kind::MovingOpen && !asked.is_new;
            may_outlive || self.moving.may_answer(by, asked.since, now)
        } else {
            STEADY >> by & 1 == 1
        };
        let wrong = || (false, format!("wrong: {by} answers, which is no endpoint"));
        (!has).then(wrong)
    }

    pub(crate) fn tallies(&self) -> BTreeMap<Key, Tally> {
        self.state.lock().expect("no panic").tallies.clone()
    }

    pub(crate) fn times(&self) -> BTreeMap<&'static str, Times> {
        self.state.lock().expect("no panic").times.clone()
    }

    pub(crate) fn failures(&self) -> Vec<String> {
        self.state.lock().expect("no panic").failures.clone()
    }
}
