// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The datapath. In: plans, settings, interfaces. Out: attached programs, and pinned maps with the
//! contents of the plans. Uses no Kubernetes type. Called by `agent` and `cli`, and as a
//! [`control::syncer::Kernel`]. Modules, bottom to top, each of which uses only those before it:
//! `maps`, `programs`, `node`, `store`, `sweep`, `succession`, `foreign`, `read`, `trace`,
//! `follow`. Below them all: `error` and `options`.
#![deny(unsafe_code)]

pub mod cleanup;
mod error;
pub mod follow;
mod foreign;
pub mod maps;
mod node;
mod options;
mod programs;
pub mod read;
mod repair;
mod store;
mod succession;
mod sweep;
pub mod trace;

use std::{
    collections::BTreeSet,
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use linux::interfaces::Interface;
use proxy_common::{
    LocalPod, V4, V6,
    carried::Key,
    maps::{
        BETWEEN_PODS, DRAINED, EXCEPTIONS, FLOW_SECRET, HEADER_KEYS, MACS, ROUTE_EPOCH, UPLINKS,
    },
    xdp::{Abilities, Uplink},
};

use self::{
    maps::{Lock, PinnedMaps, TRACE, family::Family, pins, shapes, tables::Table},
    node::{ByAddress, Mirror, NodeInterfaces, SettingsCell},
    programs::{HookLinks, Hooks, Programs, TcAttachments, XdpAttachments},
    store::Store,
    succession::Succession,
    sweep::Sweep,
};
pub use error::DatapathError;
pub use foreign::{ForeignConnections, ForeignLookout};
pub use node::NodeAddress;
pub use options::{Attachment, Capacities, DEFAULT_PIN_DIR, Options, XdpMode};
pub use programs::{
    Attached, Chain, ChainPosition, ForeignHook, ForeignProgram, Foreseen, HOOK_COUNT, HookState,
    Load, OBJECT, PROGRAMS, PinnedLink, Present, ProgramLog, RefusedProgram, XdpRefusal,
    cgroup_root, chains, counts_at_peers, foresee, has_capability, has_tcx, is_below_root,
    is_realtime, missing_socket_hooks, pinned_links, present, running_kernel,
};
pub use repair::{Repair, RepairKind, Repaired};

pub use succession::Carried;
pub use sweep::{Ended, FlowCounts, Occupancy};

/// An interface with the foreign programs at its hooks, or the error of reading them.
pub type InterfacePrograms<'a> = (&'a Interface, io::Result<Vec<ForeignProgram>>);

/// The loaded kernel programs, their maps, and what they are attached to. Programs and maps stay in
/// the kernel when this is dropped.
pub struct Datapath {
    store: Store,
    settings: SettingsCell,
    addresses: ByAddress<u32>,
    masquerade: NodeInterfaces,
    pods: ByAddress<LocalPod>,
    /// The link-layer addresses of the node's interfaces.
    macs: Mirror<u64, u32>,
    /// The ids of the cgroups whose sockets the socket hooks ignore.
    exceptions: Mirror<u64, u32>,
    attachments: TcAttachments,
    /// The uplinks' words of MAC address and flags, by interface index (see [`Uplink`]).
    uplinks: Mirror<u32, u64>,
    /// A number that changes when routes or neighbours have changed.
    route_epoch: Table<u32, u32>,
    header_keys: Table<u32, Key>,
    /// The word of [`proxy_common::maps::generation`].
    drained: Table<u32, u32>,
    xdp: XdpAttachments,
    hooks: HookLinks,
    sweep: Sweep,
    pinned: PinnedMaps,
    /// True once the maps for tracing the programs are pinned.
    may_trace: bool,
    pin_dir: PathBuf,
    /// The directory of the maps and links, below the pin directory.
    home: PathBuf,
    /// The older maps that the ones in `home` will replace; `None` if there are none (any more).
    succession: Option<Succession>,
    programs: Programs,
    capacities: Capacities,
    /// True if the maps are larger than configured. A mark in `home` tells the next agent to keep
    /// them.
    has_grown: bool,
    /// True if this process has made the maps.
    is_new: bool,
    // This is the last field, because it is released last.
    lock: Arc<Lock>,
}

