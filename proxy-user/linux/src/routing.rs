// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Routing rules and XFRM policies (IPsec) of this network namespace, which decide about packets
//! besides routes. By netlink; called by `agent`.

use std::io;

use netlink_sys::protocols::{NETLINK_ROUTE, NETLINK_XFRM};

use super::{
    answers::{none_if, text},
    netlink::{Connection, attribute, number},
    route::HEADER,
};

const GET_RULE: u16 = 34;
const GET_POLICIES_INFO: u16 = 0x25;

/// The parts of a routing rule that can make the stack route a packet differently from the FIB
/// look-up of the kernel programs.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RoutingRule {
    pub priority: u32,
    /// The name of the incoming interface to which the rule is limited; None if it has no limit.
    pub interface: Option<String>,
    /// A condition of the rule that the FIB look-up cannot check, as `ip rule` spells it; None if
    /// there is none.
    pub asks: Option<&'static str>,
}

/// Returns all routing rules for IPv4 and IPv6.
pub fn routing_rules() -> io::Result<Vec<RoutingRule>> {
    let mut found = Vec::new();
    for family in [libc::AF_INET, libc::AF_INET6] {
        let mut request = [0; HEADER];
        request[0] = family as u8;
        let dumped = Connection::open(NETLINK_ROUTE)?.list(GET_RULE, &request, |answer| {
            found.extend(answer.split_at_checked(HEADER).map(rule));
        });
        // A kernel without IPv6 has no rules for it.
        none_if(&[libc::EAFNOSUPPORT, libc::EOPNOTSUPP], dumped)?;
    }
    Ok(found)
}

/// Reads `struct fib_rule_hdr` and its attributes.
fn rule((header, attributes): (&[u8], &[u8])) -> RoutingRule {
    const TOS: usize = 3;
    const INTERFACE: u16 = 3;
    const PRIORITY: u16 = 6;
    const ASKS: [(u16, &str); 5] = [
        (10, "fwmark"),
        (16, "fwmark"),
        (12, "tun_id"),
        (20, "uidrange"),
        (25, "dscp"),
    ];
    let mut asked = ASKS
        .iter()
        .filter(|(kind, _)| attribute(attributes, *kind).is_some());
    let tos = header.get(TOS).is_some_and(|tos| *tos != 0);
    RoutingRule {
        // The kernel omits priority 0.
        priority: number(attributes, PRIORITY).unwrap_or(0),
        interface: attribute(attributes, INTERFACE).map(text),
        asks: asked.next().map(|(_, name)| *name).or(tos.then_some("tos")),
    }
}

/// True if there are XFRM policies (IPsec) other than those of single sockets. A kernel without
/// XFRM has none.
pub fn has_xfrm_policies() -> io::Result<bool> {
    /// Length of the flags with which request and answer begin.
    const FLAGS: usize = 4;
    const COUNTS: u16 = 1;
    let Some(connection) = Connection::open_if_known(NETLINK_XFRM)? else {
        return Ok(false);
    };
    let found = connection.ask_one(GET_POLICIES_INFO, &[0xff; FLAGS], |answer| {
        attribute(answer.get(FLAGS..)?, COUNTS).map(counts_any)
    })?;
    Ok(found.unwrap_or(false))
}

/// True if `struct xfrmu_spdinfo` counts any policy of in, out and forwarded packets. The policies
/// of sockets, which it counts last, are ignored.
fn counts_any(counts: &[u8]) -> bool {
    const OF_ALL: usize = 3 * 4;
    let of_all = counts.get(..OF_ALL).unwrap_or(counts);
    of_all.iter().any(|byte| *byte != 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::{encode, tests::cut_off_anywhere};

    #[test]
    fn conditions_of_a_routing_rule_are_parsed() {
        let plain = [2, 0, 0, 0, 254, 0, 0, 1, 0, 0, 0, 0];
        let mut tos = plain;
        tos[3] = 0x10;
        let read = |header: &[u8], attributes: &[u8]| rule((header, attributes));
        let priority = encode(6, &32766_u32.to_ne_bytes());
        let main = read(&plain, &priority);
        assert_eq!((main.priority, main.asks), (32766, None));
        assert_eq!(main.interface, None);
        assert_eq!(read(&tos, &priority).asks, Some("tos"));
        let mark = [priority.clone(), encode(10, &1_u32.to_ne_bytes())].concat();
        assert_eq!(read(&plain, &mark).asks, Some("fwmark"));
        let ports = [encode(24, &[80, 0, 80, 0]), encode(22, &[6])].concat();
        assert_eq!(read(&plain, &ports).asks, None, "ports are looked up with");
        let by_interface = read(&plain, &encode(3, b"cni0\0"));
        assert_eq!(by_interface.interface.as_deref(), Some("cni0"));
        cut_off_anywhere(&mark, |bytes| _ = read(&plain, bytes));
    }

    #[test]
    fn xfrm_policies_of_sockets_are_not_counted() {
        let counts = |of_all: u32, of_sockets: u32| {
            [0, of_all, 0, of_sockets, 0, 0]
                .map(u32::to_ne_bytes)
                .concat()
        };
        assert!(counts_any(&counts(1, 0)));
        assert!(!counts_any(&counts(0, 1)));
        assert!(!counts_any(&[]));
    }

    #[test]
    fn routing_rules_can_be_listed() {
        let rules = routing_rules().expect("the kernel answers");
        assert!(rules.iter().any(|rule| rule.priority == 32766));
    }
}
