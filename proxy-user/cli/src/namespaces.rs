// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Finds the addresses of the network namespaces of this host that are visible to this process:
//! those of processes, and those that have a name. Called by `affinity`.

use std::{collections::HashMap, io, net::IpAddr};

use linux::{
    namespaces::{inside, others},
    network_namespace,
};

/// Returns the addresses of each network namespace. Key: the namespace's cookie (the kernel's id).
/// Omits loopback and link-local addresses, and namespaces that cannot be entered.
pub(super) fn addresses() -> HashMap<u64, Vec<IpAddr>> {
    let here = || Ok((network_namespace()?, own_addresses()?));
    let others = others();
    let others = others.iter().filter_map(|file| inside(file, here).ok());
    here().into_iter().chain(others).collect()
}

fn own_addresses() -> io::Result<Vec<IpAddr>> {
    let mut found = Vec::new();
    for interface in nix::ifaddrs::getifaddrs()? {
        let Some(address) = interface.address else {
            continue;
        };
        let v4 = address.as_sockaddr_in().map(|v4| IpAddr::from(v4.ip()));
        let v6 = || address.as_sockaddr_in6().map(|v6| IpAddr::from(v6.ip()));
        let is_reached = |ip: &IpAddr| match ip {
            IpAddr::V4(v4) => !v4.is_loopback() && !v4.is_link_local(),
            IpAddr::V6(v6) => !v6.is_loopback() && !v6.is_unicast_link_local(),
        };
        found.extend(v4.or_else(v6).filter(is_reached));
    }
    found.sort_unstable();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_network_namespace_of_this_process_is_found() {
        let own = network_namespace().expect("a cookie");
        let addresses = addresses();
        let own = addresses.get(&own).expect("it is there");
        assert!(own.iter().all(|address| !address.is_loopback()));
    }
}
