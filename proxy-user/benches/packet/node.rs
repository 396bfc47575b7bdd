// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A datapath with many services, and packets for them.

use std::net::IpAddr;

use anyhow::Result;
use control::{
    object::ObjectName,
    plan::{BackendPlan, FamilyPlan, FrontendPlan, PortPlan, ServicePlan},
};
use datapath::{
    Capacities, Datapath, Options, XdpMode,
    maps::{family::Family, pins::map_path, tables::Table},
};
use etherparse::PacketBuilder;
use lab::node::bpffs::PinDir;
use linux::{Plain, get_pinned};
use proxy_common::{EndpointSet, FrontendKind, Port, Protocol, ServiceFlags, Settings, V4, V6};

use crate::bare::{CLIENTS, Offsets};

pub(crate) const SERVICE_PORT: u16 = 80;
pub(crate) const BACKEND_PORT: u16 = 8080;
/// The base of the backends' addresses: that of service `n` has the address `BACKENDS + n`.
pub(crate) const BACKENDS: u32 = 0x10_0000;
/// The node's own address, the source of masqueraded packets.
const OWN: u32 = 0x40_0000;
/// The capacity of the flow tables: enough for every first packet of all runs.
pub(crate) const FLOWS: u32 = 1 << 20;

/// Loaded programs and filled maps; the programs are attached to nothing.
pub(crate) struct Node {
    pub(crate) datapath: Datapath,
    pub(crate) pins: PinDir,
}

impl Node {
    /// Opens a node with so many services. `past`: all packets are masqueraded, past the stack.
    pub(crate) fn open(size: u32, past: bool) -> Result<Self> {
        let pins = PinDir::new();
        let options = Options {
            pin_dir: pins.path().to_owned(),
            capacities: Capacities {
                frontends: 131_072,
                records: 131_072,
                backends: 131_072,
                slots: 262_144,
                flows: FLOWS,
                flows_v6: FLOWS,
                ..Capacities::default()
            },
            redirects: past,
            xdp: past.then_some(XdpMode::Native),
            ..Options::default()
        };
        let mut datapath = Datapath::open(&options)?;
        let mut settings = Settings::EMPTY;
        if past {
            settings.flags |= Settings::MASQUERADE_ALL;
            (settings.internal_v4, settings.internal_v6) = (V4::address(OWN), V6::address(OWN));
        }
        datapath.set_settings(&settings)?;
        let named = |n: u32| (ObjectName::new("bench", &n.to_string()), service(n));
        let changes: Vec<_> = (1..=size).map(named).collect();
        let failures = datapath.apply(&changes).failures;
        anyhow::ensure!(failures.is_empty(), "{failures:?}");
        Ok(Self { datapath, pins })
    }
    pub(crate) fn table<K: Plain, V: Plain>(&self, map: &str) -> Result<Table<K, V>> {
        let pin = get_pinned(&map_path(self.pins.path(), map), false)?;
        Ok(Table::new(pin)?)
    }
}

/// The kinds of packets that the bench sends.
#[derive(Clone, Copy)]
pub(crate) enum Kind {
    Syn,
    Ack,
    Udp,
}

/// The MAC address of the interface that packets of test runs come in by.
const LOOPBACK_MAC: [u8; 6] = [0; 6];

/// The addresses of one IP family in the bench's packets, and the offsets of the fields.
pub(crate) trait Ends: Family {
    /// Returns the address with the number `n` in its last bytes.
    fn address(n: u32) -> Self;
    const OFFSETS: Offsets;

    fn packet(kind: Kind) -> Vec<u8> {
        let (src, dst) = (Self::address(CLIENTS + 1), Self::address(1));
        let ethernet = PacketBuilder::ethernet2([2; 6], LOOPBACK_MAC);
        let ends = match (src.into(), dst.into()) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => ethernet.ipv4(src.octets(), dst.octets(), 64),
            (IpAddr::V6(src), IpAddr::V6(dst)) => ethernet.ipv6(src.octets(), dst.octets(), 64),
            _ => unreachable!("both are of one family"),
        };
        let mut packet = Vec::new();
        let written = if matches!(kind, Kind::Udp) {
            ends.udp(40_000, SERVICE_PORT).write(&mut packet, &[])
        } else {
            let segment = ends.tcp(40_000, SERVICE_PORT, 1, 512);
            let segment = match kind {
                Kind::Syn => segment.syn(),
                _ => segment.ack(1),
            };
            segment.write(&mut packet, &[])
        };
        written.expect("a vector takes every byte");
        packet
    }
}

impl Ends for V4 {
    fn address(n: u32) -> Self {
        let [_, b, c, d] = n.to_be_bytes();
        Self {
            octets: [10, b, c, d],
        }
    }
    const OFFSETS: Offsets = Offsets {
        src: 26,
        dst: 30,
        ports: 34,
        hops: 22,
        key_src: 0,
        key_dst: 4,
        key_ports: 8,
        first_octet: 10,
    };
}

impl Ends for V6 {
    fn address(n: u32) -> Self {
        let mut octets = [0; 16];
        octets[0] = 0xfd;
        octets[12..].copy_from_slice(&n.to_be_bytes());
        Self { octets }
    }
    const OFFSETS: Offsets = Offsets {
        src: 34,
        dst: 50,
        ports: 54,
        hops: 21,
        key_src: 12,
        key_dst: 28,
        key_ports: 32,
        first_octet: 0,
    };
}

/// Returns the service with the number `n`, which has one port, in both families.
fn service(n: u32) -> ServicePlan {
    ServicePlan {
        ports: vec![PortPlan {
            name: "".into(),
            protocol: Protocol::TCP,
            port: Port::from_host(SERVICE_PORT),
            affinity_timeout: 0,
            source_ranges: Vec::new(),
            v4: family(n),
            v6: family(n),
        }],
        ..ServicePlan::default()
    }
}

fn family<A: Ends>(n: u32) -> FamilyPlan<A> {
    let flags = ServiceFlags::new(FrontendKind::ClusterIp);
    FamilyPlan {
        frontends: vec![FrontendPlan {
            address: A::address(n),
            port: Port::from_host(SERVICE_PORT),
            flags: flags.with(ServiceFlags::HAS_ENDPOINTS, true),
        }],
        backends: vec![BackendPlan {
            address: A::address(BACKENDS + n),
            port: Port::from_host(BACKEND_PORT),
            sets: EndpointSet::CLUSTER,
            weight: 1,
            local_weight: None,
        }],
    }
}
