// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The result of applying plans to the kernel's maps: how much was written, and what could not be
//! published. Read by `syncer`.

use std::{fmt, io};

use proxy_common::maps;
use thiserror::Error;

use crate::object::{ObjectName, Warning};

/// What applying plans to the kernel's maps did.
#[derive(Debug, Default)]
pub struct ApplyResult {
    /// The number of map elements written or removed; 0 if the maps already matched the plans.
    pub written: usize,
    /// The parts of the plans that could not be published; apply the affected services again later.
    pub failures: Vec<Failure>,
    /// True if UDP backends were removed: sockets may still be connected to them.
    pub udp_lost: bool,
}

/// A part of the plans that could not be published in the maps, and why.
#[derive(Debug)]
pub struct Failure {
    pub affected: Affected,
    pub reason: Refusal,
}

impl Failure {
    pub fn of_service(name: &ObjectName, reason: Refusal) -> Self {
        Self {
            affected: Affected::Service(name.clone()),
            reason,
        }
    }
    pub fn warning(&self) -> Warning {
        Warning {
            object: self.affected.to_string(),
            reason: self.reason.to_string(),
        }
    }
}

/// The services that a failure to publish concerns.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Affected {
    Service(ObjectName),
    /// Every service that was applied together: a map element that they share could not be written.
    All,
}

impl fmt::Display for Affected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Service(name) => write!(f, "Service {name}"),
            Self::All => write!(f, "map {}", maps::SETTINGS),
        }
    }
}

/// Why a part of the plans could not be published in the maps.
#[derive(Debug, Error)]
pub enum Refusal {
    #[error(
        "not published, the map {map} is full ({capacity} entries{detail}): larger maps are made, if portolan.maps.memory \
         allows; otherwise raise it, or portolan.maps.{key}, and restart the agent; until then the service keeps what it had, less \
         the endpoints that are gone"
    )]
    Full {
        map: &'static str,
        capacity: u32,
        key: &'static str,
        detail: String,
    },
    #[error(
        "not published, the map {map} cannot be mapped into memory ({error}): free memory or raise vm.max_map_count; it is \
         tried again"
    )]
    Unmapped { map: &'static str, error: io::Error },
    #[error(
        "not wholly published, the kernel refuses an element of the map {map} ({error}); it is tried again"
    )]
    Element { map: &'static str, error: io::Error },
    #[error(
        "the ranges of services' addresses cannot be stored ({error}): new external and load balancer IPs are not served, and \
         connections to new cluster IPs hang once their flow entry is gone; it is tried again"
    )]
    AddressRanges { error: io::Error },
}

/// How many of a map's entries are in use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fill {
    pub map: &'static str,
    pub entries: u32,
    pub capacity: u32,
}

impl Fill {
    pub fn new(map: &'static str, entries: u32, capacity: u32) -> Self {
        Self {
            map,
            entries,
            capacity,
        }
    }
    /// Whether at least three quarters of the map are in use.
    pub fn is_nearly_full(&self) -> bool {
        self.capacity > 0 && u64::from(self.entries) * 4 >= u64::from(self.capacity) * 3
    }
}
