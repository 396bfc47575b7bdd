// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Parses the arguments of `portolan explain` into client, destination and protocol. Pure. An error
//! is one line that says how to write the argument.

use std::net::{IpAddr, SocketAddr};

use anyhow::{Context, Result, bail};
use proxy_common::Protocol;

use crate::{
    args::{ServiceArg, protocol_named},
    names::EndArg,
};

/// The client that the user asks about.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum From {
    /// A process of this node.
    Node,
    /// An IP address and a port; the port is 0 if none is given.
    Address(IpAddr, u16),
    Pod {
        namespace: String,
        name: String,
    },
}

/// The destination that the user asks about.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum To {
    Address(SocketAddr),
    /// If no namespace is given, only one service may have the name.
    Service(ServiceArg),
}

/// Parses the client. `namespace`: of a pod that is written without one.
pub(super) fn from(text: &str, namespace: Option<&str>) -> Result<From> {
    if text == "node" {
        return Ok(From::Node);
    }
    if text.starts_with("pod/") {
        let pod = text.parse::<EndArg>().ok();
        let Some((namespace, name)) = pod.and_then(|pod| pod.pod(namespace)) else {
            bail!("--from {text}: write a pod as pod/NAMESPACE/NAME, or pod/NAME with --namespace");
        };
        return Ok(From::Pod { namespace, name });
    }
    // Programs that serve both IP families log clients as ::ffff:10.0.0.7.
    if let Ok(address) = text.parse::<IpAddr>() {
        return Ok(From::Address(address.to_canonical(), 0));
    }
    match text.parse::<SocketAddr>() {
        Ok(socket) => Ok(From::Address(socket.ip().to_canonical(), socket.port())),
        Err(_) => bail!(
            "--from {text}: write an address (10.0.0.7), one with a port (10.0.0.7:40000, [fd00::7]:40000), pod/NAMESPACE/NAME, or \
             node for a process of this node"
        ),
    }
}

/// Parses the destination. `namespace`: of a service that is written without one.
pub(super) fn to(text: &str, namespace: Option<&str>) -> Result<To> {
    if let Ok(socket) = text.parse::<SocketAddr>()
        && socket.port() != 0
    {
        let ip = socket.ip().to_canonical();
        return Ok(To::Address(SocketAddr::new(ip, socket.port())));
    }
    let Ok(mut service) = text.parse::<ServiceArg>() else {
        bail!(
            "--to {text}: write an address with a port (10.96.0.10:53, [fd00::10]:53), or a service as NAME, NAMESPACE/NAME, or either with :PORT"
        );
    };
    service.namespace = service.namespace.or_else(|| namespace.map(str::to_owned));
    Ok(To::Service(service))
}

pub(super) fn protocol(text: &str) -> Result<Protocol> {
    protocol_named(text)
        .with_context(|| format!("--protocol {text}: services have tcp, udp and sctp"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_and_destinations_are_read() {
        let pod = || From::Pod {
            namespace: "shop".into(),
            name: "cart-1".into(),
        };
        let v4: IpAddr = "10.0.0.7".parse().expect("one");
        let v6: IpAddr = "fd00::7".parse().expect("one");
        for (text, client) in [
            ("node", From::Node),
            ("fd00::7", From::Address(v6, 0)),
            ("[fd00::7]:9", From::Address(v6, 9)),
            ("::ffff:10.0.0.7", From::Address(v4, 0)),
            ("pod/shop/cart-1", pod()),
            ("pod/cart-1", pod()),
        ] {
            assert_eq!(from(text, Some("shop")).expect("one"), client, "{text}");
        }
        for (text, namespace, service) in [
            ("cart", Some("shop"), "shop/cart"),
            ("shop/cart:http", Some("other"), "shop/cart:http"),
            ("cart:80", None, "cart:80"),
        ] {
            let service = To::Service(service.parse().expect("one"));
            assert_eq!(to(text, namespace).expect("one"), service, "{text}");
        }
        let socket = To::Address("10.96.0.1:80".parse().expect("one"));
        assert_eq!(to("10.96.0.1:80", None).expect("one"), socket);
        assert_eq!(protocol("UDP").expect("one"), Protocol::UDP);
    }

    /// A flag, its value, and what the error says.
    const BAD: &str = include_str!("bad_questions.txt");

    #[test]
    fn a_bad_question_gives_one_error_line_with_the_expected_form() {
        for [flag, text, advice] in control::testing::rows(BAD) {
            let refused = match &*flag {
                "--from" => from(&text, None).map(drop),
                "--to" => to(&text, None).map(drop),
                _ => protocol(&text).map(drop),
            };
            let said = refused.expect_err("a mistake").to_string();
            let begins = said.starts_with(&format!("{flag} {text}: {advice}"));
            assert!(begins && !said.contains('\n'), "{said}");
        }
    }
}
