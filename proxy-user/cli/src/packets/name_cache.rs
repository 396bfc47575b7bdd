// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Looks up names for the ids and addresses in events: of services and endpoints in the pinned
//! maps, of pods in the API server or manifests. The maps are read again from time to time.

use std::{
    collections::HashMap,
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Result, bail};
use datapath::read::{Asked, By, Reader};
use proxy_common::{
    Counter,
    trace::{Event, Hook, call},
};

use crate::{
    args::{ServiceArg, split_port},
    frame::{BadInput, port_label},
    names::{NameArgs, Names},
};

/// The least pause between two reads of the maps; it is at least twenty times a read's time.
const PAUSE: Duration = Duration::from_secs(1);
/// A frontend: its address, port and protocol; the address is None for a node port.
type End = (Option<IpAddr>, u16, &'static str);

/// Names that were looked up so far.
pub(crate) struct NameCache {
    pin_dir: PathBuf,
    frontends: HashMap<End, String>,
    /// The service ports: NAMESPACE/NAME of the service, and after a colon the port's own name if
    /// it has one; and the port numbers of all its frontends. Key: their id.
    ports: HashMap<u32, (String, Vec<u16>)>,
    read_at: Instant,
    pause: Duration,
    pods: Names,
}

impl NameCache {
    pub(crate) fn read(pin_dir: &Path, names: &NameArgs) -> Result<Self> {
        let mut known = Self {
            pin_dir: pin_dir.into(),
            frontends: HashMap::new(),
            ports: HashMap::new(),
            read_at: Instant::now(),
            pause: PAUSE,
            pods: Names::new(names),
        };
        known.read_maps()?;
        Ok(known)
    }

    fn read_maps(&mut self) -> Result<()> {
        let start = Instant::now();
        let reader = Reader::open(&self.pin_dir)?;
        let (mut frontends, mut ports) = (HashMap::new(), HashMap::new());
        for row in reader.frontends()? {
            let name = port_label(&row.service, &row.port_name);
            // The frontend for ports that a cluster IP does not serve is of no service port.
            if row.service_id != 0 && row.kind != "unserved-ports" {
                let port = ports.entry(row.service_id);
                let (_, numbers) = port.or_insert_with(|| (name.clone(), Vec::new()));
                numbers.push(row.port);
            }
            frontends.insert((row.address, row.port, row.protocol), name);
        }
        (self.frontends, self.ports) = (frontends, ports);
        self.pause = PAUSE.max(start.elapsed() * 20);
        self.read_at = Instant::now();
        Ok(())
    }

    pub(crate) fn refresh(&mut self) {
        if self.read_at.elapsed() >= self.pause {
            // Reading fails while the agent replaces maps; the next read succeeds.
            _ = self.read_maps();
        }
    }

    /// Returns the name of the service port with this id.
    pub(crate) fn service(&self, id: u32) -> Option<&str> {
        self.ports.get(&id).map(|(name, _)| name.as_str())
    }

    /// Returns the ids of the service ports that this argument means.
    pub(crate) fn services(&self, service: &ServiceArg) -> Result<Vec<u32>> {
        let ports = self.ports.iter();
        let own = ports.filter(|(_, (name, numbers))| {
            let (name, port) = split_port(name);
            service.means(name) && service.means_port(port, numbers)
        });
        let mut ids: Vec<u32> = own.map(|(id, _)| *id).collect();
        if ids.is_empty() {
            bail!(BadInput(format!(
                "no service \"{service}\" is served here; `portolan services` lists them"
            )));
        }
        ids.sort_unstable();
        Ok(ids)
    }

    /// Returns why the policy refused a socket call, by deciding again from the present maps.
    pub(crate) fn refusal(&self, event: &Event) -> Option<Counter> {
        let hook = Hook::ALL[usize::from(event.hook) % Hook::ALL.len()];
        if !call::is_refusal(hook, event.result) {
            return None;
        }
        let mut reader = Reader::without_names(&self.pin_dir).ok()?;
        let settings = reader.settings().ok()?;
        let to = IpAddr::from(event.before.dst).to_canonical();
        let by = match event.namespace == settings.node_netns {
            true => By::NodeSocket,
            false => By::PodSocket,
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

    /// Returns the name of the service port that has this frontend; None if no port has it.
    pub(crate) fn frontend(&self, end: SocketAddr, protocol: &'static str) -> Option<&str> {
        let frontends = &self.frontends;
        let exact = frontends.get(&(Some(end.ip()), end.port(), protocol));
        let other_ports = || frontends.get(&(Some(end.ip()), 0, "any"));
        exact.or_else(other_ports).map(String::as_str)
    }

    /// Returns the namespace and name of the pod with this address; None if it is unknown.
    pub(crate) fn pod(&mut self, address: IpAddr) -> Option<String> {
        self.pods.learn([address].into_iter());
        self.pods.at(address).map(|name| name.to_string())
    }
}
