// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Walks the flow tables, a part at a time, and has the kernel remove what has idled out; watches how full
//! they are. Called by `Datapath::sweep`.

use std::{collections::HashMap, os::fd::OwnedFd};

use proxy_common::{
    FlowEntry, FlowKey, FlowKind, FlowState, Protocol, Settings,
    flow::{EXPIRY_BATCH, ExpiryRequest, IdleTimes},
};

use super::FlowCounts;
use crate::datapath::{
    error::DatapathError,
    maps::{
        family::Family,
        tables::{Table, Walk},
    },
    programs::Programs,
    store::opened,
    sys::{Plain, test_run},
};

/// Elements per step and steps per sweep: a table of 262 144 entries is walked in about eight seconds,
/// well inside the shortest idle time.
const STEP: usize = 4096;
const STEPS: usize = 8;

/// Idle time of unanswered flows under pressure, in nanoseconds.
const HURRIED: u64 = 5_000_000_000;

/// One family's walk.
pub(crate) struct Sweeper<A: Family> {
    flows: Table<FlowKey<A>, FlowEntry<A>>,
    walk: Walk,
    running: FlowCounts,
    complete: FlowCounts,
}

impl<A: Family> Sweeper<A> {
    pub(crate) fn open(fds: &mut HashMap<&'static str, OwnedFd>) -> Result<Self, DatapathError> {
        let flows: Table<_, _> = opened(fds, A::FLOWS, Table::new)?;
        let counts = FlowCounts {
            capacity: flows.capacity(),
            ..FlowCounts::default()
        };
        Ok(Self {
            flows,
            walk: Walk::new(STEP),
            running: counts,
            complete: counts,
        })
    }

    /// The last call came to the table's end.
    pub(crate) fn is_walked(&self) -> bool {
        self.walk.is_at_start()
    }

    /// Goes on with the walk; returns the counts of the last complete one and what this call removed.
    pub(crate) fn sweep(
        &mut self,
        programs: &Programs,
        idle_times: &IdleTimes,
        pressure: u32,
    ) -> Result<FlowCounts, DatapathError> {
        let failed = |source| DatapathError::Map {
            attempt: "walk",
            map: A::FLOWS,
            source,
        };
        let now = now();
        let hurry = pressure == Settings::REFUSING || is_crowded(&self.complete);
        let mut removed = 0;
        for _ in 0..STEPS {
            let mut idle = Vec::new();
            let mut hurried: HashMap<u64, Vec<FlowKey<A>>> = HashMap::new();
            let Self {
                flows,
                walk,
                running,
                ..
            } = self;
            let more = walk
                .step(flows, |key: FlowKey<A>, entry| {
                    count(running, &entry);
                    if idle_times.is_expired(key.protocol, entry.state, entry.last_seen, now) {
                        idle.push(key);
                    } else if hurry
                        && let Some(clock) = hurried_clock(key.protocol, &entry, idle_times, now)
                    {
                        hurried.entry(clock).or_default().push(key);
                    }
                })
                .map_err(failed)?;
            for keys in idle.chunks(EXPIRY_BATCH) {
                removed += expire(programs, keys, idle_times, now)?;
            }
            for (clock, keys) in hurried {
                for keys in keys.chunks(EXPIRY_BATCH) {
                    removed += expire(programs, keys, idle_times, clock)?;
                }
            }
            if !more {
                let fresh = FlowCounts {
                    capacity: running.capacity,
                    ..FlowCounts::default()
                };
                self.complete = std::mem::replace(&mut self.running, fresh);
                break;
            }
        }
        Ok(FlowCounts {
            removed,
            ..self.complete
        })
    }
}

fn count<A: Family>(counts: &mut FlowCounts, entry: &FlowEntry<A>) {
    counts.entries += 1;
    if entry.kind == FlowKind::ORIGINAL {
        counts.flows += 1;
        if entry.state == FlowState::UNANSWERED {
            // Its reply belongs to it, and a masqueraded reply once it has left.
            counts.unanswered += 2 + u32::from(entry.is_masqueraded());
        }
    }
}

