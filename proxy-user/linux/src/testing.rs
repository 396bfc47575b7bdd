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
        mtu: 1500,
        attach: true,
        ..Interface::default()
    }
}
