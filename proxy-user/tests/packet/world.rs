// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A node's maps in their own pin directory, and its programs, run packet by packet.

use std::{
    net::SocketAddr,
    sync::atomic::{AtomicU32, Ordering},
};

use config::set_pods;
use control::{object::ObjectName, plan::ServicePlan};
use datapath::{
    Capacities, Datapath, NodeAddress, Options,
    maps::{FlowTable, family::Family, pins::map_path, tables::Table},
    read::{Counted, Reader},
};
use linux::{Plain, TestRun, get_pinned, interfaces::PodLink};
use proxy_common::{
    Counter, FlowEntry, FlowKind, Settings, V4, V6,
    maps::{self, interface},
    masquerade::Marks,
    service::FragmentKey,
};

pub(crate) use crate::context::{Context, NEXT, REDIRECT, SHOT};
use crate::{
    context::{moved, of_xdp},
    flow_table::{entries, flow_table},
    packets::{NODE_MAC, ends},
    pool::{self, Loaded},
    service::{IPV4, IPV6, Service},
};

/// The result of a program's run on a packet.
#[derive(Clone, Debug)]
pub(crate) struct Outcome {
    pub(crate) verdict: u32,
    pub(crate) packet: Vec<u8>,
    pub(crate) mark: u32,
    /// What programs behind this one find in the packet's control block.
    pub(crate) note: u32,
    pub(crate) counter: Counter,
}

impl Outcome {
    /// The verdict and the counter that has moved.
    pub(crate) fn fate(&self) -> (u32, Counter) {
        (self.verdict, self.counter)
    }
    pub(crate) fn src(&self) -> SocketAddr {
        self.ends().0
    }
    pub(crate) fn dst(&self) -> SocketAddr {
        self.ends().1
    }
    /// Source and destination.
    pub(crate) fn ends(&self) -> (SocketAddr, SocketAddr) {
        ends(&self.packet)
    }
    /// Expects that the packet passes byte for byte as it came.
    #[track_caller]
    pub(crate) fn expect_untouched(&self, packet: &[u8]) {
        assert_eq!(self.fate(), (NEXT, Counter::Untouched));
        assert_eq!(self.packet, packet);
    }
}

/// The interface index in test runs that name no other interface.
pub(crate) const LOOPBACK: u32 = 1;

/// One node.
pub(crate) struct World {
    /// `None` once it is given back to the pool.
    loaded: Option<Loaded>,
}

