// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The node under test: loaded programs and their maps, in a network namespace.

use std::{
    collections::{BTreeMap, HashSet},
    net::{IpAddr, SocketAddr},
    path::Path,
    time::Instant,
};

use clap::ValueEnum;
use control::object::ObjectName;
use datapath::{
    Capacities, Datapath, Options, XdpMode,
    maps::{FlowTable, family::Family, tables::Table},
};
use lab::node::{bpffs::PinDir, netns::NetNs};
use linux::TestRun;
use proxy_common::{
    AffinityEntry, AffinityKey, Backend, Port, V4, V6, flow::IdleTimes, service::FragmentKey,
};

use crate::{
    context::{Context, of_xdp},
    flow_table::flow_table,
    kept::Sequence,
    kernel::{Counters, Traces, clear, table},
    model::{Given, MARK, Seen, wire::Tuple},
    node,
    operations::Operation,
    packets::text,
    services::{Interface, NodeSettings, Service},
};

/// Idle times that differ by at least three seconds from each multiple of [`crate::run::STEP`].
pub(crate) const IDLE: IdleTimes = IdleTimes {
    tcp_established: 48,
    tcp_close_wait: 39,
    tcp_closed: 12,
    udp: 12,
    udp_stream: 30,
    sctp_established: 48,
};

/// The entries in a flow table: more than a sequence makes.
const FLOWS: u32 = 2048;
/// The entries in a flow table of the node whose tables are full soon. They are two sets, so every
/// entry may be anywhere in the table.
pub(crate) const TIGHT_FLOWS: u32 = 16;

/// The maps of an address family that sequences fill.
pub(crate) struct Maps<A: Family> {
    pub(crate) flows: FlowTable<A>,
    pub(crate) affinity: Table<AffinityKey<A>, AffinityEntry>,
    backends: Table<u32, Backend<A>>,
    fragments: Table<FragmentKey<A>, u32>,
}

impl<A: Family> Maps<A> {
    fn open(pin_dir: &Path) -> Self {
        Self {
            flows: flow_table(pin_dir).expect("a flow table"),
            affinity: table(pin_dir, A::AFFINITY),
            backends: table(pin_dir, A::BACKENDS),
            fragments: table(pin_dir, A::FRAGMENTS),
        }
    }
    fn clear(&self) {
        self.flows.clear().expect("emptied");
        clear(&self.affinity);
        clear(&self.fragments);
    }
    /// Returns client and backend of each session affinity whose backend still serves.
    fn affinities(&self) -> impl Iterator<Item = (IpAddr, SocketAddr)> {
        let entries = self.affinity.entries().expect("readable").into_iter();
        entries.filter_map(|(key, entry)| {
            let backend = self.backends.lookup(&entry.backend.0).expect("a backend")?;
            let is_current = backend.is_current(key.service, entry.generation);
            is_current.then(|| (key.client.into(), socket(backend.address, backend.port)))
        })
    }
}

/// A node under test: its programs, its maps, and what a sequence has stored in them.
pub(crate) struct Subject {
    datapath: Option<Datapath>,
    pub(crate) options: Options,
    counters: Counters,
    pub(crate) v4: Maps<V4>,
    pub(crate) v6: Maps<V6>,
    traces: Traces,
    services: BTreeMap<String, Service>,
    pub(crate) settings: Option<NodeSettings>,
    /// All ports that backends have had: the maps keep a bit for each.
    pub(crate) backend_ports: HashSet<u16>,
    /// The slots of the map `direct` that may be in use.
    direct_places: Vec<u32>,
    /// When [`Subject::hold_time`] last corrected the times of flows.
    pub(crate) held: Instant,
    /// Dropped last, with the pinned maps.
    _pins: PinDir,
}