/// Hands keys to the kernel's expiry program, which looks at each again.
fn expire<A: Family>(
    programs: &Programs,
    keys: &[FlowKey<A>],
    idle_times: &IdleTimes,
    now: u64,
) -> Result<u32, DatapathError> {
    let request = ExpiryRequest {
        now,
        idle_times: *idle_times,
        count: keys.len() as u32,
        _pad: 0,
    };
    let mut data = request.bytes().to_vec();
    for key in keys {
        data.extend_from_slice(key.bytes());
    }
    let failed = |reason: String| DatapathError::Program {
        program: A::EXPIRE.into(),
        reason,
    };
    let program = programs
        .fd(A::EXPIRE)
        .ok_or_else(|| failed("it is not loaded".into()))?;
    let run = test_run(program, &data, &[], 1).map_err(|error| failed(error.to_string()))?;
    Ok(run.result)
}

/// Under pressure, flows that nobody has answered go after [`HURRIED`] and all others stay as long as ever:
/// the clock that makes such a flow expire, if it has been idle for so long. It runs ahead by what its idle
/// time is cut by; a flow that has been answered meanwhile was just seen, and is young by that clock too.
fn hurried_clock<A>(
    protocol: Protocol,
    entry: &FlowEntry<A>,
    idle_times: &IdleTimes,
    now: u64,
) -> Option<u64> {
    if entry.kind != FlowKind::ORIGINAL || entry.state != FlowState::UNANSWERED {
        return None;
    }
    let ahead = idle_times
        .limit(protocol, entry.state)
        .saturating_sub(HURRIED);
    let clock = now + ahead;
    idle_times
        .is_expired(protocol, entry.state, entry.last_seen, clock)
        .then_some(clock)
}

/// Above three quarters, unanswered flows idle out fast.
fn is_crowded(counts: &FlowCounts) -> bool {
    u64::from(counts.entries) * 4 > u64::from(counts.capacity) * 3
}

/// In a crowded table unanswered flows may hold a quarter.
pub(crate) fn pressure_of(counts: &[FlowCounts]) -> u32 {
    let refusing = counts.iter().any(|counts| {
        is_crowded(counts) && u64::from(counts.unanswered) * 4 > u64::from(counts.capacity)
    });
    if refusing {
        Settings::REFUSING
    } else {
        Settings::CALM
    }
}

/// The clock that the kernel programs stamp flows with.
pub(crate) fn now() -> u64 {
    let clock = nix::time::ClockId::CLOCK_MONOTONIC_COARSE;
    nix::time::clock_gettime(clock).map_or(0, |time| {
        time.tv_sec() as u64 * 1_000_000_000 + time.tv_nsec() as u64
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proxy_common::{Addr, BackendId, Port, ServiceId, V4};

    fn counts(entries: u32, unanswered: u32) -> FlowCounts {
        FlowCounts {
            capacity: 1000,
            entries,
            unanswered,
            ..FlowCounts::default()
        }
    }

    #[test]
    fn a_crowd_of_unanswered_flows_is_refused_only_above_three_quarters() {
        assert_eq!(pressure_of(&[counts(750, 700)]), Settings::CALM);
        assert_eq!(pressure_of(&[counts(751, 251)]), Settings::REFUSING);
        assert_eq!(pressure_of(&[counts(990, 250)]), Settings::CALM);
    }

    #[test]
    fn pressure_hurries_unanswered_flows_only() {
        const NOW: u64 = 1_000_000_000_000;
        let entry = |state, age: u64| FlowEntry {
            check: 0,
            kind: FlowKind::ORIGINAL,
            flags: 0,
            port: Port::ANY,
            address: V4::UNSPECIFIED,
            masquerade: V4::UNSPECIFIED,
            client_port: Port::ANY,
            masquerade_port: Port::ANY,
            service: ServiceId(1),
            backend: BackendId(1),
            generation: 0,
            last_seen: NOW - age * 1_000_000_000,
            state,
            _pad: 0,
        };
        let times = IdleTimes::DEFAULT;
        for protocol in [Protocol::TCP, Protocol::UDP, Protocol::SCTP] {
            let clock = |state, age| hurried_clock(protocol, &entry(state, age), &times, NOW);
            let Some(ahead) = clock(FlowState::UNANSWERED, 6) else {
                panic!("{protocol:?}: six idle seconds are too many");
            };
            assert_eq!(clock(FlowState::UNANSWERED, 4), None);
            assert_eq!(clock(FlowState::ANSWERED, 6), None);
            // The program's own look: answered between the walk and now.
            assert!(!times.is_expired(protocol, FlowState::ANSWERED, NOW, ahead));
        }
    }
}