impl World {
    /// Opens a node with these services. Panics without privilege: a test must not be skipped.
    pub(crate) fn new(services: &[Service]) -> Self {
        Self::with(|_| {}, services)
    }
    /// Opens a node with these services and changed options.
    pub(crate) fn with(change: impl FnOnce(&mut Options), services: &[Service]) -> Self {
        let mut options = Options {
            capacities: Capacities {
                frontends: 1024,
                records: 1024,
                slots: 4096,
                backends: 1024,
                flows: 1024,
                flows_v6: 1024,
                affinity: 128,
                sockets: 128,
                source_ranges: 128,
            },
            ..Options::default()
        };
        change(&mut options);
        let mut world = Self {
            loaded: Some(pool::take(options)),
        };
        world.configure(|_| {});
        // The frames of test runs are not addressed to loopback, but to a bridge with this port.
        world.set_interface(LOOPBACK, interface::BRIDGE_PORT);
        world.set_macs(&[NODE_MAC]);
        let addresses = [*IPV4, *IPV6].map(|a| [(a.node, true), (a.other_node_address, false)]);
        let addresses = addresses.as_flattened().iter();
        let addresses = addresses.map(|&(address, node_ports)| NodeAddress {
            address,
            node_ports,
        });
        let addresses: Vec<_> = addresses.collect();
        let stored = world.datapath().set_node_addresses(&addresses);
        stored.expect("node addresses");
        for service in services {
            world.apply(service);
        }
        world
    }
    /// Stores the settings of a node with pod ranges, changed by `change`.
    pub(crate) fn configure(&mut self, change: impl FnOnce(&mut Settings)) {
        let mut settings = Settings::EMPTY;
        let pods = ["10.40.0.0/16", "fd00:40::/48"].map(|range| range.parse().expect("a range"));
        set_pods(&mut settings, &pods);
        settings.internal_v4 = V4::of_ip(IPV4.node).expect("IPv4");
        settings.internal_v6 = V6::of_ip(IPV6.node).expect("IPv6");
        change(&mut settings);
        self.datapath().set_settings(&settings).expect("settings");
    }
    /// Replaces the link-layer addresses of the node's interfaces.
    pub(crate) fn set_macs(&mut self, macs: &[[u8; 6]]) {
        let stored = self.datapath().set_macs(macs.iter().copied());
        stored.expect("stored");
    }
    /// Stores the properties of an interface that is no port of a bridge: see [`interface`].
    pub(crate) fn set_interface(&self, index: u32, bits: u32) {
        self.set_port(index, bits, 0);
    }
    /// Stores the properties of a port of the bridge with this index.
    pub(crate) fn set_port(&self, index: u32, bits: u32, bridge: u32) {
        self.store(maps::INTERFACES, index, interface::word(bits, bridge));
    }
    /// Stores an element of a map, as the agent does.
    pub(crate) fn store<V: Plain>(&self, map: &str, index: u32, value: V) {
        self.table(map).update(&index, &value).expect("stored");
    }
    /// Removes all entries of this kind of IPv4, as if they had not been written yet.
    pub(crate) fn remove_flows(&self, kind: FlowKind) {
        let table = self.flow_table();
        for (key, entry) in entries(&table).expect("entries") {
            if entry.kind == kind {
                table.delete(&key).expect("an entry");
            }
        }
    }
    fn datapath(&mut self) -> &mut Datapath {
        &mut self.loaded.as_mut().expect("not given back yet").datapath
    }
    fn options(&self) -> &Options {
        &self.loaded.as_ref().expect("not given back yet").options
    }
    /// The loaded programs.
    pub(crate) fn loaded(&self) -> &Datapath {
        &self.loaded.as_ref().expect("not given back yet").datapath
    }
    fn table<K: Plain, V: Plain>(&self, map: &str) -> Table<K, V> {
        let pin = get_pinned(&map_path(&self.options().pin_dir, map), false).expect("pinned");
        Table::new(pin).expect("a table")
    }
    pub(crate) fn flow_table(&self) -> FlowTable<V4> {
        flow_table(&self.options().pin_dir).expect("a flow table")
    }
    /// Replaces the pods to which packets are redirected.
    pub(crate) fn set_pods(&mut self, links: &[PodLink]) {
        self.datapath().set_pods(links).expect("pods");
    }
    pub(crate) fn apply(&mut self, service: &Service) {
        self.publish(&service.name, service.plan());
    }
    pub(crate) fn remove(&mut self, name: &str) {
        self.publish(name, ServicePlan::default());
    }
    pub(crate) fn publish(&mut self, name: &str, plan: ServicePlan) {
        let changes = [(ObjectName::new("test", name), plan)];
        let result = self.datapath().apply(&changes);
        assert!(result.failures.is_empty(), "{:?}", result.failures);
    }

    /// Runs ingress on a packet.
    pub(crate) fn ingress(&self, packet: &[u8]) -> Outcome {
        self.run("ingress", packet, Context::default())
    }
    /// Runs ingress on a packet in this context, possibly one of several segments.
    pub(crate) fn ingress_by(&self, packet: &[u8], context: Context) -> Outcome {
        self.run("ingress", packet, context)
    }
    /// Runs egress on a packet in this context.
    pub(crate) fn egress_by(&self, packet: &[u8], context: Context) -> Outcome {
        self.run("egress", packet, context)
    }
    /// Runs egress on a packet without a mark.
    pub(crate) fn egress(&self, packet: &[u8]) -> Outcome {
        self.egress_with(packet, 0)
    }
    /// Runs egress on a packet with this mark.
    pub(crate) fn egress_with(&self, packet: &[u8], mark: u32) -> Outcome {
        let context = Context {
            mark,
            ..Context::default()
        };
        self.run("egress", packet, context)
    }
    /// Runs ingress and then egress on a packet.
    pub(crate) fn forward(&self, packet: &[u8]) -> Outcome {
        let inside = self.ingress(packet);
        assert_eq!(inside.verdict, NEXT, "{inside:?}");
        self.egress_with(&inside.packet, inside.mark)
    }

