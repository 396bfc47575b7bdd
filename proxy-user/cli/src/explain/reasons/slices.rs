// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The entries of a service's EndpointSlices, and why one is not in the maps. Pure.

use std::{fmt::Display, net::SocketAddr};

use control::model::parse;
use k8s_openapi::api::{
    core::v1::Pod,
    discovery::v1::{EndpointPort, EndpointSlice},
};
use proxy_common::Protocol;
use source::named::{self, ListedEndpoint};

use super::{Reason, Wanted, listed, pods};

/// One endpoint of a slice, for the port that is asked for.
#[derive(Clone, Debug)]
pub(in crate::explain) struct Entry<'a> {
    slice: &'a EndpointSlice,
    wanted: Wanted<'a>,
    pub(in crate::explain) endpoint: ListedEndpoint,
    /// The endpoint's address as the slice has it.
    text: &'a str,
    /// The port that connections go to, or why there is none.
    pub(super) port: Result<u16, Reason>,
}

impl<'a> Wanted<'a> {
    /// Returns the endpoints of all slices of the wanted address family.
    pub(in crate::explain) fn entries(self) -> Vec<Entry<'a>> {
        let slices = self.objects.slices.iter();
        let of_family = slices.filter(|slice| slice.address_type == self.family());
        let entries = of_family.flat_map(|slice| {
            let port = port_of(slice, self);
            let texts = slice.endpoints.iter().map(|endpoint| {
                let first = endpoint.addresses.first();
                first.map_or("", String::as_str)
            });
            let both = named::listed(slice).into_iter().zip(texts);
            both.map(move |(endpoint, text)| Entry {
                slice,
                wanted: self,
                endpoint,
                text,
                port: port.clone(),
            })
        });
        entries.collect()
    }
}

/// Returns the number that a slice has for the wanted port.
fn port_of(slice: &EndpointSlice, wanted: Wanted<'_>) -> Result<u16, Reason> {
    let (port, protocol) = (wanted.port(), wanted.protocol.name());
    let ports = slice.ports.as_deref().unwrap_or_default();
    let name = |port: &EndpointPort| port.name.clone().unwrap_or_default();
    let named = ports.iter().filter(|port| name(port) == wanted.port);
    let named: Vec<_> = named.collect();
    let mut fitting = named.iter();
    let fitting = fitting.find(|port| is_protocol(port.protocol.as_deref(), wanted.protocol));
    let number = fitting.and_then(|port| u16::try_from(port.port?).ok());
    let because = match (number.filter(|number| *number != 0), fitting) {
        (Some(number), _) => return Ok(number),
        (None, Some(_)) => format!("gives the {port} no number"),
        _ if ports.is_empty() => "has no ports".to_owned(),
        _ if named.is_empty() => {
            let has = ports.iter().map(|port| match name(port) {
                name if name.is_empty() => "one without a name".to_owned(),
                name => name,
            });
            format!("has no {port} (it has: {})", listed(has))
        }
        _ => {
            let protocols = named.iter().map(|port| port.protocol.clone());
            let protocols = listed(protocols.map(|name| name.unwrap_or_else(|| "TCP".to_owned())));
            format!("has the {port} for {protocols} only, and {protocol} is asked for")
        }
    };
    let words: [&dyn Display; 4] = [&name_of(slice), &because, &port, &protocol];
    Err(Reason::of("port-differs", &words))
}

pub(super) fn is_protocol(text: Option<&str>, protocol: Protocol) -> bool {
    parse::protocol(text) == Some(protocol)
}

fn name_of(slice: &EndpointSlice) -> &str {
    slice.metadata.name.as_deref().unwrap_or_default()
}

impl Entry<'_> {
    /// Returns the address and port that connections go to; None if the maps cannot have it.
    pub(in crate::explain) fn address(&self) -> Option<SocketAddr> {
        let port = *self.port.as_ref().ok()?;
        Some(SocketAddr::new(self.endpoint.address?, port))
    }

    /// Returns the address as the report lists it.
    pub(in crate::explain) fn shown(&self) -> String {
        match (self.address(), self.endpoint.address) {
            (Some(address), _) if self.is_held() => address.to_string(),
            (_, Some(address)) => address.to_string(),
            (..) => self.text.to_owned(),
        }
    }

    /// Returns whether the maps hold such an endpoint, once it is applied.
    fn is_held(&self) -> bool {
        self.endpoint.ready || self.endpoint.serving
    }

    /// Returns the pod as `pod NAME`, or the address if no pod is named.
    pub(super) fn name(&self) -> String {
        match &self.endpoint.pod {
            Some(pod) => format!("pod {pod}"),
            None => self.shown(),
        }
    }

    pub(in crate::explain) fn slice_name(&self) -> &str {
        name_of(self.slice)
    }

    /// Returns the endpoint's pod, if it is known.
    pub(super) fn pod(&self) -> Option<&Pod> {
        let wanted = self.endpoint.pod.as_ref()?;
        let (_, name) = wanted.split_once('/')?;
        let mut pods = self.wanted.objects.pods.iter();
        pods.find(|pod| pod.metadata.name.as_deref() == Some(name))
    }

    /// Returns the entry's rank: of those for one address and port the maps have the highest.
    pub(in crate::explain) fn rank(&self) -> [bool; 3] {
        let one = &self.endpoint;
        [one.ready, one.serving, !one.terminating]
    }

    /// Returns why the maps do not have the endpoint.
    pub(in crate::explain) fn absent(&self) -> Reason {
        match (self.refused(), &self.port) {
            (Some(reason), _) => reason,
            (None, Err(reason)) => reason.clone(),
            _ if self.is_held() && (self.endpoint.ready || self.endpoint.terminating) => {
                let what = "listed by Kubernetes, and not in the maps";
                self.wanted.not_applied(what)
            }
            _ => self.not_ready(),
        }
    }

    /// Returns why an endpoint that is not ready is so.
    pub(in crate::explain) fn not_ready(&self) -> Reason {
        if self.endpoint.terminating {
            return Reason::of("not-serving", &[]);
        }
        let remedy = match (&self.endpoint.pod, self.pod()) {
            (_, Some(pod)) => return pods::not_ready(pod),
            (Some(name), None) => {
                let (namespace, name) = name.split_once('/').unwrap_or(("default", name));
                format!("see why: `kubectl -n {namespace} describe pod {name}`")
            }
            (None, None) => {
                let slice = self.slice_name();
                format!("EndpointSlice {slice} says so (conditions): see who writes it")
            }
        };
        Reason::of("unready", &[&remedy])
    }

    /// Returns why the agent takes no such address as an endpoint.
    fn refused(&self) -> Option<Reason> {
        let name = self.slice_name();
        let address = parse::address(self.text);
        let because = match (self.text, address, address.and_then(parse::flaw)) {
            ("", ..) => format!("an entry of EndpointSlice {name} has no address"),
            (text, None, _) => format!("{text:?} of EndpointSlice {name} is no IP address"),
            (_, _, Some(flaw)) => format!("{flaw}, which other hosts cannot reach: refused"),
            (_, Some(address), _) if address.is_ipv6() != self.wanted.v6 => {
                let family = self.wanted.family();
                format!("not of its EndpointSlice's addressType {family}: refused")
            }
            _ => return None,
        };
        Some(Reason::of("address-refused", &[&because, &name]))
    }
}
