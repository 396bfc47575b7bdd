// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Names for what events only have numbers of: services and endpoints from the pinned maps, pods
//! from the API server or manifests, interfaces from the kernel. Read when something unknown turns
//! up, and not too often.

use std::{
    collections::{HashMap, HashSet},
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use datapath::read::{Asked, By, Reader};
use proxy_common::{
    Counter,
    trace::{Event, Hook, call},
};

use super::compile::Lookup;
use crate::{BadInput, args::ServiceArg, explain::names::Names};

/// The maps are not read again before this time, nor before twenty times as long as reading took.
const PAUSE: Duration = Duration::from_secs(1);
/// An address, port and protocol; no address for a node port.
type End = (Option<IpAddr>, u16, &'static str);

/// What the maps say.
#[derive(Default)]
struct Served {
    frontends: HashMap<End, String>,
    /// By their ids.
    ports: HashMap<u32, ServicePort>,
}

/// A service port.
struct ServicePort {
    /// Namespace, name, and the port's own name.
    name: String,
    /// The numbers of its frontends.
    numbers: Vec<u16>,
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
        };
        known.read_maps()?;
        Ok(known)
    }

    fn read_maps(&mut self) -> Result<()> {
        let start = Instant::now();
        let reader = Reader::open(&self.pin_dir)?;
        let mut served = Served::default();
        for row in reader.frontends()? {
            let name = with_port(&row.service, &row.port_name);
            // The other ports of a cluster IP are of no port.
            if row.service_id != 0 && row.kind != "unserved-ports" {
                let port = served.ports.entry(row.service_id);
                let port = port.or_insert_with(|| ServicePort {
                    name: name.clone(),
                    numbers: Vec::new(),
                });
                port.numbers.push(row.port);
            }
            let end = (row.address, row.port, row.protocol);
            served.frontends.insert(end, name);
        }
        self.served = served;
        self.pause = PAUSE.max(start.elapsed() * 20);
        self.read_at = Instant::now();
        Ok(())
    }

    /// Reads the maps again if it is time.
    pub(super) fn refresh(&mut self) {
        if self.read_at.elapsed() >= self.pause {
            // Maps that are being replaced are read at the next time.
            _ = self.read_maps();
        }
    }

    /// The service port with this id.
    pub(super) fn service(&self, id: u32) -> Option<&str> {
        self.served.ports.get(&id).map(|port| port.name.as_str())
    }

    /// Why the policy refuses a call, which only it knows; none if the call was not refused, or the
    /// maps now say something else.
    pub(super) fn refusal(&self, event: &Event) -> Option<Counter> {
        let hook = Hook::ALL[usize::from(event.hook) % Hook::ALL.len()];
        if !call::is_refusal(hook, event.result) {
            return None;
        }
        let mut reader = Reader::without_names(&self.pin_dir).ok()?;
        let settings = reader.settings().ok()?;
        let to = IpAddr::from(event.before.dst).to_canonical();
        let by = if event.namespace == settings.node_netns {
            By::NodeSocket
        } else {
            By::PodSocket
        };
        let client = match to {
            IpAddr::V4(_) => settings.internal_v4.into(),
            IpAddr::V6(_) => settings.internal_v6.into(),
        };
        let asked = Asked {
            protocol: event.before.protocol,
            client,
            client_port: 0,
            to: SocketAddr::new(to, event.before.dst_port.host()),
            by,
        };
        let explained = reader.explain(&asked).ok()??;
        explained.counter.refuses().then_some(explained.counter)
    }

    /// The service port of a frontend.
    pub(super) fn frontend(&self, end: SocketAddr, protocol: &'static str) -> Option<&str> {
        let frontends = &self.served.frontends;
        let exact = frontends.get(&(Some(end.ip()), end.port(), protocol));
        let other_ports = || frontends.get(&(Some(end.ip()), 0, "any"));
        exact.or_else(other_ports).map(String::as_str)
    }
    /// A pod's namespace and name.
    pub(super) fn pod(&mut self, address: IpAddr) -> Option<&str> {
        if !self.pods.contains_key(&address) && self.silent.is_none() {
            match self.names.pods_at(&HashSet::from([address])) {
                Ok(mut found) => _ = self.pods.insert(address, found.remove(&address)),
                // Each attempt may take seconds.
                Err(error) => self.silent = Some(control::causes::chain(error.as_ref())),
            }
        }
        self.pods.get(&address)?.as_deref()
    }
    /// Why pods are not named.
    pub(super) fn silent(&self) -> Option<&str> {
        self.silent.as_deref()
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

    fn service(&self, service: &ServiceArg) -> Result<Vec<u32>> {
        let ports = self.served.ports.iter();
        let own = ports.filter(|(_, port)| is_of(service, &port.name, &port.numbers));
        let mut ids: Vec<u32> = own.map(|(id, _)| *id).collect();
        if ids.is_empty() {
            bail!(BadInput(format!(
                "filter: no service \"{service}\" is served here; `portolan services` lists them"
            )));
        }
        ids.sort_unstable();
        Ok(ids)
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

/// Whether a service port is meant.
fn is_of(wanted: &ServiceArg, service: &str, numbers: &[u16]) -> bool {
    let (service, port_name) = service.split_once(':').unwrap_or((service, ""));
    let (namespace, name) = service.split_once('/').unwrap_or(("", service));
    let is_port = |wanted: &String| {
        wanted == port_name || wanted.parse().is_ok_and(|one| numbers.contains(&one))
    };
    wanted.name == name
        && wanted.namespace.as_ref().is_none_or(|one| one == namespace)
        && wanted.port.as_ref().is_none_or(is_port)
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
            assert_eq!(
                is_of(&arg, "shop/cart:http", &[80, 30001]),
                meant,
                "{wanted}"
            );
        }
    }
}
