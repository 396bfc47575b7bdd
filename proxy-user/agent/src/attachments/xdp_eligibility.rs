// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Decides for `xdp: native` or `generic` whether XDP may take packets at an uplink, and if not,
//! why. Pure; called by `xdp_uplinks`.
//!
//! A packet that XDP takes meets no tc program at that interface, no qdisc of the interface that it
//! leaves by, and nothing of the stack; and XDP keeps one next hop for each destination. So if
//! anything else decides about packets at an interface, only tc gets them there.

use datapath::ForeignProgram;
use linux::interfaces::{Interface, InterfaceKind};
use proxy_common::xdp::Abilities;

use super::redirect_eligibility::{self, Routing};

/// Returns why XDP may not take packets at `interface`, which is an uplink; `None` if it may.
/// `all`: the node's interfaces; `programs`: foreign programs at it; `lro`: whether its large
/// receive offload is on.
pub(super) fn reason(
    interface: &Interface,
    all: &[Interface],
    programs: &Result<Vec<ForeignProgram>, String>,
    routing: &Routing,
    lro: &Result<bool, String>,
) -> Option<String> {
    of_device(interface)
        .or_else(|| of_offload(&interface.name, lro))
        .or_else(|| routing.policies())
        .or_else(|| of_rules(interface, all, routing))
        .or_else(|| of_programs(programs))
}

/// Returns what XDP may do at an interface where it is attached. `redirected`: whether the
/// interface's driver takes redirected frames; `None` if the kernel does not say (before Linux
/// 6.3).
pub(super) fn abilities(
    interface: &Interface,
    native: bool,
    redirected: Option<bool>,
) -> Abilities {
    let is_veth = interface.driver == "veth";
    Abilities {
        receives: true,
        // If the kernel does not say, a veth can send: only a veth that the operator has named gets
        // XDP.
        sends: !native || redirected.unwrap_or(is_veth),
        // A veth's driver does not wake its peer unless the peer has an XDP program, too (Linux
        // 6.18).
        returns: !native || !is_veth,
    }
}

/// Returns why XDP can send nothing out of an interface; `None` if it can send.
pub(super) fn limit(abilities: Abilities) -> Option<String> {
    (!abilities.sends && !abilities.returns).then(|| {
        "the other end of this veth takes no frames from XDP; switch generic receive offload on there, by `ethtool -K PEER gro on`, \
         or use `xdp: generic`"
            .to_owned()
    })
}

fn of_device(interface: &Interface) -> Option<String> {
    let driver = interface.driver.as_str();
    if interface.kind == InterfaceKind::Loopback {
        return Some("it is the loopback device".to_owned());
    }
    if interface.kind == InterfaceKind::BridgePort || interface.bridge.is_some() {
        return Some("it is a port of a bridge, which has to see its frames".to_owned());
    }
    if interface.switch_port {
        return Some("it is a port of an Open vSwitch, which has to see its frames".to_owned());
    }
    if !interface.link_layer || interface.mac.is_none() {
        return Some("it has no Ethernet header".to_owned());
    }
    if let Some(upper) = &interface.carries {
        return Some(format!(
            "{upper} lies on it, and the device may have taken the VLAN tag off a frame before XDP sees it"
        ));
    }
    match driver {
        // A veth gets XDP only if the operator names it: it may be the uplink of a container that
        // is a node.
        "" | "veth" => None,
        "bond" | "team" => Some(format!(
            "it is a {driver}: XDP would have to be at each of its ports"
        )),
        "vlan" => Some("it is a VLAN, whose tag XDP does not write".to_owned()),
        _ if interface.kind == InterfaceKind::Tunnel => Some(format!(
            "it is a tunnel ({driver}), and XDP does not encapsulate"
        )),
        _ => Some(format!("it is a virtual device ({driver})")),
    }
}

fn of_offload(name: &str, lro: &Result<bool, String>) -> Option<String> {
    match lro {
        Ok(false) => None,
        Ok(true) => Some(format!(
            "large receive offload joins packets before XDP sees them; switch it off by `ethtool -K {name} lro off`"
        )),
        Err(error) => Some(format!("its offloads could not be read: {error}")),
    }
}

fn of_rules(interface: &Interface, all: &[Interface], routing: &Routing) -> Option<String> {
    let rules = match &routing.rules {
        Ok(rules) => rules,
        Err(error) => return Some(error.clone()),
    };
    let other = rules.iter().find(|rule| {
        let is_usual = redirect_eligibility::is_own(rule) && rule.asks.is_none();
        !is_usual && redirect_eligibility::may_concern(rule.interface.as_deref(), interface, all)
    })?;
    Some(format!(
        "the routing rule with priority {} may choose another way for some packets, and XDP keeps one for each destination",
        other.priority
    ))
}

