// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where a Gateway is served: at addresses of its own, or at those of a Service that is made for
//! it. Pure functions.

use std::{net::IpAddr, sync::Arc};

use super::{attach::Refused, names};
use crate::{
    model::{Gateway, GatewayClass, Role, Service, parse},
    object::ObjectName,
};

/// Where a Gateway has its addresses from.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Addressed {
    /// It has some of its own.
    Itself,
    /// A Service of type LoadBalancer is to have them.
    ByService,
    /// It is refused, or none of its addresses can be used.
    #[default]
    Unknown,
}

/// The Service of type LoadBalancer that is made for a Gateway without addresses.
#[derive(Clone, Copy, Debug)]
pub(super) enum Balancer<'a> {
    There(&'a Service),
    /// It is to be made.
    Awaited,
    /// A Service of users has its name.
    NameTaken,
    /// It does not exist, and the setting does not let it be made.
    NotMade,
}

impl<'a> Balancer<'a> {
    pub(super) fn there(self) -> Option<&'a Service> {
        match self {
            Self::There(service) => Some(service),
            Self::Awaited | Self::NameTaken | Self::NotMade => None,
        }
    }

    /// Returns why the Gateway has no address yet.
    pub(super) fn unaddressed(self, gateway: &ObjectName) -> String {
        let name = names::made_for(gateway).name;
        match self {
            Self::There(_) | Self::Awaited => {
                format!("Service {name} has no address from a load balancer yet")
            }
            Self::NameTaken => format!(
                "it gets no load balancer, because a Service of users is called {name}, as its own would be; rename that Service, or give the Gateway spec.addresses"
            ),
            Self::NotMade => "it has no addresses; give it spec.addresses, or set portolan.gatewayServices for a Service of type LoadBalancer".to_owned(),
        }
    }
}

/// Where a Gateway is served.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Addresses {
    pub(super) ips: Vec<IpAddr>,
    /// The addresses for its status, each with its type.
    pub(super) said: Vec<(&'static str, Arc<str>)>,
    /// Addresses that it asks for and cannot have.
    pub(super) unusable: Vec<String>,
    pub(super) from: Addressed,
    /// Why the Gateway is not served at all.
    pub(super) refused: Option<Refused>,
}

impl Addresses {
    pub(super) fn of(gateway: &Gateway, class: &GatewayClass, made: Option<&Service>) -> Self {
        let mut addresses = Self {
            refused: refusal(gateway, class),
            ..Self::default()
        };
        if addresses.refused.is_some() {
            return addresses;
        }
        let given = gateway.addresses.iter();
        // An address without a value may be any.
        let mut given = given.filter(|address| !address.value.is_empty()).peekable();
        if given.peek().is_none() {
            addresses.from = Addressed::ByService;
            let role = made.map(|made| &made.role);
            if let (Some(service), Some(Role::Made(made))) = (made, role) {
                addresses.ips.extend(&service.load_balancer_ips);
                addresses.said.extend(made.published.iter().map(|text| {
                    let is_ip = parse::address(text).is_some();
                    let kind = if is_ip { "IPAddress" } else { "Hostname" };
                    (kind, Arc::clone(text))
                }));
            }
            return addresses;
        }
        for address in given {
            let text = &address.value;
            let usable = match parse::address(text) {
                None => Err(format!("{text:?} is not an IP address")),
                Some(ip) => parse::flaw(ip).map_or(Ok(ip), |flaw| Err(format!("{text} is {flaw}"))),
            };
            match usable {
                Ok(ip) => {
                    addresses.from = Addressed::Itself;
                    addresses.ips.push(ip);
                    addresses.said.push(("IPAddress", text.as_str().into()));
                }
                Err(why) => addresses.unusable.push(why),
            }
        }
        addresses
    }
}

/// Returns why a Gateway is not served at all.
fn refusal(gateway: &Gateway, class: &GatewayClass) -> Option<Refused> {
    let parameters = if class.has_parameters {
        format!(
            "GatewayClass {} has parametersRef, and this controller has no parameters; remove it there",
            gateway.class
        )
    } else if gateway.infrastructure.parameters_ref.is_some() {
        "infrastructure.parametersRef is set, and this controller has no parameters; remove it"
            .to_owned()
    } else {
        let mut given = gateway.addresses.iter().flat_map(|address| &address.kind);
        let other = given.find(|kind| *kind != "IPAddress")?;
        let message = format!(
            "addresses of the type {other} are not supported; use IPAddress, or none for those of a load balancer"
        );
        return Some(("UnsupportedAddress", message));
    };
    Some(("InvalidParameters", parameters))
}
