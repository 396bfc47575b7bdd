// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Routing rules and XFRM policies (IPsec) of this network namespace, which decide about packets
//! besides routes. By netlink; called by `agent`.

use std::{
    io,
    net::{IpAddr, Ipv4Addr},
};

use netlink_sys::protocols::{NETLINK_ROUTE, NETLINK_XFRM};

use super::{
    answers::{none_if, text},
    netlink::{Connection, address, attribute, number},
    route::{GET_ROUTE, HEADER, Routed, routed},
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
    /// there is none, or only a mark by which no packet gets another next hop on one interface.
    pub asks: Option<&'static str>,
}

/// Returns all routing rules for IPv4 and IPv6.
pub fn routing_rules() -> io::Result<Vec<RoutingRule>> {
    let mut found = Vec::new();
    for family in [libc::AF_INET, libc::AF_INET6] {
        let mut request = [0; HEADER];
        request[0] = family as u8;
        let (mut rules, mut routes) = (Vec::new(), Vec::new());
        let dumped = Connection::open(NETLINK_ROUTE)?.list(GET_RULE, &request, |answer| {
            rules.extend(answer.split_at_checked(HEADER).map(rule));
        });
        // A kernel without IPv6 has no rules for it.
        none_if(&[libc::EAFNOSUPPORT, libc::EOPNOTSUPP], dumped)?;
        if rules.iter().any(|(_, by_mark, _)| *by_mark) {
            let visit = |answer: &[u8]| routes.extend(next_hop(answer));
            Connection::open(NETLINK_ROUTE)?.list(GET_ROUTE, &request, visit)?;
        }
        found.extend(rules.into_iter().map(|(mut rule, by_mark, table)| {
            let matters = by_mark && table.is_none_or(|table| differs(table, &routes));
            rule.asks = rule.asks.or(matters.then_some("fwmark"));
            rule
        }));
    }
    Ok(found)
}

/// Reads `struct fib_rule_hdr` and its attributes. Also returns whether the rule asks for a mark,
/// which `asks` leaves out, and the table it leads to: 0 for none, None if it is not known.
fn rule((header, attributes): (&[u8], &[u8])) -> (RoutingRule, bool, Option<u32>) {
    const TOS: usize = 3;
    const ACTION: usize = 7;
    const GOTO: u8 = 2;
    const INTERFACE: u16 = 3;
    const PRIORITY: u16 = 6;
    const MARK: u16 = 10;
    const TABLE: u16 = 15;
    const MASK: u16 = 16;
    const VRF: u16 = 19;
    const ASKS: [(u16, &str); 3] = [(12, "tun_id"), (20, "uidrange"), (25, "dscp")];
    let has = |kind: u16| attribute(attributes, kind).is_some();
    let asked = ASKS.iter().find(|(kind, _)| has(*kind));
    let tos = (header[TOS] != 0).then_some("tos");
    // A rule that drops packets has table 0.
    let table = number(attributes, TABLE).filter(|_| header[ACTION] != GOTO && !has(VRF));
    let rule = RoutingRule {
        // The kernel omits priority 0.
        priority: number(attributes, PRIORITY).unwrap_or(0),
        interface: attribute(attributes, INTERFACE).map(text),
        asks: asked.map(|(_, name)| *name).or(tos),
    };
    (rule, has(MARK) || has(MASK), table)
}

/// Reads a route: its table, the interface that packets leave by, or 0 if there are several, and
/// the neighbour: an unspecified address if it is each packet's own destination. None of a route
/// that delivers or drops packets.
fn next_hop(answer: &[u8]) -> Option<(u32, u32, IpAddr)> {
    const LENGTH: usize = 1;
    const DESTINATION: u16 = 1;
    const TABLE: u16 = 15;
    let (header, attributes) = answer.split_at_checked(HEADER)?;
    let table = number(attributes, TABLE)?;
    let to = attribute(attributes, DESTINATION);
    let single = to.filter(|to| 8 * to.len() == usize::from(header[LENGTH]));
    let to = single.and_then(address);
    let to = to.unwrap_or(Ipv4Addr::UNSPECIFIED.into());
    match routed(answer, to) {
        Some(Routed::Leaves {
            interface,
            neighbour,
        }) => Some((table, interface, neighbour)),
        Some(Routed::Here | Routed::None) => None,
        None => Some((table, 0, to)),
    }
}

/// True if packets may leave by one interface to different neighbours, by this table and by others.
fn differs(table: u32, routes: &[(u32, u32, IpAddr)]) -> bool {
    let (own, others): (Vec<_>, Vec<_>) = routes.iter().partition(|route| route.0 == table);
    own.iter().any(|(_, by, to)| {
        let mut others = others.iter();
        others.any(|(_, other, neighbour)| {
            [by, other].contains(&&0) || by == other && to != neighbour
        })
    })
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
        let read = |header: &[u8], attributes: &[u8]| rule((header, attributes)).0;
        let priority = encode(6, &32766_u32.to_ne_bytes());
        let main = read(&plain, &priority);
        assert_eq!((main.priority, main.asks), (32766, None));
        assert_eq!(main.interface, None);
        assert_eq!(read(&tos, &priority).asks, Some("tos"));
        let mark = [priority.clone(), encode(10, &1_u32.to_ne_bytes())].concat();
        assert!(rule((&plain, &mark)).1 && !rule((&plain, &priority)).1);
        let ports = [encode(24, &[80, 0, 80, 0]), encode(22, &[6])].concat();
        assert_eq!(read(&plain, &ports).asks, None, "ports are looked up with");
        let by_interface = read(&plain, &encode(3, b"cni0\0"));
        assert_eq!(by_interface.interface.as_deref(), Some("cni0"));
        cut_off_anywhere(&mark, |bytes| _ = read(&plain, bytes));
    }

    #[test]
    fn the_mark_matters_where_next_hops_differ_on_one_interface() {
        let hop = |table: u32, by: u32, to: [u8; 4], gateway: Option<[u8; 4]>| {
            let mut answer = vec![0; HEADER];
            (answer[1], answer[7]) = (if to[3] == 0 { 24 } else { 32 }, 1);
            let parts = [(15, table.to_ne_bytes()), (4, by.to_ne_bytes()), (1, to)];
            let gateway = gateway.map(|gateway| (5, gateway));
            for (kind, value) in parts.into_iter().chain(gateway) {
                if value != [0; 4] {
                    answer.extend(encode(kind, &value));
                }
            }
            next_hop(&answer).expect("a route")
        };
        let (router, far) = ([10, 0, 0, 1], [10, 9, 0, 0]);
        let main = [hop(254, 2, router, None), hop(254, 3, [10, 1, 0, 0], None)];
        for (route, expected) in [
            (hop(7, 2, far, Some(router)), false),
            (hop(7, 2, far, Some([10, 0, 0, 2])), true),
            (hop(7, 2, far, None), true),
            (hop(7, 3, far, None), false),
            (hop(7, 4, far, Some(router)), false),
            (hop(7, 0, far, None), true),
        ] {
            let all = [main[0], main[1], route];
            assert_eq!((differs(7, &all), differs(0, &all)), (expected, false));
            assert_eq!(differs(254, &all), expected, "{route:?}");
        }
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