impl Datapath {
    /// Loads the programs with the pinned maps and adopts their contents. If the pinned maps have
    /// another layout or other sizes than wanted, creates new maps: see [`Self::take_over`].
    pub fn open(options: &Options) -> Result<Self, DatapathError> {
        programs::check()?;
        pins::create_dirs(&options.pin_dir)?;
        let lock = Arc::new(Lock::take(&options.pin_dir)?);
        let mut options = options.clone();
        let configured = options.capacities;
        if let Some(grown) = succession::grown_capacities(&options.pin_dir) {
            options.capacities = options.capacities.at_least(grown);
        }
        let mut opened = Self::open_locked(&options, lock)?;
        // The maps that had the mark may be about to be replaced.
        if options.capacities != configured {
            opened.mark_grown();
        }
        Ok(opened)
    }
    /// Marks the maps as grown, so that the next agent does not shrink them.
    fn mark_grown(&mut self) {
        self.has_grown = true;
        // Without the mark the next agent takes over to smaller maps if the contents fit. The mark
        // may exist already.
        _ = std::os::unix::fs::symlink("grown", self.home.join(pins::GROWN));
    }
    fn open_locked(options: &Options, lock: Arc<Lock>) -> Result<Self, DatapathError> {
        let shapes = shapes(&options.capacities);
        let (generation, succession) =
            succession::choose(&options.pin_dir, &shapes, options.adopt_drained)?;
        let home = generation.dir(&options.pin_dir);
        let is_new = !home.exists();
        // No other agent may find what is removed.
        let _lock = Arc::clone(&lock);
        let opened = pins::create_links(&home).and_then(|()| {
            let programs = Programs::load(options, &home, &shapes)?;
            let attachments = TcAttachments::adopt(&home, generation.number, options.attachment)?;
            let home = home.clone();
            Self::adopt(options, home, attachments, succession, programs, lock)
        });
        if opened.is_err() && is_new {
            _ = std::fs::remove_dir_all(&home);
        }
        opened.map(|opened| Self { is_new, ..opened })
    }
    /// Removes the maps if this process has made them: for a start that fails. No program may be
    /// attached yet.
    pub fn give_up(&self) {
        if self.is_new {
            // What stays serves the next agent.
            _ = std::fs::remove_dir_all(&self.home);
        }
    }
    /// Returns a function that creates maps of the sizes in its options and loads the programs for
    /// them, on any thread. The maps of this datapath stay in use until [`Self::take_over`].
    pub fn growth(&self) -> impl FnOnce(&Options) -> Result<Self, DatapathError> + Send + use<> {
        let lock = Arc::clone(&self.lock);
        move |options: &Options| {
            let mut grown = Self::open_locked(options, lock)?;
            grown.mark_grown();
            Ok(grown)
        }
    }
    /// Removes the maps of this datapath. They must not have taken over yet, and no attached
    /// program may use them. The older maps stay in use.
    pub fn abandon(self) -> Result<(), DatapathError> {
        std::fs::remove_dir_all(&self.home).map_err(DatapathError::of_file("remove", &self.home))
    }
    /// Returns what looks for connections of another proxy, usable on any thread.
    pub fn foreign_lookout(&self) -> ForeignLookout {
        ForeignLookout {
            home: self.home.clone(),
        }
    }
    pub fn capacities(&self) -> Capacities {
        self.capacities
    }
    /// Empties every map and opens the datapath anew with the loaded programs, which know the flow
    /// tables' secret. For tests, in which loading the programs again would take too long.
    pub fn start_over(self, options: &Options) -> Result<Self, DatapathError> {
        let shapes = shapes(&options.capacities);
        for shape in shapes.iter().filter(|shape| shape.name != FLOW_SECRET) {
            empty(&self.home, shape.name)?;
        }
        let Self {
            home,
            attachments,
            succession,
            programs,
            lock,
            ..
        } = self;
        Self::adopt(options, home, attachments, succession, programs, lock)
    }
    fn adopt(
        options: &Options,
        home: PathBuf,
        attachments: TcAttachments,
        succession: Option<Succession>,
        programs: Programs,
        lock: Arc<Lock>,
    ) -> Result<Self, DatapathError> {
        let shapes = shapes(&options.capacities);
        let mut pinned = PinnedMaps::open(&home, &shapes)?;
        if !options.redirects {
            // Programs that do not redirect do not update this map for packets that pass the stack.
            empty(&home, BETWEEN_PODS)?;
        }
        let store = Store::adopt(&pinned)?;
        pinned.add(&home, succession::TYPES, succession::create_types()?);
        Ok(Self {
            settings: SettingsCell::adopt(&pinned, &store.addresses())?,
            store,
            addresses: ByAddress::adopt(&pinned, V4::NODE_ADDRESSES, V6::NODE_ADDRESSES)?,
            masquerade: NodeInterfaces::adopt(&pinned)?,
            pods: ByAddress::adopt(&pinned, V4::PODS, V6::PODS)?,
            macs: Mirror::adopt(&pinned, MACS)?,
            exceptions: Mirror::adopt(&pinned, EXCEPTIONS)?,
            uplinks: Mirror::adopt(&pinned, UPLINKS)?,
            route_epoch: pinned.take(ROUTE_EPOCH, Table::new)?,
            header_keys: pinned.take(HEADER_KEYS, Table::new)?,
            drained: pinned.take(DRAINED, Table::new)?,
            xdp: XdpAttachments::adopt(&home),
            attachments,
            hooks: HookLinks::default(),
            sweep: Sweep::open(&pinned, &home)?,
            pinned,
            may_trace: false,
            pin_dir: options.pin_dir.clone(),
            home,
            succession,
            programs,
            capacities: options.capacities,
            has_grown: false,
            is_new: false,
            lock,
        })
    }

