// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Interfaces for unit tests.

use crate::interfaces::{Interface, InterfaceKind};

/// Returns an interface of this kind with ordinary properties.
pub fn interface(index: u32, name: &str, kind: InterfaceKind) -> Interface {
    Interface {
        index,
        name: name.to_owned(),
        kind,
        link_layer: true,
        veth_port: false,
        bridge: None,
        made_by_program: false,
        switch_port: false,
        bridge_port: false,
        mtu: 1500,
        mac: None,
        peer_elsewhere: false,
        queues: false,
        filters_vlans: false,
        isolated: false,
        addresses: Vec::new(),
        sources: Vec::new(),
        driver: String::new(),
        carries: None,
        vlans: false,
        uplink: false,
        attach: true,
        pods: false,
    }
}
