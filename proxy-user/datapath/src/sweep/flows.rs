// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Walks one family's flow table, a part at a time, and makes the kernel program remove idle flows.
//! Called by `Sweep`.

use linux::{Plain, now};
use proxy_common::{
    FlowEntry, FlowKey, FlowKind,
    flow::{EXPIRY_BATCH, ExpiryRequest, IdleTimes, Phase},
};

use super::FlowCounts;
use crate::{
    error::DatapathError,
    maps::{
        OpenMaps,
        family::Family,
        tables::{Table, Walk},
    },
    programs::Programs,
};

/// Elements per step and steps per sweep. A table of 524 288 entries is walked in about eight
/// seconds, well within the shortest idle time.
const STEP: usize = 4096;
const STEPS: usize = 16;

/// The walk through one family's flow table.
pub(super) struct FlowWalk<A: Family> {
    flows: Table<FlowKey<A>, FlowEntry<A>>,
    walk: Walk,
    /// `running` has the counts of the current walk, `complete` those of the last complete one.
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

    /// True if the last call reached the table's end.
    pub(super) fn is_complete(&self) -> bool {
        self.walk.is_at_start()
    }

    /// Continues the walk. Returns the counts of the last complete walk, and how many flows this
    /// call removed.
    pub(super) fn sweep(
        &mut self,
        programs: &Programs,
        idle_times: &IdleTimes,
    ) -> Result<FlowCounts, DatapathError> {
        let now = now();
        let mut removed = 0;
        for _ in 0..STEPS {
            let mut idle = Vec::new();
            let Self { walk, running, .. } = self;
            let more = walk
                .step(&self.flows, |key: FlowKey<A>, entry| {
                    count(running, &entry);
                    if idle_times.is_expired(key.protocol, entry.state, entry.last_seen, now) {
                        idle.push(key);
                    }
                })
                .map_err(DatapathError::of_map("walk", A::FLOWS))?;
            for keys in idle.chunks(EXPIRY_BATCH) {
                removed += expire(programs, keys, idle_times, now)?;
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
        // The original entry, the reply entry, and the reply entry of a masqueraded flow.
        let entries = 2 + u32::from(entry.is_masqueraded());
        if !entry.state.gives_way() {
            counts.kept += entries;
        }
        if entry.state.phase() == Phase::Unanswered {
            counts.unanswered += entries;
        }
    }
}

/// Passes keys to the kernel's expiry program, which checks each entry again. Returns how many
/// flows it removed.
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
    let run = programs.test_run(A::EXPIRE, &data, &[], 1)?;
    Ok(run.result)
}
