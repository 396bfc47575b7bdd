// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reads the traffic counters of all backends, and the counters of refusals.

use std::{collections::HashMap, net::SocketAddr, path::Path};

use linux::get_pinned;
use proxy_common::{Backend, Counter, V4, V6, maps as names, traffic::Traffic};

use super::{Reader, ServicePort, failed, socket};
use crate::{
    error::DatapathError,
    maps::{
        counted::{RefusedMap, TrafficMap},
        family::Family,
        pins::generations,
    },
};

/// A backend and its counters.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CountedBackend {
    pub address: SocketAddr,
    pub service_id: u32,
    pub generation: u32,
    pub backend_id: u32,
    pub traffic: Traffic,
}

/// All counters at one moment.
#[derive(Clone, Default, Debug)]
pub struct Counted {
    pub backends: Vec<CountedBackend>,
    /// Traffic that belongs to no entry of `backends`: of backends that have no counters of their
    /// own because the map is too small, of backends that are gone, and of an element whose backend
    /// is not counted yet.
    pub others: Traffic,
    /// The part of `others` that never goes back: it stays when a backend goes or its id is reused.
    pub shared: Traffic,
    /// Refused packets and connections: id of the service port (0 for none), the counter that says
    /// why, and how many.
    pub refused: Vec<(u32, Counter, u64)>,
}

impl Reader {
    /// Returns the directory of the maps; None while maps take over from others, and the counts of
    /// both are incomplete.
    pub fn settled(&self) -> Option<&Path> {
        let all = generations(self.home.parent()?).ok()?;
        (all.len() == 1).then_some(self.home.as_path())
    }
    pub fn counted(&self) -> Result<Counted, DatapathError> {
        let mut counted = Counted::default();
        self.counted_of::<V4>(&mut counted)?;
        self.counted_of::<V6>(&mut counted)?;
        let refused = get_pinned(&self.home.join(names::REFUSED), true).and_then(RefusedMap::new);
        let entries = refused.and_then(|refused| refused.entries());
        for (key, count) in entries.map_err(failed(names::REFUSED))? {
            let counter = Counter::ALL.get(key.counter as usize);
            if let Some(counter) = counter.filter(|_| count > 0) {
                counted.refused.push((key.service.0, *counter, count));
            }
        }
        counted.refused.sort_unstable();
        Ok(counted)
    }
    fn counted_of<A: Family>(&self, counted: &mut Counted) -> Result<(), DatapathError> {
        let array = self.array(A::BACKENDS)?;
        let mut backends: Vec<(u32, Backend<A>)> = Vec::new();
        let scanned = array.scan(|id, backend: Backend<A>| {
            if backend.service.0 != 0 {
                backends.push((id, backend));
            }
            false
        });
        scanned.map_err(failed(A::BACKENDS))?;
        let end = backends.last().map_or(1, |(last, _)| last + 1);
        // Both lists are in the order of the ids.
        let mut backends = backends.into_iter().peekable();
        let traffic = get_pinned(&self.home.join(A::TRAFFIC), true).and_then(TrafficMap::new);
        let visit = |id, traffic: Traffic| match backends.next_if(|(next, _)| *next == id) {
            Some((_, backend)) if u64::from(backend.generation) == traffic.generation => {
                counted.backends.push(CountedBackend {
                    address: socket(backend.address, backend.port),
                    service_id: backend.service.0,
                    generation: backend.generation,
                    backend_id: id,
                    traffic,
                });
            }
            // The backend of these counts is gone, or it is not counted yet.
            _ => {
                counted.others.add(&traffic);
                if id == 0 {
                    counted.shared.add(&traffic);
                }
            }
        };
        traffic
            .and_then(|traffic| traffic.each(end, visit))
            .map_err(failed(A::TRAFFIC))
    }
    /// Returns the names of all service ports. Key: id of the service port.
    pub fn into_service_ports(self) -> HashMap<u32, ServicePort> {
        self.names
    }
}

#[cfg(test)]
mod tests {
    use std::fs::create_dir;

    use super::*;

    #[test]
    fn maps_are_settled_while_there_are_no_others() {
        let pins = tempfile::tempdir().expect("a directory");
        let home = pins.path().join(format!("v{}", names::LAYOUT_VERSION));
        create_dir(&home).expect("a directory");
        let reader = Reader::without_names(pins.path()).expect("maps");
        assert_eq!(reader.settled(), Some(home.as_path()));
        create_dir(pins.path().join("v1-1")).expect("a directory");
        assert_eq!(reader.settled(), None);
    }
}