fn of_programs(programs: &Result<Vec<ForeignProgram>, String>) -> Option<String> {
    match programs {
        Ok(programs) => programs.first().map(|program| {
            let hook = if program.egress { "egress" } else { "ingress" };
            format!("{} at {hook} would not see them", program.name)
        }),
        Err(error) => Some(format!("foreign programs could not be read: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attachments::redirect_eligibility::tests::program;
    use datapath::ChainPosition;
    use linux::{RoutingRule, testing::interface};

    fn uplink() -> Interface {
        let mut eth0 = interface(2, "eth0", InterfaceKind::Uplink);
        eth0.mac = Some([2, 0, 0, 0, 0, 1]);
        eth0.uplink = true;
        eth0
    }

    fn routing(rules: &[(u32, Option<&str>)]) -> Routing {
        let rule = |(priority, name): &(u32, Option<&str>)| RoutingRule {
            priority: *priority,
            interface: name.map(str::to_owned),
            asks: None,
            by_mark: false,
        };
        Routing {
            rules: Ok(rules.iter().map(rule).collect()),
            has_policies: Ok(false),
        }
    }

    fn declined(interface: &Interface, routing: &Routing, lro: Result<bool, String>) -> String {
        let all = std::slice::from_ref(interface);
        reason(interface, all, &Ok(vec![]), routing, &lro).unwrap_or_default()
    }

    #[test]
    fn only_ordinary_uplinks_get_the_xdp_program() {
        let usual = routing(&[(0, None), (32_766, None), (32_767, None)]);
        let declined = |change: &dyn Fn(&mut Interface)| {
            let mut interface = uplink();
            change(&mut interface);
            declined(&interface, &usual, Ok(false))
        };
        assert_eq!(declined(&|_| ()), "");
        let by = |driver: &'static str| declined(&|one| one.driver = driver.into());
        assert_eq!(by("veth"), "");
        assert!(by("vlan").contains("VLAN"));
        for driver in ["bond", "macvlan", "team"] {
            assert!(by(driver).contains(driver), "{}", by(driver));
        }
        let mut tunnel = interface(3, "vxlan0", InterfaceKind::Tunnel);
        (tunnel.driver, tunnel.mac) = ("vxlan".into(), Some([2; 6]));
        assert!(declined(&|one| one.clone_from(&tunnel)).contains("encapsulate"));
        assert!(declined(&|one| one.carries = Some("eth0.7".into())).contains("eth0.7"));
        assert!(declined(&|one| one.bridge = Some(9)).contains("bridge"));
        assert!(declined(&|one| one.mac = None).contains("Ethernet"));
    }

    #[test]
    fn lro_ipsec_policies_and_routing_rules_exclude_xdp() {
        let usual = routing(&[]);
        assert!(declined(&uplink(), &usual, Ok(true)).contains("ethtool -K eth0 lro off"));
        assert!(declined(&uplink(), &usual, Err("busy".into())).contains("busy"));
        let ipsec = Routing {
            has_policies: Ok(true),
            ..routing(&[])
        };
        assert!(declined(&uplink(), &ipsec, Ok(false)).contains("IPsec"));
        let by_rule = routing(&[(0, None), (1000, None)]);
        assert!(declined(&uplink(), &by_rule, Ok(false)).contains("priority 1000"));
        // The rule is for another interface, eth1, which exists.
        let mut eth1 = interface(3, "eth1", InterfaceKind::Uplink);
        eth1.mac = Some([2, 0, 0, 0, 0, 2]);
        let all = [uplink(), eth1];
        let of_eth1 = routing(&[(1000, Some("eth1"))]);
        let found = reason(&all[0], &all, &Ok(vec![]), &of_eth1, &Ok(false));
        assert_eq!(found, None);
    }

    #[test]
    fn xdp_on_a_veth_returns_frames_only_by_redirect() {
        let hardware = uplink();
        let may = |one: &Interface, native, told| {
            let found = abilities(one, native, told);
            assert!(found.receives);
            (found.sends, found.returns)
        };
        assert_eq!(may(&hardware, true, None), (false, true));
        assert_eq!(may(&hardware, true, Some(true)), (true, true));
        assert_eq!(may(&hardware, false, Some(false)), (true, true));
        let mut veth = uplink();
        veth.driver = "veth".into();
        assert_eq!(may(&veth, true, Some(true)), (true, false));
        assert_eq!(may(&veth, true, None), (true, false));
        assert_eq!(may(&veth, true, Some(false)), (false, false));
        let said = limit(abilities(&veth, true, Some(false)));
        assert!(said.expect("a reason").contains("gro on"));
        assert_eq!(limit(abilities(&hardware, true, None)), None);
    }

    #[test]
    fn foreign_programs_at_ingress_or_egress_exclude_xdp() {
        for (egress, place) in [
            (false, ChainPosition::Before),
            (false, ChainPosition::Behind),
            (true, ChainPosition::Behind),
        ] {
            let program = program(egress, place, "program 7 (police)");
            let eth0 = uplink();
            let all = std::slice::from_ref(&eth0);
            let found = reason(&eth0, all, &Ok(vec![program]), &routing(&[]), &Ok(false));
            assert!(found.is_some_and(|why| why.contains("program 7 (police)")));
        }
    }
}