    fn run(&self, program: &str, packet: &[u8], given: Context) -> Outcome {
        let (run, counter) = self.counted_run(program, packet, &given.bytes());
        let [mark, note] = Context::left(&run.context);
        let Marks { masquerade, drop } = self.options().marks;
        let ours = masquerade | drop | Marks::beside_rules(masquerade);
        assert_eq!(mark & !ours, 0, "no other bit of the mark is touched");
        Outcome {
            verdict: run.result,
            packet: run.data,
            mark,
            note,
            counter: counter.expect("a counter moves"),
        }
    }
    /// Runs XDP on a frame from an uplink; `None` if the frame goes to tc, unchanged, uncounted.
    pub(crate) fn at_xdp(&self, frame: &[u8], interface: u32) -> Option<Outcome> {
        const PASS: u32 = 2;
        let (run, counter) = self.counted_run("uplink", frame, &of_xdp(frame, interface));
        if run.result == PASS {
            assert_eq!((&run.data[..], counter), (frame, None), "untouched");
            return None;
        }
        Some(Outcome {
            verdict: run.result,
            packet: run.data,
            mark: 0,
            note: 0,
            counter: counter.expect("a counter moves"),
        })
    }
    /// Runs a program on a packet; also returns the only counter that has moved, by one.
    fn counted_run(&self, program: &str, packet: &[u8], with: &[u8]) -> (TestRun, Option<Counter>) {
        let before = self.counters();
        let run = self.test_run(program, packet, with);
        let moved = moved(&before, &self.counters());
        (run, moved.expect("at most one counter moves"))
    }
    /// Begins another epoch of routes and neighbours.
    pub(crate) fn change_routes(&self) {
        // The next hops that the programs keep outlive a test.
        static EPOCH: AtomicU32 = AtomicU32::new(1);
        let epoch = EPOCH.fetch_add(1, Ordering::Relaxed);
        self.store(maps::ROUTE_EPOCH, 0, epoch);
    }
    /// Changes every entry of a family. `torn`: so that it looks half written.
    pub(crate) fn change_flows<A: Family>(&self, torn: bool, change: impl Fn(&mut FlowEntry<A>)) {
        let table = flow_table::<A>(&self.options().pin_dir).expect("a flow table");
        for (key, mut entry) in entries(&table).expect("entries") {
            change(&mut entry);
            let mut sealed = entry.sealed(&key);
            sealed.check ^= u32::from(torn) << 1;
            table.update(&key, &sealed).expect("an entry");
        }
    }
    /// Makes the ports that are stored for fragments of IPv4 older by one unit of their time.
    pub(crate) fn age_fragments(&self) {
        let table = self.table::<FragmentKey<V4>, u32>(maps::FRAGMENTS_V4);
        for (mut key, ports) in table.entries().expect("entries") {
            table.delete(&key).expect("an entry");
            key.id = FragmentKey::<V4>::id_at(key.id, u32::MAX);
            table.update(&key, &ports).expect("stored");
        }
    }
    /// All entries of IPv4.
    pub(crate) fn all_flows(&self) -> Vec<FlowEntry<V4>> {
        let entries = entries(&self.flow_table()).expect("entries");
        entries.into_iter().map(|(_, entry)| entry).collect()
    }
    /// The verdict on an incoming packet; does not check the counters.
    pub(crate) fn ingress_quietly(&self, packet: &[u8]) -> u32 {
        self.test_run("ingress", packet, &[]).result
    }
    fn test_run(&self, program: &str, packet: &[u8], context: &[u8]) -> TestRun {
        let loaded = self.loaded().program(program).expect("loaded");
        linux::test_run(loaded, packet, context, 1).expect("runs")
    }
    pub(crate) fn reader(&self) -> Reader {
        Reader::open(&self.options().pin_dir).expect("pinned")
    }
    fn counters(&self) -> Vec<u64> {
        self.reader().counters().expect("counters")
    }
    /// The flows, as `portolan flows` shows them.
    pub(crate) fn flows(&self) -> Vec<datapath::read::Flow> {
        self.reader().flows().expect("flows")
    }
    /// The state of a client's flow to a service.
    pub(crate) fn state(&self, client: SocketAddr, service: SocketAddr) -> &'static str {
        let mut flows = self.flows().into_iter();
        let own = flows.find(|flow| flow.client == client && flow.frontend == service);
        own.map_or("gone", |flow| flow.state)
    }
    /// The traffic counted for backends and service ports.
    pub(crate) fn counted(&self) -> Counted {
        self.reader().counted().expect("counted")
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if let Some(loaded) = self.loaded.take() {
            pool::give_back(loaded);
        }
    }
}
