// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The datapath. In: plans, settings, interfaces. Out: attached programs, and pinned maps as the
//! plans say. Knows no Kubernetes type; called by `agent` and `cli`, and as a
//! [`control::syncer::Kernel`]. Rooms, bottom to top, of which each uses only those before it:
//! `maps`, `programs`, `node`, `store`, `sweep`, `succession`, `import`, `read`, `trace`. Below
//! them all: `error` and `options`.
#![deny(unsafe_code)]

mod apply;
pub mod cleanup;
mod error;
mod import;
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
    collections::HashSet,
    io,
    os::fd::BorrowedFd,
    path::{Path, PathBuf},
    sync::Arc,
};

use control::{apply::Fill, object::ObjectName, plan::ServicePlan};
use linux::{
    TestRun,
    interfaces::{Interface, PodLink},
};
use proxy_common::{
    Settings,
    flow::IdleTimes,
    maps::{BETWEEN_PODS, generation},
    xdp::{Abilities, Uplink},
};

use self::{
    maps::{Lock, OpenMaps, PinnedMaps, pins, shapes},
    node::{NodeAddresses, NodeInterfaces, Pods, SettingsCell, SocketExceptions, Uplinks},
    programs::{HookLinks, Hooks, Programs, TcAttachments, XdpAttachments},
    store::Store,
    succession::Succession,
    sweep::Sweep,
};
pub use error::DatapathError;
pub use import::{Imported, Importer, Left};
pub use node::NodeAddress;
pub use options::{Attachment, Capacities, DEFAULT_PIN_DIR, Options, SHADOW_PIN_DIR, XdpMode};
pub use programs::{
    Attached, Chain, ChainMember, ChainPosition, ForeignHook, ForeignProgram, ForeignVerdict,
    Foreseen, HOOK_COUNT, HookState, Load, OBJECT, PROGRAMS, PinnedLink, Present, ProgramLog,
    RefusedProgram, XdpRefusal, ask_foreign, cgroup_root, chains, counts_at_peers, foresee,
    has_tcx, is_realtime, missing_socket_hooks, pinned_links, present, running_kernel,
};
pub use repair::{Repair, RepairKind, Repaired};

pub use succession::Carried;
pub use sweep::{FlowCounts, Occupancy};

/// An interface with the foreign programs beside ours, or why they could not be read.
pub type InterfacePrograms<'a> = (&'a Interface, io::Result<Vec<ForeignProgram>>);

/// The right to make larger maps in place of those of an open datapath.
pub struct Growth {
    lock: Arc<Lock>,
}

impl Growth {
    /// Makes maps of these sizes and loads the programs over them. The maps before go on: see
    /// [`Datapath::take_over`].
    pub fn open(self, options: &Options) -> Result<Datapath, DatapathError> {
        let mut grown = Datapath::open_locked(options, self.lock)?;
        grown.mark_grown();
        Ok(grown)
    }
}

/// The datapath. Programs and maps stay in the kernel when it is dropped.
pub struct Datapath {
    store: Store,
    settings: SettingsCell,
    addresses: NodeAddresses,
    masquerade: NodeInterfaces,
    pods: Pods,
    exceptions: SocketExceptions,
    attachments: TcAttachments,
    uplinks: Uplinks,
    xdp: XdpAttachments,
    hooks: HookLinks,
    sweep: Sweep,
    pinned: PinnedMaps,
    pin_dir: PathBuf,
    /// The directory of the maps and links, below it.
    home: PathBuf,
    /// The maps that these take over from.
    succession: Option<Succession>,
    programs: Programs,
    capacities: Capacities,
    /// They are larger than configured, which a mark tells the next agent.
    has_grown: bool,
    // The last field, because it is released last.
    lock: Arc<Lock>,
}

