// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Stores what the agent would store about the node: interfaces, addresses, settings, links.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use clap::ValueEnum;
use config::set_allocated;
use datapath::{NodeAddress, maps::family::Family};
use linux::{Plain, interfaces::PodLink};
use proxy_common::{
    FlowKey, Port, Protocol, Settings, V4, V6,
    maps::{self, interface},
    masquerade::{MasqueradeSources, PortRanges},
    xdp::{Abilities, Uplink},
};

use crate::{
    kernel::table,
    model::wire::Tuple,
    packets::{OTHER_MAC, text},
    services::{self, Interface, NodeSettings, POD_MAC, ROUTER_MAC},
    subject::{IDLE, Subject},
};

impl Subject {
    /// Stores an element of a map.
    fn store<K: Plain, V: Plain>(&self, map: &str, key: K, value: V) {
        let stored = table(&self.options.pin_dir, map).update(&key, &value);
        stored.expect("an element");
    }
    pub(crate) fn place_interfaces(&self) {
        const UPLINK_SOURCE: u32 = 1;
        let mut source = MasqueradeSources::NONE;
        source.v4.0[0].address = V4::of_ip(services::uplink_address(false)).expect("IPv4");
        source.v6.0[0].address = V6::of_ip(services::uplink_address(true)).expect("IPv6");
        self.store(maps::MASQUERADE_SOURCES, UPLINK_SOURCE, source);
        // The bridge's address is that of the frames that are addressed to no port.
        self.store(maps::MACS, interface::mac(OTHER_MAC), 1_u32);
        let uplink = Interface::Uplink.index();
        self.store(maps::SHARED_INTERFACES, uplink, uplink);
        for one in Interface::value_variants() {
            let mut bits = 0;
            for (is, bit) in [
                (one.has_pods(), interface::PODS),
                (!one.has_pods(), UPLINK_SOURCE),
                (one.is_bridge_port(), interface::BRIDGE_PORT),
                (one.redirects(), interface::REDIRECTS),
            ] {
                bits |= if is { bit } else { 0 };
            }
            self.store(maps::INTERFACES, one.index(), interface::word(bits, 0));
        }
    }
    /// Stores what redirecting packets needs: links of a pod, and the agent's entry for the uplink.
    pub(crate) fn place_links(&mut self) {
        let at = Interface::PodA;
        let link = |v6| PodLink {
            address: services::pod(at, v6),
            interface: at.index(),
            mtu: 1500,
            destination: POD_MAC,
            source: at.mac(),
        };
        let links = [false, true].map(link);
        self.datapath().set_pods(&links).expect("pods");
        let word = Uplink::new(Interface::Uplink.mac(), Abilities::ALL);
        self.store(maps::UPLINKS, Interface::Uplink.index(), word.0);
    }
    pub(crate) fn place_node(&mut self) {
        let all = [false, true].into_iter().flat_map(services::node_addresses);
        // Node ports are served at loopback, too: to the node's processes, not to what comes in.
        let loopback = [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
        let all = all.chain(loopback).map(|address: IpAddr| NodeAddress {
            address,
            node_ports: address.is_loopback() || address == services::node(address.is_ipv6()),
        });
        let addresses: Vec<_> = all.collect();
        let datapath = self.datapath();
        let stored = datapath.set_node_addresses(&addresses);
        stored.expect("node addresses");
        datapath.set_idle_times(IDLE);
    }
    pub(crate) fn configure(&mut self, wanted: NodeSettings) {
        if self.settings == Some(wanted) {
            return;
        }
        let mut settings = Settings::EMPTY;
        settings.flags = wanted.flags;
        settings.masquerade_ports = PortRanges([wanted.ports.0, wanted.ports.1, 0, 0]);
        settings.internal_v4 = V4::of_ip(services::node(false)).expect("IPv4");
        settings.internal_v6 = V6::of_ip(services::node(true)).expect("IPv6");
        settings.pods_v4[0] = V4::prefix(services::pod_range(false)).expect("IPv4");
        settings.pods_v6[0] = V6::prefix(services::pod_range(true)).expect("IPv6");
        if wanted.allocated {
            set_allocated(&mut settings, &[false, true].map(services::service_range));
        }
        self.datapath().set_settings(&settings).expect("settings");
        self.settings = Some(wanted);
    }
}

/// Returns the node's addresses, routes and neighbours of a family as commands of iproute2.
pub(crate) fn routes(v6: bool) -> String {
    let (length, options) = if v6 { (128, "nodad") } else { (32, "") };
    let uplink = Interface::Uplink.name();
    let mut script = String::new();
    for address in services::node_addresses(v6) {
        script += &format!("addr add {address}/{length} {options} dev {uplink}\n");
    }
    for (to, interface, mac) in [
        (services::router(v6), Interface::Uplink, ROUTER_MAC),
        (services::pod(Interface::PodA, v6), Interface::PodA, POD_MAC),
        (services::pod(Interface::PodB, v6), Interface::PodB, POD_MAC),
        (services::pod(Interface::PodC, v6), Interface::PodC, POD_MAC),
    ] {
        let (name, mac) = (interface.name(), text(mac));
        script += &format!(
            "route add {to}/{length} dev {name}\nneigh add {to} lladdr {mac} dev {name} nud permanent\n"
        );
    }
    let router = services::router(v6);
    script + &format!("route add default via {router} dev {uplink}\n")
}

/// Returns the key of a tuple, without an interface.
pub(crate) fn key<A: Family>(Tuple { protocol, src, dst }: Tuple) -> FlowKey<A> {
    let address = |at: SocketAddr| A::of_ip(at.ip()).expect("of the family");
    let [from, to] = [src, dst].map(|at| Port::from_host(at.port()));
    FlowKey::new(address(src), from, address(dst), to, Protocol(protocol))
}

/// Returns the slot of a reply tuple in the map `direct`.
pub(crate) fn direct(reply: Tuple) -> u32 {
    let (slot, _) = match reply.src.is_ipv4() {
        true => key::<V4>(reply).fingerprint(),
        false => key::<V6>(reply).fingerprint(),
    };
    slot
}