impl Subject {
    /// Makes the network namespace with its interfaces. [`Subject::open`] must be called inside it.
    pub(crate) fn network() -> NetNs {
        let netns = NetNs::new("fuzz").expect("run as root");
        let mut script = String::from("link set lo up\n");
        for one in Interface::value_variants() {
            let (name, mac, index) = (one.name(), text(one.mac()), one.index());
            script += &format!(
                "link add {name} index {index} address {mac} type veth peer name {name}-p\n\
                 link set {name} up\nlink set {name}-p up\n"
            );
        }
        netns.ip(&script).expect("interfaces");
        let forwarding = ["ipv6/conf/all/forwarding", "ipv4/ip_forward"];
        let forwarding = forwarding.map(|name| (name, "1"));
        netns.set(&forwarding).expect("forwarding");
        for v6 in [false, true] {
            netns.ip(&node::routes(v6)).expect("routes");
        }
        netns
    }
    /// Opens a node with `flows` entries in each flow table; `is_past`: it redirects packets past
    /// the stack. Panics without root: a test must not be skipped.
    pub(crate) fn open(flows: u32, is_past: bool) -> Self {
        let pins = PinDir::new();
        let pin_dir = pins.path();
        let options = Options {
            pin_dir: pin_dir.to_owned(),
            capacities: Capacities {
                frontends: 1024,
                records: 1024,
                // Enough for the Maglev tables of each address family and set, and for the old
                // tables while they are replaced.
                slots: 131_072,
                backends: 1024,
                flows,
                flows_v6: flows,
                affinity: 1024,
                sockets: 128,
                source_ranges: 128,
            },
            redirects: is_past,
            xdp: is_past.then_some(XdpMode::Native),
            ..Options::default()
        };
        let datapath = Datapath::open(&options)
            .unwrap_or_else(|error| panic!("{error} (root and a mounted bpffs are needed)"));
        let mut subject = Self {
            datapath: Some(datapath),
            options,
            counters: Counters::open(pin_dir),
            v4: Maps::open(pin_dir),
            v6: Maps::open(pin_dir),
            traces: Traces::open(pin_dir),
            services: BTreeMap::new(),
            settings: None,
            backend_ports: HashSet::new(),
            direct_places: Vec::new(),
            held: Instant::now(),
            _pins: pins,
        };
        subject.place_interfaces();
        subject.place_node();
        if is_past {
            subject.place_links();
        }
        subject
    }
    pub(crate) fn datapath(&mut self) -> &mut Datapath {
        self.datapath.as_mut().expect("open")
    }
    /// Closes and opens the programs with the same maps, as a restart of the agent does.
    pub(crate) fn restart(&mut self) {
        self.datapath = None;
        let datapath = Datapath::open(&self.options).expect("opens again");
        self.datapath = Some(datapath);
        self.datapath().set_idle_times(IDLE);
    }

