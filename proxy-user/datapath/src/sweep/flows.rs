// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Walks through one family's flow table, a part at a time, and runs a kernel program that removes
//! idle flows. Called by `Sweep`.

use std::{collections::HashSet, path::Path};

use linux::{Plain, now};
use proxy_common::{
    FlowEntry, FlowKey, FlowKind, Protocol, ServiceId,
    flow::{EXPIRY_BATCH, ExpiryRequest, IdleTimes, Phase},
};

use super::{FlowCounts, Gone};
use crate::{
    error::DatapathError,
    maps::{FlowTable, family::Family},
    programs::Programs,
    store::{Store, Stored},
};

/// Windows of a table per call of `sweep`: 65 536 slots. With one call a second, a table of twice
/// as many takes two seconds. A large table has more in a call, so that a walk takes sixteen
/// seconds at most: growth decides by complete walks.
const STEPS: u32 = 32;

/// A flow that was used or begun within this time before a walk is not removed because its pod is
/// gone, in nanoseconds: its key may be another connection's by now. The next walk finds it again.
const JUST_NOW: u64 = 100_000_000;

/// The walk through the flow table of one address family.
pub(super) struct FlowWalk<A: Stored> {
    flows: FlowTable<A>,
    /// The window that comes next.
    window: u32,
    /// What the current walk has counted so far. `complete` has the counts of the last complete
    /// walk.
    running: FlowCounts,
    complete: FlowCounts,
    /// Slots that the current walk has found broken, with their tags, and those of the last walk.
    /// One that both have found is made free: what was writing it has ended.
    broken: HashSet<(u32, u32)>,
    broken_before: HashSet<(u32, u32)>,
    /// How many connections have been ended because their pods are gone.
    pub(super) ended: u64,
}

impl<A: Stored> FlowWalk<A> {
    pub(super) fn open(home: &Path) -> Result<Self, DatapathError> {
        let flows: FlowTable<A> =
            FlowTable::open(home).map_err(DatapathError::of_map("open", A::FLOW_SLOTS))?;
        let counts = FlowCounts {
            capacity: flows.capacity(),
            ..FlowCounts::default()
        };
        Ok(Self {
            flows,
            window: 0,
            running: counts,
            complete: counts,
            broken: HashSet::new(),
            broken_before: HashSet::new(),
            ended: 0,
        })
    }

    /// True if the last call of [`Self::sweep`] reached the table's end.
    pub(super) fn is_complete(&self) -> bool {
        self.window == 0
    }

    /// Continues the walk and removes idle flows, and connections to pods that are gone. Returns
    /// the counts of the last complete walk; only `removed` is about this call.
    ///
    /// A client's next packet of a connection that was removed is one in the middle of a connection
    /// that nobody knows: it is answered by a reset. So a connection is removed only while its
    /// frontend is served; else its packets would leave the node as they came.
    pub(super) fn sweep(
        &mut self,
        programs: &Programs,
        idle_times: &IdleTimes,
        gone: &Gone,
        store: Option<&Store>,
    ) -> Result<FlowCounts, DatapathError> {
        let is_served = |key: &FlowKey<A>| {
            store.is_some_and(|it| it.owner(key.dst, key.dst_port, key.protocol).is_some())
        };
        let now = now();
        let mut removed = 0;
        for _ in 0..STEPS.max(self.flows.windows() / 16) {
            let (mut idle, mut ended) = (Vec::new(), Vec::new());
            let running = &mut self.running;
            let visit = |key: FlowKey<A>, entry: FlowEntry<A>| {
                count(running, &entry);
                if idle_times.is_expired(key.protocol, entry.state, entry.last_seen, now) {
                    idle.push(key);
                } else if leads_to(gone, &key, &entry) && is_served(&key) {
                    ended.push(key);
                }
            };
            let failed = || DatapathError::of_map("walk", A::FLOW_SLOTS);
            let mut broken = Vec::new();
            let note = |slot, word| broken.push((slot, word));
            let walked = self.flows.each_of(self.window, visit, note);
            walked.map_err(failed())?;
            for (slot, word) in broken {
                if self.broken_before.contains(&(slot, word)) {
                    tracing::debug!(slot, "a slot that nothing finds is made free");
                    self.flows.free(slot, word).map_err(failed())?;
                } else {
                    self.broken.insert((slot, word));
                }
            }
            self.window = (self.window + 1) % self.flows.windows();
            for keys in idle.chunks(EXPIRY_BATCH) {
                removed += expire(programs, keys, idle_times, now)?;
            }
            for keys in ended.chunks(EXPIRY_BATCH) {
                let before = now.saturating_sub(JUST_NOW);
                let ended = expire(programs, keys, &IdleTimes::AT_ONCE, before)?;
                if ended > 0 {
                    tracing::info!(connections = ended, "connections to pods that are gone end");
                }
                self.ended += u64::from(ended);
                removed += ended;
            }
            if self.window == 0 {
                let fresh = FlowCounts {
                    capacity: self.running.capacity,
                    ..FlowCounts::default()
                };
                self.complete = std::mem::replace(&mut self.running, fresh);
                self.broken_before = std::mem::take(&mut self.broken);
                break;
            }
        }
        Ok(FlowCounts {
            removed,
            ..self.complete
        })
    }
}

/// Whether this is the original entry of an open TCP connection through a service to a pod that is
/// gone.
fn leads_to<A: Family>(gone: &Gone, key: &FlowKey<A>, entry: &FlowEntry<A>) -> bool {
    !gone.is_empty()
        && key.protocol == Protocol::TCP
        && entry.kind == FlowKind::ORIGINAL
        && !entry.state.gives_way()
        && entry.service != ServiceId::NONE
        && gone.contains(&entry.address.into())
}

fn count<A: Family>(counts: &mut FlowCounts, entry: &FlowEntry<A>) {
    counts.entries += 1;
    if entry.kind == FlowKind::ORIGINAL {
        counts.flows += 1;
        // The original entry, the reply entry, and the reply entry of a masqueraded flow.
        let entries = 2 + u32::from(entry.knows_masquerade());
        if !entry.state.gives_way() {
            counts.kept += entries;
        }
        if entry.state.phase() == Phase::Unanswered {
            counts.unanswered += entries;
        }
    }
}

/// Passes keys to the kernel program `expire_*`, which checks each entry again and removes idle
/// flows. Returns how many flows it removed.
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
