// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Pin directories, network namespaces and plans for the tests, and a reader of the pinned maps
//! that shares no code with the agent's.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    os::fd::OwnedFd,
    path::Path,
    process::Command,
};

use control::{
    object::ObjectName,
    plan::{BackendPlan, FamilyPlan, FrontendPlan, PortPlan, ServicePlan},
};
use datapath::{
    Attachment, Capacities, Datapath, Options,
    maps::{Added, FlowTable, arrays::MappedArray, family::Family, pins::map_path, tables::Table},
};
use ipnet::IpNet;
use lab::node::{bpffs, netns::NetNs};
use linux::{LpmKey, Plain, get_pinned, text};
use proxy_common::{
    Backend, BackendId, Block, EndpointSet, FlowEntry, FlowKey, FlowKind, FlowState, FrontendKey,
    FrontendKind, Port, Protocol, Record, ServiceFlags, ServiceId, V4, V6,
    flow::{ClientInterface, Offload, SPARE},
    maps,
    select::{maglev, weights},
    service::ServiceName,
};

use crate::flow_table::flow_table;

/// A pin directory for one test. It is removed with its contents on drop.
pub(crate) struct PinDir(bpffs::PinDir);

impl PinDir {
    pub(crate) fn new() -> Self {
        bpffs::prepare().expect("a BPF file system: the tests need root");
        Self(bpffs::PinDir::new())
    }
    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }
    pub(crate) fn options(&self) -> Options {
        Options {
            pin_dir: self.path().to_owned(),
            capacities: SMALL,
            ..Options::default()
        }
    }
    pub(crate) fn open(&self) -> Datapath {
        self.open_with(|_| {})
    }
    /// Opens the datapath with changed options.
    pub(crate) fn open_with(&self, change: impl FnOnce(&mut Options)) -> Datapath {
        let mut options = self.options();
        change(&mut options);
        Datapath::open(&options).expect("open the datapath: the tests need root")
    }
    /// Opens the datapath with filters instead of tcx.
    pub(crate) fn open_clsact(&self) -> Datapath {
        self.open_with(|options| options.attachment = Attachment::Clsact)
    }
    pub(crate) fn table<K: Plain, V: Plain>(&self, map: &str) -> Table<K, V> {
        Table::new(self.pinned(map)).expect("a table")
    }
    /// Opens the flow table of IPv4 that is pinned now.
    pub(crate) fn flows(&self) -> FlowTable<V4> {
        flow_table(self.path()).expect("a flow table")
    }
    /// Opens the map that is pinned under this name now.
    pub(crate) fn pinned(&self, map: &str) -> OwnedFd {
        get_pinned(&map_path(self.path(), map), false).expect("pinned")
    }
    pub(crate) fn array<T: Plain>(&self, map: &str) -> MappedArray<T> {
        let array = MappedArray::new(self.pinned(map)).expect("an array");
        array.ensure(0, array.capacity()).expect("mapped");
        array
    }
}

pub(crate) const SMALL: Capacities = Capacities {
    frontends: 64,
    records: 128,
    slots: 128,
    backends: 128,
    flows: 4096,
    flows_v6: 4096,
    affinity: 64,
    sockets: 64,
    source_ranges: 8,
};

/// Runs a test in a new network namespace, with a pin directory.
pub(crate) fn in_netns<T>(test: impl FnOnce(PinDir) -> T) -> T {
    let namespace = NetNs::new("maps").expect("the tests need root");
    namespace.ip("link set lo up\n").expect("loopback");
    let pins = PinDir::new();
    namespace.enter(|| test(pins)).expect("in the namespace")
}