impl Datapath {
    /// Loads the programs over the pinned maps and adopts what these hold. Where those are of
    /// another layout or of other sizes, it makes new ones: see [`Self::take_over`].
    pub fn open(options: &Options) -> Result<Self, DatapathError> {
        programs::check()?;
        pins::create_dirs(&options.pin_dir)?;
        let lock = Arc::new(Lock::take(&options.pin_dir)?);
        pins::check_shadow(&options.pin_dir, options.shadow)?;
        let mut options = options.clone();
        let configured = options.capacities;
        if let Some(grown) = succession::grown_capacities(&options.pin_dir) {
            options.capacities = options.capacities.at_least(grown);
        }
        let mut opened = Self::open_locked(&options, lock)?;
        // The maps that had the mark may be taken over from.
        if options.capacities != configured {
            opened.mark_grown();
        }
        Ok(opened)
    }
    /// Has the next agent make no smaller maps.
    fn mark_grown(&mut self) {
        self.has_grown = true;
        // Without the mark it takes over to those, if what is in them fits. It may be there.
        _ = std::os::unix::fs::symlink("grown", self.home.join(pins::GROWN));
    }
    fn open_locked(options: &Options, lock: Arc<Lock>) -> Result<Self, DatapathError> {
        let shapes = shapes(&options.capacities);
        let (generation, succession) =
            succession::choose(&options.pin_dir, &shapes, options.adopt_drained)?;
        let home = generation.dir(&options.pin_dir);
        pins::create_links(&home)?;
        if options.shadow {
            pins::mark_shadow(&home)?;
        }
        let programs = Programs::load(options, &home, &shapes)?;
        let attachments = TcAttachments::adopt(&home, generation.number, options.attachment)?;
        Self::adopt(options, home, attachments, succession, programs, lock)
    }
    /// What makes larger maps in place of these, on any thread.
    pub fn growth(&self) -> Growth {
        Growth {
            lock: Arc::clone(&self.lock),
        }
    }
    /// Removes these maps, over which no program is attached and which have taken over from none.
    /// Those before go on.
    pub fn abandon(self) -> Result<(), DatapathError> {
        std::fs::remove_dir_all(&self.home).map_err(|source| DatapathError::File {
            attempt: "remove",
            path: self.home.clone(),
            source,
        })
    }
    /// What imports the connections of another proxy, on any thread. No other maps may take over
    /// from these meanwhile.
    pub fn importer(&self) -> Importer {
        Importer::new(&self.home)
    }
    /// How many elements the maps have room for.
    pub fn capacities(&self) -> Capacities {
        self.capacities
    }
    /// Empties every map and adopts that: for tests, to which loading the programs again would take
    /// too long.
    pub fn start_over(self, options: &Options) -> Result<Self, DatapathError> {
        for shape in shapes(&options.capacities) {
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
        let mut open = OpenMaps::open(&home, &shapes)?;
        if !options.redirects {
            // Programs that redirect nothing take no note of what the stack carries.
            empty(&home, BETWEEN_PODS)?;
        }
        let store = Store::adopt(&mut open)?;
        Ok(Self {
            settings: SettingsCell::adopt(&mut open, &store.addresses())?,
            store,
            addresses: NodeAddresses::adopt(&mut open)?,
            masquerade: NodeInterfaces::adopt(&mut open)?,
            pods: Pods::adopt(&mut open)?,
            exceptions: SocketExceptions::open(&mut open)?,
            uplinks: Uplinks::adopt(&mut open)?,
            xdp: XdpAttachments::adopt(&home),
            attachments,
            hooks: HookLinks::default(),
            sweep: Sweep::open(&mut open)?,
            pinned: PinnedMaps::open(&home, &shapes)?,
            pin_dir: options.pin_dir.clone(),
            home,
            succession,
            programs,
            capacities: options.capacities,
            has_grown: false,
            lock,
        })
    }

    /// The generations of maps that these are to take over from, by their names; `None` if there is
    /// none (any more).
    pub fn predecessors(&self) -> Option<String> {
        self.succession.as_ref().map(Succession::names)
    }
    /// Whether the programs may be attached: there is nothing to take over, or it is known what
    /// flows there are.
    pub fn may_attach(&self) -> bool {
        self.succession.as_ref().is_none_or(Succession::is_carried)
    }
    /// Carries over what the maps before hold, and returns how much that is so far. The services,
    /// settings and addresses must be in these maps already. Until [`Self::take_over`] the programs
    /// before go on.
    pub fn carry_over(&mut self) -> Result<Carried, DatapathError> {
        match &mut self.succession {
            Some(succession) => succession.carry(),
            None => Ok(Carried::default()),
        }
    }
    /// Takes over from the maps before, once the programs are attached wherever those of the maps
    /// before are: no packet and no socket meets none. Removes the old programs and maps. On an
    /// error it may be called again.
    pub fn take_over(&mut self) -> Result<Carried, DatapathError> {
        let Some(succession) = &mut self.succession else {
            return Ok(Carried::default());
        };
        succession.drain()?;
        // One that was beginning a flow ends first.
        linux::wait_for_programs();
        succession.carry()?;
        succession.detach()?;
        linux::wait_for_programs();
        let carried = succession.carry()?;
        // What they take meanwhile changes no flow's state, so nothing is lost, and no device is
        // reset.
        for home in succession.homes() {
            self.xdp
                .take_from(&home, &self.programs)
                .map_err(|source| DatapathError::File {
                    attempt: "take over the links in",
                    path: home,
                    source,
                })?;
        }
        match self.succession.take() {
            Some(succession) => succession.remove().map(|()| carried),
            None => Ok(carried),
        }
    }

    /// The log lines of the programs. Works once.
    pub fn program_log(&mut self) -> Result<ProgramLog, DatapathError> {
        self.programs.log()
    }

    /// Leaves new connections to another proxy, for good: flows and sockets go on as they are. The
    /// next agent takes over from these maps.
    pub fn drain(&self) -> Result<(), DatapathError> {
        succession::tell(&self.home, generation::DRAINED)
    }
    /// Frees what removed services and endpoints used, as soon as no program can be reading it.
    pub fn collect(&mut self) {
        self.store.collect();
    }
    /// How many services the maps hold.
    pub fn service_count(&self) -> usize {
        self.store.names().len()
    }
    /// The services that the maps hold.
    pub fn held_services(&self) -> HashSet<ObjectName> {
        self.store.names().cloned().collect()
    }
    fn removals(&self, remove: impl Fn(&ObjectName) -> bool) -> Vec<(ObjectName, ServicePlan)> {
        let names = self.store.names().filter(|name| remove(name));
        names
            .map(|name| (name.clone(), ServicePlan::default()))
            .collect()
    }
    /// How full the maps of plans are.
    pub fn fill(&self) -> Vec<Fill> {
        self.store.fill()
    }

    /// Stores the node's settings, except the ranges of services' addresses, which the datapath
    /// keeps itself.
    pub fn set_settings(&mut self, settings: &Settings) -> Result<(), DatapathError> {
        self.settings.set(settings)
    }
    /// Replaces the node's addresses.
    pub fn set_node_addresses(&mut self, addresses: &[NodeAddress]) -> Result<(), DatapathError> {
        self.addresses.set(addresses)
    }
    /// Replaces the pods that packets past the stack are handed to; all others are reached by the
    /// routes.
    pub fn set_pods(&mut self, links: &[PodLink]) -> Result<(), DatapathError> {
        self.pods.set(links)
    }
    /// Leaves the sockets of these cgroups, by their ids, and of those below them to the packet
    /// path.
    pub fn set_socket_exceptions(&mut self, cgroups: &HashSet<u64>) -> Result<(), DatapathError> {
        self.exceptions.set(cgroups)
    }

    /// Attaches to an interface, or brings its attachment and masquerade source up to date. Runs in
    /// the interface's network namespace. Idempotent.
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
        attached
    }
    /// Detaches from an interface, which may be gone already.
    pub fn detach(&mut self, index: u32) -> Result<(), DatapathError> {
        self.attachments.detach(index)?;
        self.masquerade.remove(index)
    }
    /// Says whether packets that come in by an attached interface may leave past the stack, if
    /// `forwarding` is `redirect`.
    pub fn set_redirects(&mut self, index: u32, redirects: bool) -> Result<(), DatapathError> {
        self.masquerade.set_redirects(index, redirects)
    }
    /// Has XDP take packets at an uplink, or brings that up to date; whether the program was not as
    /// it had been left. Runs in the interface's network namespace. Idempotent.
    pub fn attach_uplink(
        &mut self,
        interface: &Interface,
        mode: XdpMode,
        abilities: Abilities,
    ) -> Result<bool, XdpRefusal> {
        let word = Uplink::new(interface.mac.unwrap_or_default(), abilities);
        self.uplinks
            .set(interface.index, Some(word))
            .map_err(|error| XdpRefusal::Refused(io::Error::other(error)))?;
        self.xdp.attach(&self.programs, interface.index, mode)
    }
    /// Leaves an interface, which may be gone, to tc.
    pub fn detach_uplink(&mut self, index: u32) -> Result<(), DatapathError> {
        self.uplinks.set(index, None)?;
        self.xdp.detach(index)
    }
    /// Indices of the interfaces where XDP takes packets, or has done so for an earlier run.
    pub fn uplinks(&self) -> Vec<u32> {
        let mut indices = self.uplinks.indices();
        indices.extend(self.xdp.indices());
        indices.sort_unstable();
        indices.dedup();
        indices
    }
    /// Has XDP ask for its next hops again: routes, neighbours or interfaces have changed.
    pub fn begin_route_epoch(&mut self) -> Result<(), DatapathError> {
        self.uplinks.begin_epoch()
    }
    /// The foreign programs beside ours at the hooks of each attached interface, and at the bridge
    /// whose port it is. Runs in the interfaces' network namespace.
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
    /// Attaches to exactly these interfaces and detaches from every other one. Returns what failed,
    /// by the interface's index; an interface that has gone meanwhile is no failure.
    pub fn attach_only(&mut self, interfaces: &[Interface]) -> Vec<(u32, DatapathError)> {
        let mut failures = Vec::new();
        let mut known = self.attachments.indices();
        known.extend(self.masquerade.interfaces());
        known.sort_unstable();
        known.dedup();
        known.retain(|index| interfaces.iter().all(|wanted| wanted.index != *index));
        for index in known {
            failures.extend(self.detach(index).err().map(|error| (index, error)));
        }
        for interface in interfaces {
            let error = self
                .attach(interface)
                .err()
                .filter(|error| !error.is_gone());
            failures.extend(error.map(|error| (interface.index, error)));
        }
        failures
    }
    /// Attaches the socket hooks to a cgroup, or replaces attached ones. Idempotent.
    pub fn attach_hooks(&mut self, cgroup: &Path) -> Result<(), DatapathError> {
        self.hooks.attach(&self.programs, &self.home, cgroup)
    }

