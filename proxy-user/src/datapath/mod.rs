// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The kernel side of the agent: loads and attaches the programs, keeps the pinned maps as the plans say,
//! and sweeps the flow tables. Called by `syncer` and `agent`; knows no Kubernetes type.

pub mod arrays;
pub mod blocks;
pub mod error;
pub mod family;
pub mod ids;
pub mod sys;
pub mod tables;

use std::{collections::HashSet, net::IpAddr, path::PathBuf};

use proxy_common::{Settings, flow::IdleTimes, maps::capacity};

use crate::{
    interfaces::Interface,
    plan::{ObjectName, ServicePlan, Warning},
};
pub use error::DatapathError;

/// Where maps and links are pinned when nothing else is said; the layout version is appended.
pub const DEFAULT_PIN_DIR: &str = "/sys/fs/bpf/portolan";

/// How the kernel side is set up.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Options {
    /// On a BPF file system. One agent per directory.
    pub pin_dir: PathBuf,
    pub capacities: Capacities,
    pub attachment: Attachment,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            pin_dir: DEFAULT_PIN_DIR.into(),
            capacities: Capacities::default(),
            attachment: Attachment::Detect,
        }
    }
}

/// How programs are attached to an interface.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Attachment {
    /// tcx where the kernel has it (6.6), else clsact.
    #[default]
    Detect,
    /// netlink filters of the clsact qdisc on every kernel.
    Clsact,
}

/// Entries that fit each map (each family's, where a map has one per family).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Capacities {
    pub frontends: u32,
    pub records: u32,
    pub slots: u32,
    pub backends: u32,
    pub flows: u32,
    pub affinity: u32,
    pub source_ranges: u32,
}

impl Default for Capacities {
    fn default() -> Self {
        Self {
            frontends: capacity::FRONTENDS as u32,
            records: capacity::RECORDS as u32,
            slots: capacity::SLOTS as u32,
            backends: capacity::BACKENDS as u32,
            flows: capacity::FLOWS as u32,
            affinity: capacity::AFFINITY as u32,
            source_ranges: capacity::SOURCE_RANGES as u32,
        }
    }
}

/// What an apply did.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ApplyReport {
    /// Elements written to or removed from maps; 0 when everything was as planned already.
    pub written: usize,
    /// What could not be published; hand these services in again later.
    pub errors: Vec<Warning>,
}

/// An address of this node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct NodeAddress {
    pub address: IpAddr,
    /// Node ports are served on it.
    pub node_ports: bool,
}

/// How full the flow tables are, by the last complete walk.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Occupancy {
    pub v4: FlowCounts,
    pub v6: FlowCounts,
    /// [`Settings::CALM`] or [`Settings::REFUSING`].
    pub pressure: u32,
}

/// One family's flow table.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FlowCounts {
    pub capacity: u32,
    pub entries: u32,
    /// Flows, that is original entries.
    pub flows: u32,
    /// Entries that belong to flows nobody has answered.
    pub unanswered: u32,
    /// Flows (and orphaned entries) that this call removed.
    pub removed: u32,
}

/// The kernel side. Programs and maps stay in the kernel when it is dropped.
pub struct Datapath {}

impl Datapath {
    /// Loads the programs over the pinned maps and adopts what these hold.
    pub fn open(_options: &Options) -> Result<Self, DatapathError> {
        unimplemented!()
    }
    /// Brings the maps in line with these services' plans; an empty plan removes the service.
    pub fn apply(&mut self, _changes: &[(ObjectName, ServicePlan)]) -> ApplyReport {
        unimplemented!()
    }
    /// Removes every service (adopted from the pins, say) that is not in `known`.
    pub fn prune(&mut self, _known: &HashSet<ObjectName>) -> ApplyReport {
        unimplemented!()
    }
    /// Stores the node's settings; `pressure` and the service ranges are kept by the datapath itself.
    pub fn set_settings(&mut self, _settings: &Settings) -> Result<(), DatapathError> {
        unimplemented!()
    }
    /// The idle times that sweeps go by.
    pub fn set_idle_times(&mut self, _idle_times: IdleTimes) {
        unimplemented!()
    }
    /// Replaces the node's address set.
    pub fn set_node_addresses(&mut self, _addresses: &[NodeAddress]) -> Result<(), DatapathError> {
        unimplemented!()
    }
    /// Attaches to an interface, or brings its attachment and masquerade source up to date. Runs in the
    /// interface's network namespace. Idempotent.
    pub fn attach(&mut self, _interface: &Interface) -> Result<(), DatapathError> {
        unimplemented!()
    }
    /// Detaches from an interface, which may be gone already.
    pub fn detach(&mut self, _index: u32) -> Result<(), DatapathError> {
        unimplemented!()
    }
    /// Attaches to exactly these interfaces and detaches from every other one.
    pub fn attach_only(&mut self, _interfaces: &[Interface]) -> Vec<Warning> {
        unimplemented!()
    }
    /// Walks a part of the flow tables and has idle flows removed; call it about once a second.
    pub fn sweep(&mut self) -> Result<Occupancy, DatapathError> {
        unimplemented!()
    }
}
