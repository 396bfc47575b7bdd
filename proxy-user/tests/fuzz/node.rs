// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Stores what the agent would store about the node: interfaces, addresses, settings, links.

use std::net::SocketAddr;

use config::set_allocated;
use datapath::NodeAddress;
use linux::interfaces::PodLink;
use proxy_common::{
    FlowKey, Port, Prefix, Protocol, Settings, V4, V6,
    maps::{self, interface},
    masquerade::{MasqueradeSources, PortRanges},
    xdp::{Abilities, Uplink},
};

use crate::{
    model::wire::Tuple,
    packets::OTHER_MAC,
    services::{self, Interface, NodeSettings, POD_MAC, ROUTER_MAC, v4, v6},
    subject::{IDLE, Subject, table},
};

impl Subject {
    pub(crate) fn place_interfaces(&self) {
        const UPLINK_SOURCE: u32 = 1;
        let pin_dir = &self.options.pin_dir;
        let mut source = MasqueradeSources::NONE;
        source.v4.0[0].address = v4(services::uplink_address(false)).expect("IPv4");
        source.v6.0[0].address = v6(services::uplink_address(true)).expect("IPv6");
        table(pin_dir, maps::MASQUERADE_SOURCES)
            .update(&UPLINK_SOURCE, &source)
            .expect("an element");
        // The bridge's address is that of the frames that are addressed to no port.
        table::<u64, u32>(pin_dir, maps::MACS)
            .update(&interface::mac(OTHER_MAC), &1)
            .expect("an element");
        let interfaces = table::<u32, u64>(pin_dir, maps::INTERFACES);
        let shared = table::<u32, u32>(pin_dir, maps::SHARED_INTERFACES);
        for one in Interface::ALL {
            let bits = if one.has_pods() {
                interface::PODS
            } else {
                shared
                    .update(&one.index(), &one.index())
                    .expect("an element");
                UPLINK_SOURCE
            };
            let port = if one.is_bridge_port() {
                interface::BRIDGE_PORT
            } else {
                0
            };
            let leaves = if one.redirects() {
                interface::REDIRECTS
            } else {
                0
            };
            let word = interface::word(bits | port | leaves, 0);
            interfaces.update(&one.index(), &word).expect("an element");
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
        table::<u32, u64>(&self.options.pin_dir, maps::UPLINKS)
            .update(&Interface::Uplink.index(), &word.0)
            .expect("an element");
    }
    pub(crate) fn place_node(&mut self) {
        let mut addresses = Vec::new();
        for v6 in [false, true] {
            let all = [
                services::node,
                services::other_node_address,
                services::uplink_address,
            ];
            for (n, address) in all.iter().enumerate() {
                addresses.push(NodeAddress {
                    address: address(v6),
                    node_ports: n == 0,
                });
            }
        }
        let datapath = self.datapath();
        datapath
            .set_node_addresses(&addresses)
            .expect("node addresses");
        datapath.set_idle_times(IDLE);
    }
    pub(crate) fn configure(&mut self, wanted: NodeSettings) {
        if self.settings == Some(wanted) {
            return;
        }
        let mut settings = Settings::EMPTY;
        // A test run ends before the stack, so it cannot show what netfilter would do there.
        settings.flags = Settings::UNFILTERED;
        for (is, flag) in [
            (wanted.masquerade_all, Settings::MASQUERADE_ALL),
            (wanted.detects_pods, Settings::DETECTS_PODS),
            (wanted.by_interface, Settings::PODS_BY_INTERFACE),
            (wanted.mark_only, Settings::MARK_ONLY),
            (wanted.resets, Settings::RESET_UNKNOWN),
            (wanted.answer_ping, Settings::ANSWER_PING),
        ] {
            settings.flags |= if is { flag } else { 0 };
        }
        settings.masquerade_ports = PortRanges([wanted.ports.0, wanted.ports.1, 0, 0]);
        settings.internal_v4 = v4(services::node(false)).expect("IPv4");
        settings.internal_v6 = v6(services::node(true)).expect("IPv6");
        let pods = |v6| services::pod_range(v6);
        settings.pods_v4[0] = Prefix {
            address: v4(pods(false).network()).expect("IPv4"),
            mask: v4(pods(false).netmask()).expect("IPv4"),
        };
        settings.pods_v6[0] = Prefix {
            address: v6(pods(true).network()).expect("IPv6"),
            mask: v6(pods(true).netmask()).expect("IPv6"),
        };
        if wanted.allocated {
            set_allocated(&mut settings, &[false, true].map(services::service_range));
        }
        self.datapath().set_settings(&settings).expect("settings");
        self.settings = Some(wanted);
    }
}

/// Returns the node's addresses, routes and neighbours of a family as commands of iproute2.
pub(crate) fn routes(v6: bool) -> String {
    let text = |mac: [u8; 6]| mac.map(|byte| format!("{byte:02x}")).join(":");
    let (length, options) = if v6 { (128, "nodad") } else { (32, "") };
    let uplink = Interface::Uplink.name();
    let mut script = String::new();
    for address in [
        services::node,
        services::other_node_address,
        services::uplink_address,
    ] {
        let address = address(v6);
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
    script
        + &format!(
            "route add default via {} dev {uplink}\n",
            services::router(v6)
        )
}

/// Returns the slot of a reply tuple in the map `direct`.
pub(crate) fn direct(reply: Tuple) -> u32 {
    let Tuple { protocol, src, dst } = reply;
    let (from, to) = (Port::from_host(src.port()), Port::from_host(dst.port()));
    let protocol = Protocol(protocol);
    match (src, dst) {
        (SocketAddr::V4(src), SocketAddr::V4(dst)) => {
            FlowKey::<V4>::new((*src.ip()).into(), from, (*dst.ip()).into(), to, protocol)
                .fingerprint()
                .0
        }
        (SocketAddr::V6(src), SocketAddr::V6(dst)) => {
            FlowKey::<V6>::new((*src.ip()).into(), from, (*dst.ip()).into(), to, protocol)
                .fingerprint()
                .0
        }
        _ => 0,
    }
}