/// Runs a command line without quotes and returns what it prints.
pub(crate) fn run(line: &str) -> String {
    let mut words = line.split_whitespace();
    let mut command = Command::new(words.next().expect("a command"));
    let output = command.args(words).output();
    let output = output.unwrap_or_else(|error| panic!("{line}: {error}"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{line}: {said}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Returns what tc prints of the filters of `v0`, at ingress and at egress.
pub(crate) fn filters() -> [String; 2] {
    ["ingress", "egress"].map(|hook| run(&format!("tc filter show dev v0 {hook}")))
}

pub(crate) fn v4(a: u8, b: u8, c: u8, d: u8) -> V4 {
    Ipv4Addr::new(a, b, c, d).into()
}

pub(crate) fn v6(text: &str) -> V6 {
    text.parse::<Ipv6Addr>().expect("an address").into()
}

pub(crate) fn name(name: &str) -> ObjectName {
    ObjectName::new("shop", name)
}

pub(crate) fn backend<A: Family>(address: A, sets: EndpointSet) -> BackendPlan<A> {
    BackendPlan {
        address,
        port: Port::from_host(8080),
        sets,
        weight: 1,
        local_weight: None,
    }
}

pub(crate) fn frontend<A: Family>(address: A, kind: FrontendKind) -> FrontendPlan<A> {
    FrontendPlan {
        address,
        port: Port::from_host(80),
        flags: ServiceFlags(ServiceFlags::new(kind).0 | ServiceFlags::HAS_ENDPOINTS),
    }
}

/// Returns a plan of one TCP port for IPv4, with a cluster IP and endpoints in 10.1.0.0/24.
pub(crate) fn plan(cluster_ip: V4, endpoints: &[u8]) -> ServicePlan {
    ServicePlan {
        ports: vec![port(cluster_ip, endpoints)],
        ..ServicePlan::default()
    }
}

pub(crate) fn port(cluster_ip: V4, endpoints: &[u8]) -> PortPlan {
    let endpoints = endpoints.iter().map(|n| v4(10, 1, 0, *n));
    let backends = endpoints.map(|address| backend(address, EndpointSet::CLUSTER));
    PortPlan {
        name: "".into(),
        protocol: Protocol::TCP,
        port: Port::from_host(80),
        affinity_timeout: 0,
        source_ranges: Vec::new(),
        v4: FamilyPlan {
            frontends: vec![frontend(cluster_ip, FrontendKind::ClusterIp)],
            backends: backends.collect(),
        },
        v6: FamilyPlan::default(),
    }
}

/// Applies changes, none of which may fail; returns how many elements were written.
#[track_caller]
pub(crate) fn apply(datapath: &mut Datapath, changes: &[(ObjectName, ServicePlan)]) -> usize {
    let result = datapath.apply(changes);
    assert!(result.failures.is_empty(), "{:?}", result.failures.first());
    result.written
}

/// Services by their names.
pub(crate) type Services = BTreeMap<ObjectName, ServicePlan>;

/// Returns the service `cart` with this plan, and no other.
pub(crate) fn cart(plan: ServicePlan) -> Services {
    BTreeMap::from([(name("cart"), plan)])
}

/// Applies these plans, which the maps hold then alone; returns how many elements were written.
#[track_caller]
pub(crate) fn publish(datapath: &mut Datapath, pins: &PinDir, services: &Services) -> usize {
    let written = apply(datapath, &Vec::from_iter(services.clone()));
    assert_eq!(picture(pins), expected(services));
    written
}

/// Detaches the programs from every interface, as an agent does that should attach to none.
#[track_caller]
pub(crate) fn detach_all(datapath: &mut Datapath) {
    for index in datapath.interfaces() {
        datapath.detach(index).expect("detaches");
    }
}

/// The original entry of an established connection from port 40000 to a backend's port 8080.
pub(crate) const ENTRY: FlowEntry<V4> = FlowEntry {
    check: 0,
    kind: FlowKind::ORIGINAL,
    flags: 0,
    port: Port::from_host(8080),
    address: V4 {
        octets: [10, 1, 0, 1],
    },
    masquerade: V4 { octets: [0; 4] },
    client_port: Port::from_host(40_000),
    masquerade_port: Port::ANY,
    service: ServiceId(1),
    backend: BackendId(1),
    generation: 0,
    interface: ClientInterface::SHARED,
    state: FlowState::ESTABLISHED,
    last_seen: 0,
    sequence: 0,
    reuse: 0,
    came_by: 0,
    offload: Offload::NONE,
    _pad: SPARE,
};

/// Returns the original key of a flow from this client to a service.
pub(crate) fn key_of(client: u32, protocol: Protocol) -> FlowKey<V4> {
    let [_, b, c, d] = client.to_be_bytes();
    let (port, to) = (Port::from_host(80), v4(10, 0, 0, 1));
    FlowKey::new(v4(10, b, c, d), ENTRY.client_port, to, port, protocol)
}

/// Returns this original entry of a flow and its reply entry.
pub(crate) fn and_reply(key: FlowKey<V4>, own: FlowEntry<V4>) -> [(FlowKey<V4>, FlowEntry<V4>); 2] {
    let mut back = key;
    own.reply_key_into(&key, &mut back);
    let reply = FlowEntry {
        kind: FlowKind::REPLY,
        port: key.dst_port,
        address: key.dst,
        state: FlowState::NEW,
        ..own
    };
    [(key, own.sealed(&key)), (back, reply.sealed(&back))]
}

/// Enters an entry; returns false if there is one with its key.
pub(crate) fn enter(table: &FlowTable<V4>, key: &FlowKey<V4>, entry: &FlowEntry<V4>) -> bool {
    let added = table.add(key, entry).expect("readable");
    assert!(!matches!(added, Added::Full));
    matches!(added, Added::New)
}

fn backend_text<A: Family>(address: A, port: Port, sets: EndpointSet) -> String {
    let address: IpAddr = address.into();
    format!("{address} {port:?} {}", sets.0)
}

/// Returns a frontend's line of a picture: `backends` of its internal and of its external block.
fn frontend_text<A: Family>(
    key: &FrontendKey<A>,
    flags: ServiceFlags,
    affinity_timeout: u32,
    service: &str,
    backends: &[Vec<String>; 2],
) -> String {
    let (address, protocol): (IpAddr, _) = (key.address.into(), key.protocol.name());
    let (port, flags) = (key.port, flags.0);
    format!("{address} {port:?} {protocol} {flags:#x} {affinity_timeout} {service} {backends:?}")
}

/// Reads the maps as a kernel program would. Returns a picture of them, by lines: service ports by
/// their names, their frontends with record and backends, and their source ranges.
pub(crate) fn picture(pins: &PinDir) -> Vec<String> {
    let names = pins.table::<u32, ServiceName>(maps::NAMES).entries();
    let names = names.expect("readable").into_iter().map(|(id, name)| {
        let (namespace, service) = (text(&name.namespace), text(&name.name));
        let port = text(&name.port_name);
        (id, format!("{namespace}/{service}:{port}"))
    });
    let names = BTreeMap::from_iter(names);
    let mut lines: Vec<_> = names.values().cloned().collect();
    lines.extend(read_family::<V4>(pins, &names));
    lines.extend(read_family::<V6>(pins, &names));
    lines.sort();
    lines
}

fn read_family<A: Family>(pins: &PinDir, names: &BTreeMap<u32, String>) -> Vec<String> {
    let records = pins.array::<Record<A>>(A::RECORDS);
    let backends = pins.array::<Backend<A>>(A::BACKENDS);
    let slots = pins.array::<u32>(maps::SLOTS);
    let keys = pins.table::<FrontendKey<A>, u32>(A::FRONTENDS).entries();
    let frontends = keys.expect("readable").into_iter().map(|(key, id)| {
        let record = records.load(id);
        assert_eq!(record.key, key, "a record carries the key that leads to it");
        let of = |block: Block, external| -> Vec<String> {
            let set = record.flags.set_of_block(external);
            (block.first()..block.first() + block.count())
                .map(|at| {
                    let backend = backends.load(slots.load(at));
                    assert_eq!(backend.service, record.service, "slot {at} of {key:?}");
                    assert!(backend.sets.intersects(set), "slot {at} of {key:?}");
                    backend_text(backend.address, backend.port, backend.sets)
                })
                .collect()
        };
        let members = [of(record.internal, false), of(record.external, true)];
        let (service, timeout) = (&names[&record.service.0], record.affinity_timeout);
        frontend_text(&key, record.flags, timeout, service, &members)
    });
    let sources = pins.table::<LpmKey<A>, u32>(A::SOURCE_RANGES).entries();
    let sources = sources.expect("readable").into_iter().map(|(key, _)| {
        let range = A::range_of(&key).expect("a range");
        format!("{} {range}", names[&key.data.service.0])
    });
    frontends.chain(sources).collect()
}

/// Returns the picture that the maps should give with these plans.
pub(crate) fn expected(services: &Services) -> Vec<String> {
    let mut lines = Vec::new();
    for (name, plan) in services {
        for port in &plan.ports {
            let service = format!("{name}:{}", port.name);
            lines.extend(expect_family::<V4>(&service, port));
            lines.extend(expect_family::<V6>(&service, port));
            let ranges = port.source_ranges.iter().map(IpNet::trunc);
            let ranges = BTreeSet::from_iter(ranges).into_iter();
            lines.extend(ranges.map(|range| format!("{service} {range}")));
            lines.push(service);
        }
        if let Some(first) = plan.ports.first() {
            let service = format!("{name}:{}", first.name);
            lines.extend(plan.guarded_v4.iter().map(|at| guard_text(*at, &service)));
            lines.extend(plan.guarded_v6.iter().map(|at| guard_text(*at, &service)));
        }
    }
    lines.sort();
    lines
}

fn guard_text<A: Family>(address: A, service: &str) -> String {
    let flags = ServiceFlags::new(FrontendKind::Unserved);
    let key = FrontendKey::unserved(address);
    frontend_text(&key, flags, 0, service, &Default::default())
}

fn expect_family<A: Family>(service: &str, port: &PortPlan) -> Vec<String> {
    let plan = A::of_port(port);
    let of_frontend = |frontend: &FrontendPlan<A>| {
        let members = |external| -> Vec<String> {
            let set = frontend.flags.set_of_block(external);
            let all = plan.backends.iter();
            let members: Vec<_> = all.filter(|one| one.sets.intersects(set)).collect();
            let weights: Vec<_> = members.iter().map(|one| one.weight_in(set)).collect();
            let owners = if frontend.flags.has(ServiceFlags::MAGLEV) {
                let ends: Vec<_> = members.iter().map(|one| (one.address, one.port)).collect();
                maglev::weighted(&ends, &weights)
            } else {
                weights::list(&weights)
            };
            let of_slot = owners.into_iter().map(|owner| members[owner as usize]);
            let text = |one: &BackendPlan<A>| backend_text(one.address, one.port, one.sets);
            of_slot.map(text).collect()
        };
        let key = FrontendKey::new(frontend.address, frontend.port, port.protocol);
        let members = [members(false), members(true)];
        let timeout = port.affinity_timeout;
        frontend_text(&key, frontend.flags, timeout, service, &members)
    };
    plan.frontends.iter().map(of_frontend).collect()
}
