// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The kernel side of the agent: loads and attaches the programs, keeps the pinned maps as the plans say,
//! and sweeps the flow tables. Called by `syncer` and `agent`; knows no Kubernetes type.

pub mod cleanup;
pub mod error;
pub mod maps;
mod node;
mod options;
mod programs;
pub mod read;
mod store;
mod sweep;
pub mod sys;

use std::{
    collections::{HashMap, HashSet},
    os::fd::{BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
};

use proxy_common::{Settings, V4, V6, flow::IdleTimes, maps as names};

use self::{
    maps::{
        family::Family,
        pins::{self, Lock},
        tables::Table,
    },
    node::{AddressSet, MasqueradeSources, SettingsCell},
    programs::{Attachments, Programs},
    store::{Grace, Store},
    sweep::{Sockets, Sweeper},
    sys::TestRun,
};
use crate::{
    interfaces::Interface,
    plan::{ObjectName, ServicePlan, Warning},
};
pub use error::DatapathError;
pub use node::NodeAddress;
pub use options::{Attachment, Capacities, DEFAULT_PIN_DIR, Options};
pub use programs::{PROGRAMS, ProgramLog, cgroup_root};
pub use store::{ApplyReport, Fill};
pub use sweep::{FlowCounts, Occupancy};
pub use sys::{has_translated, network_namespace};

/// The kernel side. Programs and maps stay in the kernel when it is dropped.
pub struct Datapath {
    store: Store,
    settings: SettingsCell,
    addresses_v4: AddressSet<V4>,
    addresses_v6: AddressSet<V6>,
    masquerade: MasqueradeSources,
    attachments: Attachments,
    flows_v4: Sweeper<V4>,
    flows_v6: Sweeper<V6>,
    sockets: Sockets,
    /// UDP backends have gone, and sockets may still be connected to them.
    udp_lost: bool,
    exceptions: Table<u64, u32>,
    pin_dir: PathBuf,
    idle_times: IdleTimes,
    programs: Programs,
    // Given up last of all.
    _lock: Lock,
}

impl Datapath {
    /// Loads the programs over the pinned maps and adopts what these hold.
    pub fn open(options: &Options) -> Result<Self, DatapathError> {
        programs::check()?;
        pins::create_dirs(&options.pin_dir)?;
        let lock = Lock::take(&options.pin_dir)?;
        let shapes = pins::shapes(&options.capacities);
        let programs = Programs::load(options, &shapes)?;
        let mut fds = programs::open_maps(&options.pin_dir, &shapes)?;
        let (maps, services) = store::adopt(&mut fds)?;
        let failed = |attempt, map| {
            move |source| DatapathError::Map {
                attempt,
                map,
                source,
            }
        };
        let grace = Grace::new().map_err(failed("wait for readers of", names::RECORDS_V4))?;
        let table = |map| failed("read", map);
        Ok(Self {
            store: Store::new(maps, services, grace),
            settings: SettingsCell::adopt(store::opened(&mut fds, names::SETTINGS, Table::new)?)
                .map_err(table(names::SETTINGS))?,
            addresses_v4: address_set(&mut fds)?,
            addresses_v6: address_set(&mut fds)?,
            masquerade: MasqueradeSources::adopt(
                store::opened(&mut fds, names::INTERFACES, Table::new)?,
                store::opened(&mut fds, names::MASQUERADE_SOURCES, Table::new)?,
            )
            .map_err(table(names::INTERFACES))?,
            attachments: Attachments::adopt(&options.pin_dir, options.attachment)?,
            flows_v4: Sweeper::open(&mut fds)?,
            flows_v6: Sweeper::open(&mut fds)?,
            sockets: Sockets::open(&mut fds)?,
            udp_lost: false,
            exceptions: store::opened(&mut fds, names::EXCEPTIONS, Table::new)?,
            pin_dir: options.pin_dir.clone(),
            idle_times: IdleTimes::DEFAULT,
            programs,
            _lock: lock,
        })
    }
    /// What the programs log; can be had once.
    pub fn program_log(&mut self) -> Result<ProgramLog, DatapathError> {
        self.programs.log()
    }
    /// Brings the maps in line with these services' plans; an empty plan removes the service.
    pub fn apply(&mut self, changes: &[(ObjectName, ServicePlan)]) -> ApplyReport {
        let mut report = self.store.apply(changes, &mut self.settings);
        self.udp_lost |= std::mem::take(&mut report.udp_lost);
        // Where it fails the next sweep tries again and says so.
        let _ = self.close_stale();
        report
    }
    /// Closes the node's connected UDP sockets whose backend has gone.
    fn close_stale(&mut self) -> Result<(), DatapathError> {
        if self.udp_lost {
            let destroyed = self.sockets.close_stale(&self.store, &self.idle_times)?;
            closed(destroyed)?;
            self.udp_lost = false;
        }
        Ok(())
    }
    /// Removes every service (adopted from the pins, say) that is not in `known`.
    pub fn prune(&mut self, known: &HashSet<ObjectName>) -> ApplyReport {
        let gone: Vec<_> = self
            .store
            .names()
            .filter(|name| !known.contains(name))
            .map(|name| (name.clone(), ServicePlan::default()))
            .collect();
        self.apply(&gone)
    }
    /// Withdraws every service for good: new connections are another proxy's, those that exist go on. Sockets that are
    /// connected to a backend stay so: it is as good as before.
    pub fn withdraw(&mut self) -> ApplyReport {
        let none = |name: &ObjectName| (name.clone(), ServicePlan::default());
        let all: Vec<_> = self.store.names().map(none).collect();
        self.store.apply(&all, &mut self.settings)
    }
    /// Stores the node's settings; `pressure` and the service ranges are kept by the datapath itself.
    pub fn set_settings(&mut self, settings: &Settings) -> Result<(), DatapathError> {
        let stored = self.settings.set(settings);
        stored.map(drop).map_err(|source| DatapathError::Map {
            attempt: "write",
            map: names::SETTINGS,
            source,
        })
    }
    /// The idle times that sweeps go by.
    pub fn set_idle_times(&mut self, idle_times: IdleTimes) {
        self.idle_times = idle_times;
    }
    /// Replaces the node's address set.
    pub fn set_node_addresses(&mut self, addresses: &[NodeAddress]) -> Result<(), DatapathError> {
        let failed = |map| {
            move |source| DatapathError::Map {
                attempt: "write",
                map,
                source,
            }
        };
        self.addresses_v4
            .set(addresses)
            .map_err(failed(names::NODE_ADDRESSES_V4))?;
        self.addresses_v6
            .set(addresses)
            .map_err(failed(names::NODE_ADDRESSES_V6))
    }
    /// Attaches to an interface, or brings its attachment and masquerade source up to date. Runs in the
    /// interface's network namespace. Idempotent.
    pub fn attach(&mut self, interface: &Interface) -> Result<(), DatapathError> {
        self.masquerade
            .set(interface)
            .map_err(|source| DatapathError::Interface {
                attempt: "store the masquerade source of",
                interface: interface.name.clone(),
                index: interface.index,
                source,
            })?;
        let attached = self.attachments.attach(&mut self.programs, interface);
        if attached.as_ref().is_err_and(DatapathError::is_gone) {
            // Nothing is left of what was noted for it.
            _ = self.masquerade.remove(interface.index);
        }
        attached
    }
    /// Attaches the socket hooks to a cgroup, or replaces those that are there. Idempotent.
    pub fn attach_hooks(&mut self, cgroup: &Path) -> Result<(), DatapathError> {
        programs::attach_hooks(&self.programs, &self.pin_dir, cgroup)
    }
    /// Leaves the sockets of these cgroups, by their ids, and of those below them to the packet path.
    pub fn set_socket_exceptions(&mut self, cgroups: &HashSet<u64>) -> Result<(), DatapathError> {
        let failed = |source| DatapathError::Map {
            attempt: "write",
            map: names::EXCEPTIONS,
            source,
        };
        let held = self.exceptions.entries().map_err(failed)?;
        for (id, _) in &held {
            if !cgroups.contains(id) {
                self.exceptions.delete(id).map_err(failed)?;
            }
        }
        for id in cgroups {
            if held.iter().all(|(held, _)| held != id) {
                self.exceptions.update(id, &1).map_err(failed)?;
            }
        }
        Ok(())
    }
    /// Detaches from an interface, which may be gone already.
    pub fn detach(&mut self, index: u32) -> Result<(), DatapathError> {
        self.attachments.detach(index)?;
        self.masquerade
            .remove(index)
            .map_err(|source| DatapathError::Map {
                attempt: "write",
                map: names::INTERFACES,
                source,
            })
    }
    /// Attaches to exactly these interfaces and detaches from every other one.
    pub fn attach_only(&mut self, interfaces: &[Interface]) -> Vec<Warning> {
        let mut warnings = Vec::new();
        let mut known = self.attachments.indices();
        known.extend(self.masquerade.interfaces());
        known.sort_unstable();
        known.dedup();
        for index in known {
            if interfaces.iter().all(|interface| interface.index != index)
                && let Err(error) = self.detach(index)
            {
                warnings.push(warning(format!("interface {index}"), &error));
            }
        }
        for interface in interfaces {
            if let Err(error) = self.attach(interface)
                && !error.is_gone()
            {
                warnings.push(warning(format!("interface {}", interface.name), &error));
            }
        }
        warnings
    }
    /// Walks a part of the flow tables and has idle flows removed, and the same with sockets; call it about once a
    /// second.
    pub fn sweep(&mut self) -> Result<Occupancy, DatapathError> {
        let flows = self.sweep_flows()?;
        self.close_stale()?;
        closed(self.sockets.sweep(&self.store, &self.idle_times)?)?;
        Ok(Occupancy {
            walked: flows.walked && self.sockets.is_walked(),
            ..flows
        })
    }
    /// The same with the flow tables only.
    pub fn sweep_flows(&mut self) -> Result<Occupancy, DatapathError> {
        let pressure = self.settings.pressure();
        let v4 = self
            .flows_v4
            .sweep(&self.programs, &self.idle_times, pressure)?;
        let v6 = self
            .flows_v6
            .sweep(&self.programs, &self.idle_times, pressure)?;
        let pressure = sweep::pressure_of(&[v4, v6]);
        self.settings
            .set_pressure(pressure)
            .map_err(|source| DatapathError::Map {
                attempt: "write",
                map: names::SETTINGS,
                source,
            })?;
        let walked = self.flows_v4.is_walked() && self.flows_v6.is_walked();
        Ok(Occupancy {
            v4,
            v6,
            walked: walked && [v4, v6].iter().all(FlowCounts::is_nearly_empty),
            pressure,
        })
    }
    /// How full the maps of plans are.
    pub fn fill(&self) -> Vec<Fill> {
        self.store.maps().fill()
    }
    /// Runs a program on a packet with the maps as they are: for tests, figures and explanations.
    /// `context` is the start of a `__sk_buff`.
    pub fn test_run(
        &self,
        program: &str,
        packet: &[u8],
        context: &[u8],
        repeat: u32,
    ) -> Result<TestRun, DatapathError> {
        let failed = |reason: String| DatapathError::Program {
            program: program.into(),
            reason,
        };
        let fd = self
            .programs
            .fd(program)
            .ok_or_else(|| failed("no such program".into()))?;
        sys::test_run(fd, packet, context, repeat).map_err(|error| failed(error.to_string()))
    }
    /// A loaded program, for what runs it otherwise than by [`Self::test_run`].
    pub fn program(&self, name: &str) -> Option<BorrowedFd<'_>> {
        self.programs.fd(name)
    }
    /// How many instructions the verifier looked at for a program; `None` if the kernel does not tell.
    pub fn verified_instructions(&self, program: &str) -> Option<u32> {
        self.programs.verified_instructions(program)
    }
}

/// What closing sockets came to: a refusal is a fault.
fn closed(destroyed: sys::Destroyed) -> Result<(), DatapathError> {
    if destroyed.closed > 0 {
        tracing::debug!(
            sockets = destroyed.closed,
            "closed UDP sockets whose backend has gone"
        );
    }
    match destroyed.refused {
        Some(error) => Err(DatapathError::CloseSockets(
            std::io::Error::from_raw_os_error(error),
        )),
        None => Ok(()),
    }
}

fn address_set<A: Family>(
    fds: &mut HashMap<&'static str, OwnedFd>,
) -> Result<AddressSet<A>, DatapathError> {
    let table = store::opened(fds, A::NODE_ADDRESSES, Table::new)?;
    AddressSet::adopt(table).map_err(|source| DatapathError::Map {
        attempt: "read",
        map: A::NODE_ADDRESSES,
        source,
    })
}

fn warning(object: String, error: &DatapathError) -> Warning {
    let mut reason = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        reason = format!("{reason}: {cause}");
        source = cause.source();
    }
    Warning { object, reason }
}