    /// Attaches the tc programs to an interface, or updates the attachment and the interface's
    /// masquerade source. Runs in the interface's network namespace. Idempotent.
    pub fn attach(&mut self, interface: &Interface) -> Result<(), DatapathError> {
        self.masquerade.set(interface)?;
        let succession = self.succession.as_ref();
        let before = |pin: &str| succession.and_then(|succession| succession.link_before(pin));
        let attached = self
            .attachments
            .attach(&mut self.programs, interface, before);
        if attached.as_ref().is_err_and(DatapathError::is_gone) {
            _ = self.masquerade.remove(interface.index);
        }
        if attached.is_ok() && !self.may_trace {
            self.may_trace = true;
            self.pin_trace();
        }
        attached
    }
    /// Pins the maps by which `portolan trace` asks the programs: to open them by their ids, as the
    /// programs know them, would need CAP_SYS_ADMIN. They are pinned no earlier than the programs
    /// are attached, because the pins may be those of programs that serve until then.
    fn pin_trace(&mut self) {
        for (pin, map) in TRACE {
            if let Ok(map) = self.programs.map(map) {
                self.pinned.add(&self.home, pin, map);
            }
        }
    }
    /// Detaches the tc programs from an interface, which may no longer exist.
    pub fn detach(&mut self, index: u32) -> Result<(), DatapathError> {
        self.attachments.detach(index)?;
        self.masquerade.remove(index)
    }
    /// Attaches the XDP program to an uplink, or updates the attachment. Returns true if an
    /// attachment in this mode was known but had been detached or ran another program. Runs in the
    /// interface's network namespace. Idempotent.
    pub fn attach_uplink(
        &mut self,
        interface: &Interface,
        mode: XdpMode,
        abilities: Abilities,
    ) -> Result<bool, XdpRefusal> {
        let word = Uplink::new(interface.mac.unwrap_or_default(), abilities);
        self.set_uplink(interface.index, Some(word))
            .map_err(|error| XdpRefusal::Refused(io::Error::other(error)))?;
        self.xdp.attach(&self.programs, interface.index, mode)
    }
    /// Detaches the XDP program from an interface, which may no longer exist. From then on the tc
    /// programs handle its packets alone.
    pub fn detach_uplink(&mut self, index: u32) -> Result<(), DatapathError> {
        self.set_uplink(index, None)?;
        self.xdp.detach(index)
    }
    /// Returns the indices of the interfaces that have the XDP program, including those to which an
    /// earlier run of the agent attached it.
    pub fn uplinks(&self) -> BTreeSet<u32> {
        self.uplinks.keys().chain(self.xdp.indices()).collect()
    }
    /// Returns the foreign programs at the hooks of each of these interfaces, and at the bridge of
    /// which the interface is a port. Runs in the interfaces' network namespace.
    pub fn foreign_programs<'a>(
        &self,
        interfaces: impl IntoIterator<Item = &'a Interface>,
    ) -> io::Result<Vec<InterfacePrograms<'a>>> {
        let mut ours = self.programs.ids()?;
        if let Some(succession) = &self.succession {
            ours.extend(succession.program_ids());
        }
        let mut hooks = Hooks::read(&ours)?;
        let interfaces = interfaces.into_iter();
        Ok(interfaces
            .map(|interface| (interface, hooks.at(interface)))
            .collect())
    }
    /// Returns the indices of the interfaces that the tc programs are attached to, by this agent or
    /// an earlier one, and of those that the maps contain.
    pub fn interfaces(&self) -> BTreeSet<u32> {
        let attached = self.attachments.indices().into_iter();
        attached.chain(self.masquerade.interfaces()).collect()
    }
}

/// Removes every element of a pinned map; the elements of an array become zero.
fn empty(home: &Path, map: &'static str) -> Result<(), DatapathError> {
    linux::get_pinned(&home.join(map), false)
        .and_then(linux::empty_map)
        .map_err(DatapathError::of_map("empty", map))
}
