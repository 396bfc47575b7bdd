// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Parses the arguments of `portolan explain` into client, destination and protocol. Pure. An error
//! is one line that says how to write the argument.

use std::net::{IpAddr, SocketAddr};

use anyhow::{Result, bail};
use proxy_common::Protocol;

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
    Service {
        namespace: String,
        name: String,
        /// The port's number or name, if one is given.
        port: Option<String>,
    },
}

pub(super) fn from(text: &str) -> Result<From> {
    if text == "node" {
        return Ok(From::Node);
    }
    if let Some(pod) = text.strip_prefix("pod/") {
        let Some((namespace, name)) = two(pod) else {
            bail!("--from {text}: write a pod as pod/NAMESPACE/NAME");
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

pub(super) fn to(text: &str) -> Result<To> {
    if let Some(service) = text.strip_prefix("service/") {
        let (service, port) = match service.split_once(':') {
            Some((service, port)) => (service, Some(port.to_owned())),
            None => (service, None),
        };
        let named = two(service).filter(|_| port.as_deref() != Some(""));
        let Some((namespace, name)) = named else {
            bail!(
                "--to {text}: write a service as service/NAMESPACE/NAME or service/NAMESPACE/NAME:PORT"
            );
        };
        return Ok(To::Service {
            namespace,
            name,
            port,
        });
    }
    match text.parse::<SocketAddr>() {
        Ok(socket) if socket.port() != 0 => Ok(To::Address(SocketAddr::new(
            socket.ip().to_canonical(),
            socket.port(),
        ))),
        _ => bail!(
            "--to {text}: write an address with a port (10.96.0.10:53, [fd00::10]:53) or service/NAMESPACE/NAME:PORT"
        ),
    }
}

pub(super) fn protocol(text: &str) -> Result<Protocol> {
    match text.to_ascii_lowercase().as_str() {
        "tcp" => Ok(Protocol::TCP),
        "udp" => Ok(Protocol::UDP),
        "sctp" => Ok(Protocol::SCTP),
        _ => bail!("--protocol {text}: services have tcp, udp and sctp"),
    }
}

/// Splits NAMESPACE/NAME into both names; None if the text has another form.
fn two(text: &str) -> Option<(String, String)> {
    let (namespace, name) = text.split_once('/')?;
    let are_names = !namespace.is_empty() && !name.is_empty() && !name.contains('/');
    are_names.then(|| (namespace.to_owned(), name.to_owned()))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[test]
    fn clients_and_destinations_are_read() {
        assert_eq!(from("node").expect("one"), From::Node);
        let address: IpAddr = "fd00::7".parse().expect("one");
        assert_eq!(from("fd00::7").expect("one"), From::Address(address, 0));
        assert_eq!(from("[fd00::7]:9").expect("one"), From::Address(address, 9));
        let v4: IpAddr = "10.0.0.7".parse().expect("one");
        assert_eq!(from("::ffff:10.0.0.7").expect("one"), From::Address(v4, 0));
        let pod = From::Pod {
            namespace: "shop".into(),
            name: "cart-1".into(),
        };
        assert_eq!(from("pod/shop/cart-1").expect("one"), pod);
        let service = |port: Option<&str>| To::Service {
            namespace: "shop".into(),
            name: "cart".into(),
            port: port.map(Into::into),
        };
        assert_eq!(to("service/shop/cart").expect("one"), service(None));
        assert_eq!(
            to("service/shop/cart:http").expect("one"),
            service(Some("http"))
        );
        let socket = To::Address("10.96.0.1:80".parse().expect("one"));
        assert_eq!(to("10.96.0.1:80").expect("one"), socket);
        assert_eq!(protocol("UDP").expect("one"), Protocol::UDP);
    }

    const ADDRESS: &str = "write an address (10.0.0.7)";
    const POD: &str = "write a pod as pod/NAMESPACE/NAME";
    const PORT: &str = "write an address with a port (";
    const SERVICE: &str = "write a service as service/NAMESPACE/NAME";

    #[rstest]
    #[case("--from", "", ADDRESS)]
    #[case("--from", "pod/cart", POD)]
    #[case("--from", "pod/shop/", POD)]
    #[case("--from", "10.0.0.1:http", ADDRESS)]
    #[case("--from", "300.0.0.1", ADDRESS)]
    #[case("--from", "10.40.1", ADDRESS)]
    #[case("--to", "10.96.0.1", PORT)]
    #[case("--to", "10.96.0.1:0", PORT)]
    #[case("--to", "service/cart", SERVICE)]
    #[case("--to", "service/shop/cart:", SERVICE)]
    #[case("--to", "service/shop/cart/80", SERVICE)]
    #[case("--protocol", "icmp", "services have tcp, udp and sctp")]
    fn a_bad_question_gives_one_error_line_with_the_expected_form(
        #[case] flag: &str,
        #[case] text: &str,
        #[case] advice: &str,
    ) {
        let refused = match flag {
            "--from" => from(text).map(drop),
            "--to" => to(text).map(drop),
            _ => protocol(text).map(drop),
        };
        let said = refused.expect_err("a mistake").to_string();
        let expected = format!("{flag} {text}: {advice}");
        assert!(
            said.starts_with(&expected) && !said.contains('\n'),
            "{said}"
        );
    }
}
