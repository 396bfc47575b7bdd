// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One family's flow table: walks it a part at a time, and has the kernel remove idle flows. Called by `Sweep`.

use proxy_common::{
    FlowEntry, FlowKey, FlowKind, FlowState, Settings,
    flow::{EXPIRY_BATCH, ExpiryRequest, IdleTimes},
};

use super::FlowCounts;
use crate::datapath::{
    error::DatapathError,
    maps::{
        OpenMaps,
        family::Family,
        tables::{Table, Walk},
    },
    programs::Programs,
    sys::{Plain, now},
};

/// Elements per step and steps per sweep: a table of 262 144 entries is walked in about eight seconds,
/// well inside the shortest idle time.
const STEP: usize = 4096;
const STEPS: usize = 8;

/// Seconds that an unanswered flow may be idle in a table that is nearly full.
const HURRIED: u32 = 5;

/// One family's walk.
pub(super) struct FlowWalk<A: Family> {
    flows: Table<FlowKey<A>, FlowEntry<A>>,
    walk: Walk,
    /// Counts of the walk that is under way, and of the last one that came to the table's end.
    running: FlowCounts,
    complete: FlowCounts,
}

impl<A: Family> FlowWalk<A> {
    pub(super) fn open(open: &mut OpenMaps) -> Result<Self, DatapathError> {
        let flows: Table<_, _> = open.take(A::FLOWS, Table::new)?;
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
    pub(super) fn is_complete(&self) -> bool {
        self.walk.is_at_start()
    }

    /// Goes on with the walk. Returns the counts of the last complete one, and how many flows this call removed.
    pub(super) fn sweep(
        &mut self,
        programs: &Programs,
        idle_times: &IdleTimes,
        pressure: u32,
    ) -> Result<FlowCounts, DatapathError> {
        let now = now();
        let of_flows = if pressure == Settings::REFUSING || is_crowded(&self.complete) {
            hurried(idle_times)
        } else {
            *idle_times
        };
        let mut removed = 0;
        for _ in 0..STEPS {
            // Only a flow's original entry knows whether it was answered: the others keep the ordinary times.
            let (mut flows, mut others) = (Vec::new(), Vec::new());
            let Self { walk, running, .. } = self;
            let more = walk
                .step(&self.flows, |key: FlowKey<A>, entry| {
                    count(running, &entry);
                    let (idle_times, idle) = match entry.kind {
                        FlowKind::ORIGINAL => (&of_flows, &mut flows),
                        _ => (idle_times, &mut others),
                    };
                    if idle_times.is_expired(key.protocol, entry.state, entry.last_seen, now) {
                        idle.push(key);
                    }
                })
                .map_err(DatapathError::of_map("walk", A::FLOWS))?;
            for (idle_times, idle) in [(&of_flows, flows), (idle_times, others)] {
                for keys in idle.chunks(EXPIRY_BATCH) {
                    removed += expire(programs, keys, idle_times, now)?;
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
            // With its reply entry, and that of the masqueraded reply.
            counts.unanswered += 2 + u32::from(entry.is_masqueraded());
        }
    }
}

/// Hands keys to the kernel's expiry program, which checks each entry again. Returns how many flows it removed.
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
    let run = programs.test_run(A::EXPIRE, &data, &[], 1)?;
    Ok(run.result)
}

/// The idle times in a table that is nearly full: flows that nobody has answered go early, all others stay as long as ever.
fn hurried(idle_times: &IdleTimes) -> IdleTimes {
    IdleTimes {
        unanswered: HURRIED,
        ..*idle_times
    }
}

/// More than three quarters full: unanswered flows are hurried.
fn is_crowded(counts: &FlowCounts) -> bool {
    u64::from(counts.entries) * 4 > u64::from(counts.capacity) * 3
}

/// New flows are refused where unanswered ones hold more than a quarter of a crowded table.
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

#[cfg(test)]
mod tests {
    use super::*;
    use proxy_common::Protocol;

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
        let times = hurried(&IdleTimes::DEFAULT);
        for protocol in [Protocol::TCP, Protocol::UDP, Protocol::SCTP] {
            let is_expired =
                |state, age: u64| times.is_expired(protocol, state, NOW - age * 1_000_000_000, NOW);
            assert!(
                is_expired(FlowState::UNANSWERED, 6),
                "{protocol:?}: six idle seconds are too many"
            );
            assert!(!is_expired(FlowState::UNANSWERED, 4));
            assert!(!is_expired(FlowState::ANSWERED, 6));
            // The program's own look: answered between the walk and now.
            assert!(!is_expired(FlowState::ANSWERED, 0));
        }
    }
}
