// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The options of the datapath: pin directory, sizes of maps, kind of attachment. Plain values,
//! used by all modules.

use std::path::PathBuf;

use proxy_common::{
    maps::{self as names, capacity},
    masquerade::Marks,
};

/// The default pin directory. Each generation of maps has its own directory below it.
pub const DEFAULT_PIN_DIR: &str = "/sys/fs/bpf/portolan";

/// How the datapath is opened: where, how large, and with which features.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Options {
    /// The directory of the pins, on a BPF file system. One agent per directory.
    pub pin_dir: PathBuf,
    pub capacities: Capacities,
    pub attachment: Attachment,
    /// The bits of the packet mark that the programs use.
    pub marks: Marks,
    /// The setting `xdp`: how the XDP program is attached to uplinks; `None` if it is not.
    pub xdp: Option<XdpMode>,
    /// True with the setting `forwarding: auto`: translated packets may leave past the node's
    /// stack.
    pub redirects: bool,
    /// The UDP port of outer headers; `None` if this node neither puts one on nor takes one off.
    pub header_port: Option<u16>,
    /// True if the programs log every packet of a service: see [`super::Datapath::program_log`].
    pub log_packets: bool,
    /// Keeps using maps whose programs leave new connections to another proxy (drained). If false,
    /// new maps take over from such maps.
    pub adopt_drained: bool,
    /// An object file with the programs, instead of the embedded one: for tests.
    pub object: Option<PathBuf>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            pin_dir: DEFAULT_PIN_DIR.into(),
            capacities: Capacities::default(),
            attachment: Attachment::Detect,
            marks: Marks::DEFAULT,
            xdp: None,
            redirects: false,
            header_port: None,
            log_packets: false,
            adopt_drained: false,
            object: None,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Attachment {
    /// tcx where the kernel has it (6.6), else clsact.
    #[default]
    Detect,
    /// netlink filters of the clsact qdisc on every kernel.
    Clsact,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum XdpMode {
    /// In the device's driver.
    Native,
    /// Behind the driver, in the kernel's own code: works with any device, but is slower.
    Generic,
}

impl XdpMode {
    pub const ALL: [Self; 2] = [Self::Native, Self::Generic];

    /// Returns the mode as the setting spells it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Generic => "generic",
        }
    }
}

/// The maximum number of elements of each map; but for flows, the maps of both families have the
/// same size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Capacities {
    pub frontends: u32,
    pub records: u32,
    pub slots: u32,
    pub backends: u32,
    /// IPv4's flows. Both families' tables begin with one size, and grow on their own.
    pub flows: u32,
    pub flows_v6: u32,
    pub affinity: u32,
    pub sockets: u32,
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
            flows_v6: capacity::FLOWS as u32,
            affinity: capacity::AFFINITY as u32,
            sockets: capacity::SOCKETS as u32,
            source_ranges: capacity::SOURCE_RANGES as u32,
        }
    }
}

impl Capacities {
    /// All sizes 0: they will be chosen for the machine.
    pub fn unset() -> Self {
        Self::default().zip(Self::default(), |_, _| 0)
    }

    /// Combines each of these sizes with the one in `other`.
    pub(crate) fn zip(self, other: Self, with: impl Fn(u32, u32) -> u32) -> Self {
        Self {
            frontends: with(self.frontends, other.frontends),
            records: with(self.records, other.records),
            slots: with(self.slots, other.slots),
            backends: with(self.backends, other.backends),
            flows: with(self.flows, other.flows),
            flows_v6: with(self.flows_v6, other.flows_v6),
            affinity: with(self.affinity, other.affinity),
            sockets: with(self.sockets, other.sockets),
            source_ranges: with(self.source_ranges, other.source_ranges),
        }
    }
    /// Returns these sizes, where each 0 is replaced by the size in `other`.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        self.zip(other, |own, other| if own == 0 { other } else { own })
    }
    /// Returns the capacity of the map with this name; `None` if it cannot be configured.
    pub fn of(&mut self, map: &str) -> Option<&mut u32> {
        Some(match map {
            names::FRONTENDS_V4 | names::FRONTENDS_V6 | names::NAMES => &mut self.frontends,
            names::RECORDS_V4 | names::RECORDS_V6 => &mut self.records,
            names::SLOTS => &mut self.slots,
            names::BACKENDS_V4 | names::BACKENDS_V6 => &mut self.backends,
            names::FLOW_SLOTS_V4 => &mut self.flows,
            names::FLOW_SLOTS_V6 => &mut self.flows_v6,
            _ if map == names::HASHED_FLOWS[0] => &mut self.flows,
            _ if map == names::HASHED_FLOWS[1] => &mut self.flows_v6,
            names::AFFINITY_V4 | names::AFFINITY_V6 | names::AFFINITY_PODS => &mut self.affinity,
            names::SOCKETS_V4 | names::SOCKETS_V6 => &mut self.sockets,
            names::SOURCE_RANGES_V4 | names::SOURCE_RANGES_V6 => &mut self.source_ranges,
            _ => return None,
        })
    }
    /// Returns for each size the larger one of the two.
    #[must_use]
    pub fn at_least(self, other: Self) -> Self {
        self.zip(other, u32::max)
    }
}
