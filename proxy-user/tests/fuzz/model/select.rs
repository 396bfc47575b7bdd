// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Policy and selection: the arguments for `decide`, and the backends that a client may get.

use std::net::{IpAddr, SocketAddr};

use proxy_common::{EndpointSet, FrontendKind, Origin, Verdict, decide, verdict::Policy};

use super::{
    AffinityEntry, Given, Live, Model,
    wire::{ACK, Headers, SYN, Tuple},
};
use crate::services::{Backend, Frontend, is_node, pod_range};

impl Model {
    /// Returns the verdict on a client's first packet to a frontend.
    pub(crate) fn verdict(
        &self,
        given: &Given<'_>,
        client: IpAddr,
        live: &Live,
        frontend: &Frontend,
    ) -> Verdict {
        let flags = live.service.flags(frontend);
        let v6 = frontend.at.is_ipv6();
        let any = |external| {
            let set = live.in_set(flags.set_of_block(external), v6);
            set.iter().any(Backend::is_wanted)
        };
        let allowed = live
            .service
            .sources
            .iter()
            .any(|range| range.contains(&client));
        let policy = Policy {
            masquerade_all: self.settings.masquerade_all,
            detects_pods: self.settings.detects_pods,
        };
        let origin = self.origin(given, client);
        decide(flags, origin, policy, any(false), any(true), allowed)
    }
    fn origin(&self, given: &Given<'_>, client: IpAddr) -> Origin {
        let is_pod = if self.settings.by_interface {
            given.interface.has_pods()
        } else {
            self.settings.detects_pods && pod_range(client.is_ipv6()).contains(&client)
        };
        if is_pod {
            Origin::Pod
        } else if is_node(client) {
            Origin::Host
        } else {
            Origin::External
        }
    }
    /// Returns the backend of a client's session affinity if it is valid and in the set; else None.
    pub(crate) fn held(&self, live: &Live, client: IpAddr, set: EndpointSet) -> Option<Backend> {
        let timeout = u64::from(live.service.affinity);
        let AffinityEntry {
            backend,
            incarnation,
            last_used,
        } = *self.affinity.get(&(live.service.name.clone(), client))?;
        let holds = timeout > 0
            && self.now - last_used <= timeout
            && live.incarnations.get(&backend) == Some(&incarnation);
        let mut of_set = live.in_set(set, backend.is_ipv6()).into_iter();
        of_set.find(|one| holds && one.at == backend)
    }
    /// Returns client and backend of each affinity whose backend serves, expired or not, sorted.
    pub(crate) fn affinities(&self) -> Vec<(IpAddr, SocketAddr)> {
        let held = self
            .affinity
            .iter()
            .filter(|((name, _), held)| self.serves(name, held.backend, held.incarnation));
        let mut held: Vec<_> = held
            .map(|((_, client), held)| (*client, held.backend))
            .collect();
        held.sort();
        held
    }
    /// Returns true if a mid-stream segment to the frontend may be answered with a reset: never at
    /// an address of the node.
    pub(crate) fn answers_for(&self, frontend: &Frontend, headers: &Headers) -> bool {
        let Tuple { src, dst, .. } = headers.tuple;
        match frontend.kind {
            FrontendKind::NodePort => false,
            FrontendKind::ClusterIp => true,
            // Another node may have this address too and masquerade with it; then the segment is a
            // backend's answer to that node.
            _ => {
                let is_answer = headers.flags & (SYN | ACK) == SYN | ACK
                    || self.backend_ports.contains(&src.port());
                !is_node(dst.ip()) && !is_answer
            }
        }
    }
}