    /// The socket hooks that the kernel takes, by the names of their programs.
    pub fn wanted_hooks(&self) -> Vec<&'static str> {
        HookLinks::wanted(&self.programs)
    }
    /// How many socket hooks the kernel takes, and how many are attached.
    pub fn hook_counts(&self) -> (usize, usize) {
        self.hooks.counts(&self.programs)
    }

    /// The idle times that sweeps go by.
    pub fn set_idle_times(&mut self, idle_times: IdleTimes) {
        self.sweep.set_idle_times(idle_times);
    }
    /// Walks a part of the tables of flows and sockets, and removes idle entries. Call it about
    /// once a second.
    pub fn sweep(&mut self) -> Result<Occupancy, DatapathError> {
        self.sweep.sweep(&self.store, &self.programs)
    }
    /// As [`Self::sweep`], for the flow tables only.
    pub fn sweep_flows(&mut self) -> Result<Occupancy, DatapathError> {
        self.sweep.sweep_flows(&self.programs)
    }

    /// Runs a program on a packet with the maps as they are: for tests and benchmarks.
    /// `context` is the start of a `__sk_buff`.
    pub fn test_run(
        &self,
        program: &str,
        packet: &[u8],
        context: &[u8],
        repeat: u32,
    ) -> Result<TestRun, DatapathError> {
        self.programs.test_run(program, packet, context, repeat)
    }
    /// How the kernel took each program, refused ones left out.
    pub fn loads(&self) -> &[Load] {
        self.programs.loads()
    }
    /// The programs that the kernel refuses. What needs them is not attached.
    pub fn refusals(&self) -> &[RefusedProgram] {
        self.programs.refusals()
    }
    /// The descriptor of a loaded program.
    pub fn program(&self, name: &str) -> Option<BorrowedFd<'_>> {
        self.programs.fd(name)
    }
    /// How many instructions the verifier processed for a program; `None` if the kernel does not
    /// show it.
    pub fn verified_instructions(&self, program: &str) -> Option<u32> {
        self.programs.verified_instructions(program)
    }
}

/// Removes every element of a pinned map; those of an array become zero.
fn empty(home: &Path, map: &'static str) -> Result<(), DatapathError> {
    linux::get_pinned(&home.join(map), false)
        .and_then(linux::empty_map)
        .map_err(DatapathError::of_map("empty", map))
}