    /// Removes all flows, affinities and fragments, and takes the current counts as the start.
    pub(crate) fn reset(&mut self) {
        self.counters.reset();
        self.v4.clear();
        self.v6.clear();
        self.traces.remove(self.direct_places.drain(..));
    }
    /// Makes these the node's only services, in one apply.
    pub(crate) fn begin_with(&mut self, services: &[&Service]) {
        let known = self.services.keys().cloned();
        let gone = known.filter(|name| services.iter().all(|service| service.name != *name));
        let gone: Vec<_> = gone.map(|name| (name, None)).collect();
        let wanted = services.iter().map(|one| (one.name.clone(), Some(*one)));
        self.change(gone.into_iter().chain(wanted));
    }
    /// Adds, replaces, or with None removes services, in one apply.
    pub(crate) fn change<'a>(
        &mut self,
        wanted: impl IntoIterator<Item = (String, Option<&'a Service>)>,
    ) {
        let mut changes = Vec::new();
        for (name, service) in wanted {
            if self.services.get(&name) == service {
                continue;
            }
            let plan = service.map(Service::plan).unwrap_or_default();
            changes.push((ObjectName::new("test", &name), plan));
            if let Some(service) = service {
                let backends = service.backends.iter().map(|backend| backend.at.port());
                self.backend_ports.extend(backends);
                self.services.insert(name, service.clone());
            } else {
                self.services.remove(&name);
            }
        }
        if !changes.is_empty() {
            let result = self.datapath().apply(&changes);
            assert!(result.failures.is_empty(), "{:?}", result.failures);
        }
    }
    /// Runs a program on a packet; fails if several counters or other bits of the mark change.
    pub(crate) fn run(&mut self, program: &str, given: &Given<'_>) -> Result<Seen, String> {
        let uplink = Interface::Uplink.index();
        let context = Context {
            mark: given.mark,
            interface: given.interface.index(),
            came_by: if given.is_own { 0 } else { uplink },
            ..Context::default()
        };
        let run = self.test_run(program, given.frame, &context.bytes())?;
        let counter = self.counters.moved()?.ok_or("no counter moves")?;
        let [mark, _] = Context::left(&run.context);
        if (mark ^ given.mark) & !MARK != 0 {
            fail!("another bit of the mark has changed: {mark:#x}");
        }
        Ok(Seen {
            verdict: run.result,
            frame: run.data,
            mark,
            counter,
        })
    }
    /// Runs the XDP program on a frame at the uplink; None if it leaves it to tc, untouched.
    pub(crate) fn run_at_xdp(&mut self, frame: &[u8]) -> Result<Option<Seen>, String> {
        const PASS: u32 = 2;
        const TX: u32 = 3;
        let context = of_xdp(frame, Interface::Uplink.index());
        let run = self.test_run("uplink", frame, &context)?;
        match (run.result, self.counters.moved()?) {
            (PASS, None) if run.data == frame => Ok(None),
            // Both ends are behind the uplink.
            (TX, Some(counter)) => Ok(Some(Seen::passed(run.data, 0, counter))),
            (action, counter) => Err(format!(
                "the action of XDP is {action}, {counter:?}, or it left a changed frame to tc"
            )),
        }
    }
    fn test_run(&mut self, program: &str, frame: &[u8], context: &[u8]) -> Result<TestRun, String> {
        self.hold_time();
        let loaded = self.datapath().program(program).ok_or("it is not loaded")?;
        let run = linux::test_run(loaded, frame, context, 1);
        run.map_err(|error| format!("the test run failed: {error}"))
    }
    /// Records that a packet with this tuple may leave an entry in the map `direct`.
    pub(crate) fn note_direct(&mut self, tuple: Tuple) {
        let place = node::direct(tuple.reversed());
        self.direct_places.push(place);
    }
    /// Removes idle flows, as the agent does.
    pub(crate) fn sweep(&mut self) {
        self.hold_time();
        self.datapath().sweep_flows().expect("sweeps");
    }
    /// Returns client and backend of each session affinity whose backend still serves, sorted.
    pub(crate) fn affinities(&self) -> Vec<(IpAddr, SocketAddr)> {
        let held = self.v4.affinities().chain(self.v6.affinities());
        let mut held: Vec<_> = held.collect();
        held.sort();
        held
    }
}

/// Returns address and port of a map entry.
pub(crate) fn socket(address: impl Into<IpAddr>, port: Port) -> SocketAddr {
    SocketAddr::new(address.into(), port.host())
}

/// The nodes on which sequences run: one with large tables, one with small tables, and one that
/// redirects packets past the stack.
pub(crate) struct Subjects([Subject; 3]);

impl Subjects {
    /// Opens the three nodes.
    pub(crate) fn open() -> Self {
        let nodes = [(FLOWS, false), (TIGHT_FLOWS, false), (FLOWS, true)];
        Self(nodes.map(|(flows, is_past)| Subject::open(flows, is_past)))
    }
    /// Returns the node for a sequence, which its first operation determines.
    pub(crate) fn of(&mut self, sequence: &Sequence<Operation>) -> &mut Subject {
        let [wide, tight, past] = &mut self.0;
        match sequence.0.first() {
            Some(Operation::Tight) => tight,
            Some(Operation::Past(_)) => past,
            _ => wide,
        }
    }
}
