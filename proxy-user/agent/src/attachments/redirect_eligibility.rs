// SPDX-License-Identifier: Apache-2.0 OR MIT
//! With `forwarding: auto`, decides whether packets that come in by an interface may bypass the
//! kernel's network stack, and if not, why. Pure; called by `foreign_programs`.

use control::{causes::chain, object::Warning};
use datapath::{ChainPosition, ForeignProgram};
use linux::{
    RoutingRule,
    interfaces::{Interface, InterfaceKind},
};

/// What decides, besides the kernel's routes, where packets go: routing rules, and whether there
/// are IPsec policies. A field is an error text if the kernel did not let it be read.
#[derive(Clone, Debug)]
pub(super) struct Routing {
    pub(super) rules: Result<Vec<RoutingRule>, String>,
    pub(super) has_policies: Result<bool, String>,
}

impl Routing {
    /// Reads the routing rules and the IPsec policies of this network namespace.
    pub(super) fn read() -> Self {
        Self {
            rules: linux::routing_rules()
                .map_err(|error| format!("routing rules could not be read: {}", chain(&error))),
            has_policies: linux::has_xfrm_policies()
                .map_err(|error| format!("XFRM policies could not be read: {}", chain(&error))),
        }
    }
    /// True if there are only the kernel's own routing rules, which hold for all packets alike.
    pub(super) fn is_plain(&self) -> bool {
        self.rules
            .as_ref()
            .is_ok_and(|rules| rules.iter().all(is_own))
    }
    /// Returns why IPsec policies force every packet through the stack; None without such policies.
    pub(super) fn policies(&self) -> Option<String> {
        match &self.has_policies {
            Ok(false) => None,
            Ok(true) => {
                Some("there are XFRM policies (IPsec), which only the stack follows".to_owned())
            }
            Err(error) => Some(error.clone()),
        }
    }
}

/// True if this is one of the three rules that every node has: for the tables `local`, `main` and
/// `default`.
pub(super) fn is_own(rule: &RoutingRule) -> bool {
    [0, 32_766, 32_767].contains(&rule.priority) && rule.interface.is_none()
}

/// True if packets may be handed directly to the pod behind an interface with these foreign
/// programs. False if one is at its egress: it would not see these packets.
pub(super) fn is_open(programs: &Result<Vec<ForeignProgram>, String>) -> bool {
    programs
        .as_ref()
        .is_ok_and(|programs| !programs.iter().any(|program| program.egress))
}

/// Why packets take the stack, as a text for a warning.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Reason {
    /// Concerns packets that come in by any interface of the node.
    Node(String),
    /// Concerns packets that come in by one interface.
    Interface(String),
}

impl Reason {
    pub(super) fn warning(self, interface: &str) -> Warning {
        let (object, reason) = match self {
            Self::Node(reason) => ("forwarding".to_owned(), reason),
            Self::Interface(reason) => (format!("interface {interface}"), reason),
        };
        Warning {
            object,
            reason: format!("packets take the node's stack, whatever forwarding says: {reason}"),
        }
    }
}

/// Returns the first reason why packets that come in by `interface` need the stack; None if they
/// may bypass it. `all`: the node's interfaces; `programs`: the foreign programs at `interface`.
pub(super) fn reason(
    interface: &Interface,
    all: &[Interface],
    programs: &Result<Vec<ForeignProgram>, String>,
    routing: &Routing,
) -> Option<Reason> {
    if interface.kind == InterfaceKind::Loopback {
        return None;
    }
    routing
        .policies()
        .map(Reason::Node)
        .or_else(|| of_rules(interface, all, &routing.rules))
        .or_else(|| of_interface(interface))
        .or_else(|| of_programs(programs))
}

fn of_rules(
    interface: &Interface,
    all: &[Interface],
    rules: &Result<Vec<RoutingRule>, String>,
) -> Option<Reason> {
    let rules = match rules {
        Ok(rules) => rules,
        Err(error) => return Some(Reason::Node(error.clone())),
    };
    let concerning = rules
        .iter()
        .filter(|rule| may_concern(rule.interface.as_deref(), interface, all));
    let said = concerning.filter_map(|rule| {
        let asks = rule.asks?;
        let priority = rule.priority;
        let why = format!(
            "the routing rule with priority {priority} asks for {asks}, which only the stack knows"
        );
        Some(match rule.interface {
            None => Reason::Node(why),
            Some(_) => Reason::Interface(why),
        })
    });
    said.min_by_key(|reason| matches!(reason, Reason::Interface(_)))
}

/// True if a routing rule for packets that come in by the interface `name` may hold for those of
/// `interface`. False if another interface has that name. A VRF's name stands for all of its ports.
pub(super) fn may_concern(name: Option<&str>, interface: &Interface, all: &[Interface]) -> bool {
    let Some(name) = name else {
        return true;
    };
    let is_in = |index| Some(index) == interface.bridge || index == interface.index;
    let named = all.iter().find(|other| other.name == name);
    named.is_none_or(|named| is_in(named.index) || named.kind == InterfaceKind::Other)
}

fn of_interface(interface: &Interface) -> Option<Reason> {
    let reason = if interface.made_by_program {
        "it is a tun or tap device, whose frames only the stack checks"
    } else if interface.switch_port {
        "it is a port of an Open vSwitch, whose flows decide about every packet"
    } else {
        return None;
    };
    Some(Reason::Interface(reason.to_owned()))
}

