// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Walks the flow tables, a part at a time, and has the kernel remove what has idled out; watches how full
//! they are. Called by `Datapath::sweep`.

use std::{collections::HashMap, os::fd::OwnedFd};

use proxy_common::{
    FlowEntry, FlowKey, FlowKind, FlowState, Settings,
    flow::{EXPIRY_BATCH, ExpiryRequest, IdleTimes},
};

use super::{
    DatapathError, FlowCounts,
    adopt::opened,
    family::Family,
    load::Programs,
    sys::{Plain, test_run},
    tables::{Table, Walk},
};

/// Elements per step and steps per sweep: a table of 262 144 entries is walked in about eight seconds,
/// well inside the shortest idle time.
const STEP: usize = 4096;
const STEPS: usize = 8;

/// Idle time of unanswered flows under pressure, in seconds.
const HURRIED: u32 = 5;

/// One family's walk.
pub(super) struct Sweeper<A: Family> {
    flows: Table<FlowKey<A>, FlowEntry<A>>,
    walk: Walk,
    running: FlowCounts,
    complete: FlowCounts,
}

impl<A: Family> Sweeper<A> {
    pub(super) fn open(fds: &mut HashMap<&'static str, OwnedFd>) -> Result<Self, DatapathError> {
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

    /// Goes on with the walk; returns the counts of the last complete one and what this call removed.
    pub(super) fn sweep(
        &mut self,
        programs: &Programs,
        idle_times: &IdleTimes,
        pressure: u32,
    ) -> Result<FlowCounts, DatapathError> {
        let idle_times = hurried(*idle_times, pressure);
        let failed = |source| DatapathError::Map {
            attempt: "walk",
            map: A::FLOWS,
            source,
        };
        let now = now();
        let mut removed = 0;
        for _ in 0..STEPS {
            let mut idle = Vec::new();
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
                    }
                })
                .map_err(failed)?;
            for keys in idle.chunks(EXPIRY_BATCH) {
                removed += expire(programs, keys, &idle_times, now)?;
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

fn count<A>(counts: &mut FlowCounts, entry: &FlowEntry<A>) {
    counts.entries += 1;
    if entry.kind == FlowKind::ORIGINAL {
        counts.flows += 1;
        if entry.state == FlowState::UNANSWERED {
            // Its reply belongs to it, and often a masqueraded reply.
            counts.unanswered += 2;
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

/// Idle times under pressure: unanswered flows go soon, all others stay as long as ever.
fn hurried(mut idle_times: IdleTimes, pressure: u32) -> IdleTimes {
    if pressure == Settings::REFUSING {
        idle_times.udp = idle_times.udp.min(HURRIED);
    }
    idle_times
}

/// How full the tables are allowed to be: above three quarters, unanswered flows may hold a quarter.
pub(super) fn pressure_of(counts: &[FlowCounts]) -> u32 {
    let refusing = counts.iter().any(|counts| {
        let capacity = u64::from(counts.capacity);
        u64::from(counts.entries) * 4 > capacity * 3 && u64::from(counts.unanswered) * 4 > capacity
    });
    if refusing {
        Settings::REFUSING
    } else {
        Settings::CALM
    }
}

/// The clock that the kernel programs stamp flows with.
pub(super) fn now() -> u64 {
    let clock = nix::time::ClockId::CLOCK_MONOTONIC_COARSE;
    nix::time::clock_gettime(clock).map_or(0, |time| {
        time.tv_sec() as u64 * 1_000_000_000 + time.tv_nsec() as u64
    })
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn pressure_hurries_unanswered_datagrams_only() {
        let calm = IdleTimes::DEFAULT;
        let hurried = hurried(calm, Settings::REFUSING);
        assert_eq!(hurried.udp, HURRIED);
        assert_eq!(
            (hurried.udp_stream, hurried.tcp_established),
            (calm.udp_stream, calm.tcp_established)
        );
    }
}
