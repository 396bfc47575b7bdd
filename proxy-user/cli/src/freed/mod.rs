// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Words for what the kernel reports of packets, which `explain --follow` and `trace --drops`
//! share: reasons for freeing one, interfaces in several network namespaces, addresses.

pub(crate) mod reasons;

use std::{collections::HashMap, net::IpAddr};

use linux::PodNamespace;
use proxy_common::{Addr, V4, V6};

/// Names of interfaces in several network namespaces.
pub(crate) struct InterfaceNames {
    own: u32,
    known: HashMap<(u32, u32), String>,
}

impl InterfaceNames {
    /// Begins without names. `own`: inode number of this process's network namespace.
    pub(crate) fn new(own: u32) -> Self {
        Self {
            own,
            known: HashMap::new(),
        }
    }

    /// Returns the name of an interface; empty for index 0, which is none.
    pub(crate) fn of(&mut self, namespace: u32, index: u32) -> String {
        if index == 0 {
            return String::new();
        }
        let own = self.own;
        let known = self.known.entry((namespace, index));
        known
            .or_insert_with(|| name_of(namespace, own, index))
            .clone()
    }
}

fn name_of(namespace: u32, own: u32, index: u32) -> String {
    let look = || linux::link(index).map(|link| link.name);
    let name = if namespace == own {
        look()
    } else {
        let there = PodNamespace::with_inode(namespace);
        there.map_or_else(
            || Err(std::io::ErrorKind::NotFound.into()),
            |there| there.run(look),
        )
    };
    name.unwrap_or_else(|_| format!("interface {index}"))
}

/// Returns an address as the programs write it: IPv4 as IPv4-mapped.
pub(crate) fn widened(address: IpAddr) -> V6 {
    match address {
        IpAddr::V4(v4) => V4::from(v4).widened(),
        IpAddr::V6(v6) => v6.into(),
    }
}