fn of_programs(programs: &Result<Vec<ForeignProgram>, String>) -> Option<Reason> {
    let programs = match programs {
        Ok(programs) => programs,
        Err(error) => {
            return Some(Reason::Interface(format!(
                "foreign programs could not be read: {error}"
            )));
        }
    };
    let skipped = programs
        .iter()
        .find(|program| !program.egress && program.place != ChainPosition::Before)?;
    let at = match skipped.place {
        ChainPosition::Bridge => "at its bridge",
        _ => "behind portolan's",
    };
    let name = &skipped.name;
    Some(Reason::Interface(format!(
        "{name} at ingress {at} would not see them"
    )))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use linux::testing::interface;

    pub(crate) fn program(egress: bool, place: ChainPosition, name: &str) -> ForeignProgram {
        let name = name.into();
        ForeignProgram {
            egress,
            place,
            name,
        }
    }

    fn rule(interface: Option<&str>, asks: Option<&'static str>) -> RoutingRule {
        RoutingRule {
            priority: 100,
            interface: interface.map(Into::into),
            asks,
            by_mark: false,
        }
    }

    fn node() -> Vec<Interface> {
        use InterfaceKind::{Bridge, BridgePort, Loopback, Other, Uplink};
        let mut port = interface(4, "veth1", BridgePort);
        port.bridge = Some(3);
        vec![
            interface(1, "lo", Loopback),
            interface(2, "eth0", Uplink),
            interface(3, "cni0", Bridge),
            port,
            interface(5, "vrf0", Other),
        ]
    }

    /// Returns the names of the interfaces whose packets need the stack with these rules.
    fn left(rules: &[RoutingRule]) -> Vec<String> {
        let (all, routing) = (node(), plain(rules));
        let left = |one: &&Interface| reason(one, &all, &Ok(vec![]), &routing).is_some();
        all.iter()
            .filter(left)
            .map(|one| one.name.clone())
            .collect()
    }

    fn plain(rules: &[RoutingRule]) -> Routing {
        Routing {
            rules: Ok(rules.to_vec()),
            has_policies: Ok(false),
        }
    }

    #[test]
    fn egress_programs_and_custom_routing_rules_exclude_redirects_to_pods() {
        let program = |egress| program(egress, ChainPosition::Behind, "program 1");
        assert!(is_open(&Ok(vec![])) && is_open(&Ok(vec![program(false)])));
        assert!(!is_open(&Ok(vec![program(true)])) && !is_open(&Err("busy".into())));
        let at = |priority, interface: Option<&str>| RoutingRule {
            priority,
            ..rule(interface, None)
        };
        let own = [at(0, None), at(32_766, None), at(32_767, None)];
        assert!(plain(&own).is_plain());
        assert!(!plain(&[at(100, None)]).is_plain());
        assert!(!plain(&[at(32_766, Some("eth0"))]).is_plain());
    }

    #[test]
    fn routing_rules_that_no_fib_lookup_follows_exclude_the_interfaces_they_apply_to() {
        let everywhere = &["eth0", "cni0", "veth1", "vrf0"][..];
        for (rules, expected) in [
            (vec![rule(None, None), rule(Some("cni0"), None)], &[][..]),
            (vec![rule(None, Some("fwmark"))], everywhere),
            (vec![rule(Some("eth0"), Some("tos"))], &["eth0"]),
            (vec![rule(Some("cni0"), Some("tos"))], &["cni0", "veth1"]),
            (vec![rule(Some("vrf0"), Some("tos"))], everywhere),
            (vec![rule(Some("ppp0"), Some("tos"))], everywhere),
            (vec![rule(Some("lo"), Some("uidrange"))], &[]),
        ] {
            assert_eq!(left(&rules), expected, "{rules:?}");
        }
    }

    #[test]
    fn a_redirect_obstacle_of_the_whole_node_is_reported_for_the_node() {
        let all = node();
        let rules = Ok(vec![
            rule(Some("eth0"), Some("tos")),
            rule(None, Some("fwmark")),
        ]);
        for (rules, has_policies, part) in [
            (rules, Ok(false), "fwmark"),
            (Ok(vec![]), Ok(true), "XFRM"),
            (Err("refused".to_owned()), Ok(false), "refused"),
        ] {
            let routing = Routing {
                rules,
                has_policies,
            };
            let found = reason(&all[1], &all, &Ok(vec![]), &routing);
            assert!(matches!(found, Some(Reason::Node(why)) if why.contains(part)));
        }
    }

    #[test]
    fn foreign_programs_that_redirecting_would_skip_are_named() {
        let all = node();
        for (egress, place, is_reason) in [
            (false, ChainPosition::Behind, true),
            (false, ChainPosition::Bridge, true),
            (false, ChainPosition::Before, false),
            (true, ChainPosition::Behind, false),
        ] {
            let programs = Ok(vec![program(egress, place, "program 7 (police)")]);
            let found = reason(&all[3], &all, &programs, &plain(&[]));
            assert_eq!(found.is_some(), is_reason, "{programs:?}");
            if let Some(found) = found {
                let said = found.warning("veth1").to_string();
                assert!(said.contains("interface veth1") && said.contains("program 7 (police)"));
            }
        }
    }

    #[test]
    fn packets_from_a_tap_device_take_the_stack() {
        let all = node();
        let mut tap = interface(9, "tap0", InterfaceKind::Tunnel);
        assert_eq!(reason(&tap, &all, &Ok(vec![]), &plain(&[])), None);
        tap.made_by_program = true;
        assert!(reason(&tap, &all, &Ok(vec![]), &plain(&[])).is_some());
    }
}
