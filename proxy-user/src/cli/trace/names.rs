// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Names for what events only have numbers of: services and endpoints from the pinned maps, pods from the API server or manifests,
//! interfaces from the kernel. Read when something unknown turns up, and not too often.

use std::{
    collections::HashMap,
    net::{IpAddr, Ipv6Addr, SocketAddr},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use proxy_common::{Port, Protocol, V6, trace::Named};

use super::compile::Lookup;
use crate::{
    cli::{BadInput, args::ServiceArg, explain::names::Names},
    datapath::read::Reader,
};

/// The maps are not read again before this time, nor before twenty times as long as reading took.
const PAUSE: Duration = Duration::from_secs(1);
/// Sets that a filter may name: the bits of a word.
const SETS: usize = 32;

/// An address, port and protocol; without an address, a node port.
type End = (Option<IpAddr>, u16, &'static str);

/// What the maps say.
#[derive(Default)]
struct Served {
    frontends: HashMap<End, String>,
    backends: HashMap<End, String>,
}

pub(super) struct Known {
    pin_dir: PathBuf,
    served: Served,
    read_at: Instant,
    pause: Duration,
    names: Names,
    /// None: nobody knows the pod.
    pods: HashMap<IpAddr, Option<String>>,
    /// Why pods' names are no longer asked for.
    silent: Option<String>,
    interfaces: HashMap<u32, String>,
    /// The services that the filter names, in the order of their bits.
    wanted: Vec<ServiceArg>,
}

impl Known {
    pub(super) fn read(pin_dir: &Path, names: Names) -> Result<Self> {
        let mut known = Self {
            pin_dir: pin_dir.into(),
            served: Served::default(),
            read_at: Instant::now(),
            pause: PAUSE,
            names,
            pods: HashMap::new(),
            silent: None,
            interfaces: HashMap::new(),
            wanted: Vec::new(),
        };
        known.read_maps()?;
        Ok(known)
    }

    fn read_maps(&mut self) -> Result<()> {
        let start = Instant::now();
        let reader = Reader::open(&self.pin_dir)?;
        let mut served = Served::default();
        for row in reader.frontends()? {
            let end = (row.address, row.port, row.protocol);
            served
                .frontends
                .insert(end, with_port(&row.service, &row.port_name));
        }
        for row in reader.backends()? {
            let end = (Some(row.address.ip()), row.address.port(), row.protocol);
            served
                .backends
                .insert(end, with_port(&row.service, &row.port_name));
        }
        self.served = served;
        self.pause = PAUSE.max(start.elapsed() * 20);
        self.read_at = Instant::now();
        Ok(())
    }

    /// Reads the maps again if it is time; whether it has.
    pub(super) fn refresh(&mut self) -> bool {
        // Maps that are being replaced are read at the next time.
        self.read_at.elapsed() >= self.pause && self.read_maps().is_ok()
    }

    /// The endpoints of the services that the filter names, with their bits.
    pub(super) fn named(&self) -> Vec<(Named, u32)> {
        let mut found: HashMap<Named, u32> = HashMap::new();
        let all = self.served.frontends.iter().chain(&self.served.backends);
        for ((address, port, protocol), service) in all {
            let wanted = self.wanted.iter().enumerate();
            let bits = wanted
                .filter(|(_, wanted)| is_of(wanted, service, *port))
                .fold(0, |bits, (place, _)| bits | 1 << place);
            if bits != 0 {
                *found.entry(named(*address, *port, protocol)).or_default() |= bits;
            }
        }
        found.into_iter().collect()
    }

    /// The service port of a frontend.
    pub(super) fn frontend(&self, end: SocketAddr, protocol: &'static str) -> Option<&str> {
        let frontends = &self.served.frontends;
        let exact = frontends.get(&(Some(end.ip()), end.port(), protocol));
        let other_ports = || frontends.get(&(Some(end.ip()), 0, "any"));
        exact.or_else(other_ports).map(String::as_str)
    }
    /// The service port of a node port, which any address of the node may have.
    pub(super) fn node_port(&self, port: u16, protocol: &'static str) -> Option<&str> {
        let found = self.served.frontends.get(&(None, port, protocol));
        found.map(String::as_str)
    }
    /// The service port of an endpoint.
    pub(super) fn backend(&self, end: SocketAddr, protocol: &'static str) -> Option<&str> {
        let found = self
            .served
            .backends
            .get(&(Some(end.ip()), end.port(), protocol));
        found.map(String::as_str)
    }

    /// A pod's namespace and name.
    pub(super) fn pod(&mut self, address: IpAddr) -> Option<&str> {
        if !self.pods.contains_key(&address) && self.silent.is_none() {
            match self.names.pod_at(address) {
                Ok(pod) => _ = self.pods.insert(address, pod),
                // Each attempt may take seconds.
                Err(error) => self.silent = Some(crate::causes::chain(error.as_ref())),
            }
        }
        self.pods.get(&address)?.as_deref()
    }
    /// Why pods are not named.
    pub(super) fn silent(&mut self) -> Option<String> {
        self.silent.clone()
    }

    pub(super) fn interface_name(&mut self, index: u32) -> &str {
        self.interfaces
            .entry(index)
            .or_insert_with(|| match nix::net::if_::if_indextoname(index) {
                Ok(name) => name.to_string_lossy().into_owned(),
                Err(_) => format!("interface {index}"),
            })
    }
}

impl Lookup for Known {
    fn interface(&self, name: &str) -> Result<u32> {
        nix::net::if_::if_nametoindex(name)
            .map_err(|_| BadInput(format!("filter: there is no interface {name:?}")).into())
    }

    fn service(&mut self, service: &ServiceArg) -> Result<u32> {
        let place = self.wanted.iter().position(|known| known == service);
        let place = place.unwrap_or(self.wanted.len());
        if place == self.wanted.len() {
            let frontends = self.served.frontends.iter();
            let mut all = frontends.chain(&self.served.backends);
            if !all.any(|((_, port, _), name)| is_of(service, name, *port)) {
                bail!(BadInput(format!(
                    "filter: no service {:?} is served here; `portolan services` lists them",
                    service.name
                )));
            }
            if place == SETS {
                bail!(BadInput(format!("filter: at most {SETS} services")));
            }
            self.wanted.push(service.clone());
        }
        Ok(1 << place)
    }

    fn pod(&mut self, namespace: &str, name: &str) -> Result<Vec<IpAddr>> {
        self.names
            .pod(namespace, name)
            .with_context(|| format!("filter: pod {namespace}/{name}"))
    }
}

fn with_port(service: &str, port_name: &str) -> String {
    match port_name {
        "" => service.to_owned(),
        name => format!("{service}:{name}"),
    }
}

/// Whether a service port is meant. Of a backend, `port` is not the service's.
fn is_of(wanted: &ServiceArg, service: &str, port: u16) -> bool {
    let (service, port_name) = service.split_once(':').unwrap_or((service, ""));
    let (namespace, name) = service.split_once('/').unwrap_or(("", service));
    let is_port =
        |wanted: &String| wanted == port_name || wanted.parse::<u16>().is_ok_and(|one| one == port);
    wanted.name == name
        && wanted.namespace.as_ref().is_none_or(|one| one == namespace)
        && wanted.port.as_ref().is_none_or(is_port)
}

fn named(address: Option<IpAddr>, port: u16, protocol: &str) -> Named {
    let address = match address {
        None => Ipv6Addr::UNSPECIFIED,
        Some(IpAddr::V4(v4)) => v4.to_ipv6_mapped(),
        Some(IpAddr::V6(v6)) => v6,
    };
    let protocol = [Protocol::TCP, Protocol::UDP, Protocol::SCTP]
        .into_iter()
        .find(|one| one.name() == protocol && port != 0)
        .unwrap_or(Protocol::ANY);
    Named {
        address: V6::from(address),
        port: Port::from_host(port),
        protocol: protocol.0,
        _pad: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_is_meant_by_name_namespace_and_port() {
        for (wanted, meant) in [
            ("cart", true),
            ("shop/cart", true),
            ("shop/cart:http", true),
            ("shop/cart:80", true),
            ("shop/cart:81", false),
            ("other/cart", false),
            ("car", false),
        ] {
            let arg = wanted.parse().expect("a service");
            assert_eq!(is_of(&arg, "shop/cart:http", 80), meant, "{wanted}");
        }
    }

    #[test]
    fn every_other_port_of_a_cluster_ip_is_its_address_alone() {
        let address = "10.96.0.10".parse().ok();
        let other = named(address, 0, "any");
        assert_eq!((other.port, other.protocol), (Port::ANY, 0));
        let port = named(address, 80, "TCP");
        assert_eq!((port.port.host(), port.protocol), (80, 6));
        let node_port = named(None, 30001, "UDP");
        assert_eq!(node_port.address, V6 { octets: [0; 16] });
    }
}
