// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A network namespace with three veths and a flow table. At one veth is the real XDP program, at
//! the others are bare ones.

use std::{
    os::fd::{AsFd, OwnedFd},
    path::PathBuf,
};

use anyhow::{Context, Result, ensure};
use control::{
    object::ObjectName,
    plan::{FamilyPlan, ServicePlan},
};
use datapath::{
    Capacities, Datapath, Options, XdpMode,
    cleanup::cleanup,
    maps::{pins::map_path, tables::Table},
};
use lab::{
    bpf::{Packets, attach_xdp, load_xdp},
    load::frames::{Generator, MOST_FLOWS, client, datagram, looking_mirror, mirror, sink},
    node::netns::NetNs,
};
use linux::{
    get_pinned,
    interfaces::{Interface, InterfaceKind},
};
use proxy_common::{
    Backend, BackendId, FlowEntry, FlowKey, FlowKind, FlowState, FrontendKind, Port, Protocol,
    Settings, V4,
    flow::{ClientInterface, Offload, SPARE},
    maps,
    xdp::Abilities,
};

use crate::plan::{self, family};

const NODE_PORT: u16 = 30_080;
const BACKEND_PORT: u16 = 8080;
const NODE: [u8; 4] = [192, 168, 50, 11];
const BACKEND: [u8; 4] = [10, 0, 0, 2];
/// The MAC address of that end of each veth where the program is.
const OWN_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];
const REAL: u32 = 12;
const BARE: u32 = 22;
const LOOKING: u32 = 32;

/// The program that is measured.
#[derive(Clone, Copy)]
pub(crate) enum Variant {
    /// The bare program, which only exchanges the MAC addresses.
    Bare,
    /// The bare program with one look-up of the flow in addition.
    Looking,
    Real,
}

pub(crate) struct Node {
    netns: NetNs,
    datapath: Option<Datapath>,
    pin_dir: PathBuf,
    generator: Generator,
    count: Packets,
    _links: Vec<OwnedFd>,
}

impl Drop for Node {
    fn drop(&mut self) {
        drop(self.datapath.take());
        let _ = self.netns.enter(|| cleanup(&self.pin_dir, true));
    }
}

impl Node {
    pub(crate) fn open() -> Result<Self> {
        let netns = NetNs::new("node")?;
        let own = OWN_MAC.map(|byte| format!("{byte:02x}")).join(":");
        let mut script = String::from("link set lo up\n");
        for (name, index) in [("real", REAL), ("bare", BARE), ("looking", LOOKING)] {
            script += &format!(
                "link add {name} index {index} address {own} type veth peer name {name}-far index {}\n\
                 link set {name} up\nlink set {name}-far up\n",
                index + 1
            );
        }
        let [backend, node] = [BACKEND, NODE].map(std::net::Ipv4Addr::from);
        script += &format!(
            "address add {node}/24 dev real\nroute add {backend}/32 dev real\n\
             neigh add {backend} lladdr 02:00:00:00:00:09 dev real nud permanent\n"
        );
        netns.ip(&script)?;
        netns.set(&[("ipv4/ip_forward", "1")])?;
        let pin_dir = PathBuf::from(format!(
            "/sys/fs/bpf/portolan-bench-xdp-{}",
            std::process::id()
        ));
        let options = Options {
            pin_dir: pin_dir.clone(),
            capacities: Capacities {
                flows: 1 << 19,
                ..Capacities::default()
            },
            xdp: Some(XdpMode::Native),
            ..Options::default()
        };
        let mut datapath = Datapath::open(&options)?;
        let mut settings = Settings::EMPTY;
        settings.flags |= Settings::UNFILTERED;
        datapath.set_settings(&settings)?;
        let name = ObjectName::new("bench", "web");
        let failures = datapath.apply(&[(name, service())]).failures;
        ensure!(failures.is_empty(), "{failures:?}");
        fill(&pin_dir)?;
        let count = Packets::new()?;
        let macs = [[2, 0, 0, 0, 0, 6], OWN_MAC];
        let generator = Generator::new(datagram(macs, NODE.into(), NODE_PORT))?;
        let (sink, mirror) = (load_xdp(&sink(count.map()))?, load_xdp(&mirror())?);
        let flows = get_pinned(&map_path(&pin_dir, maps::FLOWS_V4), false)?;
        let looking = load_xdp(&looking_mirror(&flows))?;
        let links = netns.enter(|| {
            let refused = datapath.attach_uplink(&interface(), XdpMode::Native, Abilities::ALL);
            refused.map_err(|refusal| anyhow::anyhow!("{refusal:?}"))?;
            Ok::<_, anyhow::Error>(vec![
                attach_xdp(mirror.as_fd(), BARE, false)?,
                attach_xdp(looking.as_fd(), LOOKING, false)?,
                attach_xdp(sink.as_fd(), REAL + 1, false)?,
                attach_xdp(sink.as_fd(), BARE + 1, false)?,
                attach_xdp(sink.as_fd(), LOOKING + 1, false)?,
            ])
        })??;
        Ok(Self {
            netns,
            datapath: Some(datapath),
            pin_dir,
            generator,
            count,
            _links: links,
        })
    }

