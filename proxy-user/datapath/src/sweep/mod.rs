// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Walks through the tables of flows and sockets, a part at a time. In: idle times, and which
//! backends still serve. Out: idle entries are removed, the node's UDP sockets whose backend is
//! gone are closed, TCP connections to pods that are gone are ended, and how full the flow
//! tables are. Called by `Datapath`.

mod flows;
mod sockets;

use std::{collections::BTreeSet, net::IpAddr, path::Path};

use control::apply::Fill;
use proxy_common::{V4, V6, flow::IdleTimes};

use self::{flows::FlowWalk, sockets::SocketWalk};
use crate::{
    Datapath,
    error::DatapathError,
    maps::{PinnedMaps, family::Family},
    programs::Programs,
    store::Store,
};

/// The walks through all tables of flows and sockets.
pub(crate) struct Sweep {
    flows_v4: FlowWalk<V4>,
    flows_v6: FlowWalk<V6>,
    sockets: SocketWalk,
    idle_times: IdleTimes,
    /// True if a UDP service has changed so that node processes may have sockets that must be
    /// closed.
    udp_lost: bool,
    /// The addresses of pods that are gone.
    gone: Gone,
}

/// The addresses of pods that are gone: TCP connections to them are ended.
pub(super) type Gone = BTreeSet<IpAddr>;

impl Sweep {
    pub(crate) fn open(open: &PinnedMaps, home: &Path) -> Result<Self, DatapathError> {
        Ok(Self {
            flows_v4: FlowWalk::open(home)?,
            flows_v6: FlowWalk::open(home)?,
            sockets: SocketWalk::open(open)?,
            idle_times: IdleTimes::DEFAULT,
            udp_lost: false,
            gone: Gone::new(),
        })
    }
    /// Closes the node's connected UDP sockets whose backends are gone, or whose services have
    /// endpoints again.
    pub(crate) fn close_lost(&mut self, store: &Store) {
        self.udp_lost = true;
        // If it fails, the next sweep tries again and returns the error.
        _ = self.close_lost_now(store);
    }
    fn close_lost_now(&mut self, store: &Store) -> Result<(), DatapathError> {
        if self.udp_lost {
            self.sockets.close_lost_now(store, &self.idle_times)?;
            self.udp_lost = false;
        }
        Ok(())
    }

    /// Continues the walks through the flow tables. Without `store`, no connections to pods that
    /// are gone are ended.
    fn sweep_flows(
        &mut self,
        store: Option<&Store>,
        programs: &Programs,
    ) -> Result<Occupancy, DatapathError> {
        let (times, gone) = (&self.idle_times, &self.gone);
        // One family's failure does not stop the other.
        let (v4, v6) = (
            self.flows_v4.sweep(programs, times, gone, store),
            self.flows_v6.sweep(programs, times, gone, store),
        );
        Ok(Occupancy {
            v4: v4?,
            v6: v6?,
            complete: self.flows_v4.is_complete() && self.flows_v6.is_complete(),
        })
    }
}

impl Datapath {
    /// Sets the idle times that sweeps use.
    pub fn set_idle_times(&mut self, idle_times: IdleTimes) {
        self.sweep.idle_times = idle_times;
    }
    /// Sets the addresses of pods that are gone: sweeps end TCP connections to them. Unless
    /// segments of unknown connections get a reset now, a connection would not end by removing its
    /// flow, so none ends.
    pub fn set_gone(&mut self, gone: BTreeSet<IpAddr>) {
        let resets = self.settings.resets();
        self.sweep.gone = if resets { gone } else { Gone::new() };
    }
    /// Walks through a part of the flow and socket tables and removes idle entries. Call it about
    /// once a second.
    pub fn sweep(&mut self) -> Result<Occupancy, DatapathError> {
        let (sweep, store) = (&mut self.sweep, &self.store);
        let flows = sweep.sweep_flows(Some(store), &self.programs);
        sweep.close_lost_now(store)?;
        let (times, gone) = (&sweep.idle_times, &sweep.gone);
        sweep.sockets.sweep(store, times, gone)?;
        let flows = flows?;
        Ok(Occupancy {
            complete: flows.complete && sweep.sockets.is_complete(),
            ..flows
        })
    }
    /// Like [`Self::sweep`], for the flow tables only.
    pub fn sweep_flows(&mut self) -> Result<Occupancy, DatapathError> {
        self.sweep.sweep_flows(None, &self.programs)
    }
    /// Returns how many connections sweeps have ended since the last call because their endpoints'
    /// pods are gone.
    pub fn take_ended(&mut self) -> Ended {
        let Sweep {
            flows_v4,
            flows_v6,
            sockets,
            ..
        } = &mut self.sweep;
        let ended = [&mut flows_v4.ended, &mut flows_v6.ended];
        Ended {
            flows: ended.map(std::mem::take).iter().sum(),
            sockets: std::mem::take(&mut sockets.closed),
        }
    }
}

/// How many connections were ended because their endpoints' pods are gone.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Ended {
    /// By removing their flows.
    pub flows: u64,
    /// By closing the clients' sockets.
    pub sockets: u64,
}

/// How full the flow tables are, according to the last complete walk.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Occupancy {
    pub v4: FlowCounts,
    pub v6: FlowCounts,
    /// True if the walks have reached the ends of the tables. The next call starts at the beginning
    /// again.
    pub complete: bool,
}

impl Occupancy {
    /// Returns how full the flow tables of IPv4 and IPv6 are. `entries` selects the number of
    /// entries to use.
    pub fn fills(&self, entries: impl Fn(&FlowCounts) -> u32) -> [Fill; 2] {
        let tables = [(V4::FLOW_SLOTS, &self.v4), (V6::FLOW_SLOTS, &self.v6)];
        tables.map(|(map, counts)| Fill::new(map, entries(counts), counts.capacity))
    }
    /// True if less than 1/16 of each table is used, so that a flood cannot fill it in a few
    /// seconds.
    pub fn is_nearly_empty(&self) -> bool {
        [self.v4, self.v6]
            .iter()
            .all(|counts| counts.entries < counts.capacity / 16)
    }
}

/// The counts of one family's flow table.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FlowCounts {
    pub capacity: u32,
    pub entries: u32,
    /// Flows: the number of entries for packets of clients, of which each flow has one.
    pub flows: u32,
    /// Entries of flows that have had no reply.
    pub unanswered: u32,
    /// Entries of established flows, which are never removed to make space for others.
    pub kept: u32,
    /// How many flows, and entries that belong to no flow, the last call removed.
    pub removed: u32,
}

impl FlowCounts {
    /// Returns how many entries the table should have space for: those in `kept` and at most half
    /// as many others, which are evicted in a full table though they may be in use. A flood has no
    /// established flows and needs no larger table.
    pub fn needed(&self) -> u32 {
        let others = self.entries.saturating_sub(self.kept);
        self.kept + others.min(self.kept / 2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flow_table_needs_room_for_kept_entries_and_half_as_many_others() {
        let counts = |kept, entries| FlowCounts {
            capacity: 4000,
            kept,
            entries,
            ..FlowCounts::default()
        };
        for (kept, entries, needed) in [(0, 4000, 0), (100, 4000, 150), (3000, 3100, 3100)] {
            assert_eq!(counts(kept, entries).needed(), needed);
        }
        // Half of the entries of a full table are established.
        assert_eq!(counts(2000, 4000).needed(), 3000);
    }
}