    /// Returns how many frames a second come back. `flows`: how many flows the frames belong to, a
    /// power of two.
    pub(crate) fn rate(&self, way: Variant, flows: u32, frames: u32) -> Result<f64> {
        // Frames that come first and are not measured: so many of each flow, but at least so many
        // in all.
        const FIRST: u32 = 2;
        const AT_LEAST: u32 = 10_000;
        let interface = match way {
            Variant::Bare => BARE + 1,
            Variant::Looking => LOOKING + 1,
            Variant::Real => REAL + 1,
        };
        self.generator.aim(flows, interface)?;
        let first = (FIRST * flows).max(AT_LEAST);
        let count = || self.count.read();
        let (came, took) = self
            .generator
            .send_most(&self.netns, [first, frames], count)?;
        Ok(came as f64 / took)
    }
}

fn interface() -> Interface {
    Interface {
        mac: Some(OWN_MAC),
        driver: "veth".into(),
        uplink: true,
        ..linux::testing::interface(REAL, "real", InterfaceKind::Uplink)
    }
}

fn service() -> ServicePlan {
    let any = V4 { octets: [0; 4] };
    let backend = std::iter::once(V4 { octets: BACKEND });
    let v4 = family(
        FrontendKind::NodePort,
        (any, NODE_PORT),
        backend,
        BACKEND_PORT,
    );
    plan::service(Protocol::UDP, v4, FamilyPlan::default())
}

/// Inserts the entries of established flows for the direction to the backend; XDP looks up no
/// others here.
fn fill(pin_dir: &std::path::Path) -> Result<()> {
    let open = |map| get_pinned(&map_path(pin_dir, map), false);
    let backends: Table<u32, Backend<V4>> = Table::new(open(maps::BACKENDS_V4)?)?;
    let mut ids = 1..64;
    let wanted = V4 { octets: BACKEND };
    let (id, backend) = ids
        .find_map(|id| {
            let backend = backends.lookup(&id).ok()??;
            (backend.address == wanted).then_some((id, backend))
        })
        .context("the backend's element")?;
    // The interface has as many clients as flows, like a hardware uplink, so it is marked as
    // shared.
    let shared: Table<u32, u32> = Table::new(open(maps::SHARED_INTERFACES)?)?;
    shared.update(&REAL, &REAL)?;
    let flows: Table<FlowKey<V4>, FlowEntry<V4>> = Table::new(open(maps::FLOWS_V4)?)?;
    let (mut keys, mut entries) = (Vec::new(), Vec::new());
    for n in 0..MOST_FLOWS {
        let (address, port) = client(n);
        let key = FlowKey::new(
            V4 {
                octets: address.octets(),
            },
            Port::from_host(port),
            V4 { octets: NODE },
            Port::from_host(NODE_PORT),
            Protocol::UDP,
        );
        let entry = FlowEntry {
            check: 0,
            kind: FlowKind::ORIGINAL,
            flags: FlowEntry::<V4>::MASQUERADE,
            port: Port::from_host(BACKEND_PORT),
            address: V4 { octets: BACKEND },
            masquerade: V4 { octets: NODE },
            client_port: key.src_port,
            masquerade_port: Port::from_host((n as u16).max(1)),
            service: backend.service,
            backend: BackendId(id),
            generation: backend.generation,
            interface: ClientInterface::SHARED,
            state: FlowState::ESTABLISHED,
            last_seen: 1,
            sequence: 0,
            reuse: 0,
            slot: 0,
            offload: Offload::NONE,
            _pad: SPARE,
        };
        entries.push(entry.sealed(&key));
        keys.push(key);
    }
    let refused = flows.update_all(&keys, &entries);
    ensure!(refused.is_empty(), "{} flows find no room", refused.len());
    Ok(())
}
