// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Findings about foreign programs and firewall rules on the node. Takes what the kernel lists.

use std::collections::BTreeSet;

use datapath::{ChainPosition, ForeignHook, Foreseen, has_tcx};
use linux::{NftChain, filter_qdiscs, interfaces::Interface};

use crate::{finding::Finding, frame::some_if_any};

/// Socket hooks of other service proxies: the beginning of the program's name, and the proxy.
const SERVICE_PROXIES: [(&str, &str); 2] = [("cil_sock", "Cilium"), ("cali", "Calico")];

/// Returns findings about foreign programs that would run at the same hooks as portolan's.
pub(super) fn programs(found: &Foreseen) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut behind = BTreeSet::new();
    for (interface, program) in &found.programs {
        let hook = if program.egress { "egress" } else { "ingress" };
        let name = &program.name;
        match program.place {
            ChainPosition::Before => findings.push(Finding::differs(
                format!("tc programs at {interface}"),
                format!(
                    "{name} would run before portolan's at {hook}, and may hide packets of services from it"
                ),
                "attach it behind portolan's: with a later preference, or by tcx after portolan has started",
            )),
            ChainPosition::Behind | ChainPosition::Bridge => _ = behind.insert(format!("{name} at {hook} of {interface}")),
        }
    }
    findings.extend(some_if_any(&behind).map(|behind| {
        Finding::differs(
            "tc programs",
            format!(
                "{behind} would run behind portolan's: at ingress they see packets of services translated already, with the endpoint's \
                 address"
            ),
            "see docs/coexistence.md, and check policies that name service addresses",
        )
    }));
    findings.extend(hooks(&found.hooks));
    findings
}

fn hooks(foreign: &[ForeignHook]) -> Vec<Finding> {
    let proxy = |one: &ForeignHook| {
        let mut known = SERVICE_PROXIES.iter();
        let found = known.find(|(start, _)| one.name.starts_with(start));
        found.map(|(_, proxy)| *proxy)
    };
    let of = |wanted: Option<&str>| {
        let of_it = foreign.iter().filter(|one| proxy(one) == wanted);
        let names = of_it.map(|one| format!("{} at {}", one.name, one.hook));
        some_if_any(names.collect::<BTreeSet<_>>())
    };
    let proxies = SERVICE_PROXIES.iter().filter_map(|(_, proxy)| {
        Some(Finding::in_the_way(
            "socket hooks",
            format!("{proxy} translates services there: {}", of(Some(proxy))?),
            "switch off its replacement of kube-proxy first: two that translate one connection decide by chance",
        ))
    });
    let others = of(None).map(|names| {
        Finding::differs(
            "socket hooks",
            format!("other programs are there, too: {names}"),
            "if they translate services, end them first; if they only watch or refuse, nothing",
        )
    });
    proxies.chain(others).collect()
}

/// Returns a finding for each interface that cannot be served: the kernel lacks tcx, and another
/// qdisc is where portolan's clsact would be.
pub(super) fn qdiscs(interfaces: &[Interface]) -> Vec<Finding> {
    let wanted = interfaces.iter().filter(|one| one.attach);
    if wanted.clone().next().is_none_or(|one| has_tcx(one.index)) {
        return Vec::new();
    }
    let qdiscs = filter_qdiscs().unwrap_or_default();
    let occupied = wanted.filter(|one| qdiscs.get(&one.index) == Some(&false));
    let name = |one: &Interface| {
        Finding::in_the_way(
            format!("interface {}", one.name),
            "it has the qdisc ingress (of the CNI plugin bandwidth, for example), and this kernel lacks tcx, which needs none: it \
             would not be served",
            "use Linux 6.6 or newer, or take the limit of what the pod sends away",
        )
    };
    occupied.map(name).collect()
}

/// Returns findings about rules in nf_tables that kube-proxy has made, and about chains whose
/// policy drops forwarded packets.
pub(super) fn rules(chains: &[NftChain]) -> Vec<Finding> {
    let named = |wanted: fn(&NftChain) -> bool, name: fn(&NftChain) -> String| {
        let names = chains.iter().filter(|chain| wanted(chain)).map(name);
        some_if_any(names.collect::<BTreeSet<_>>())
    };
    let full_name =
        |chain: &NftChain| format!("{} in table {} {}", chain.name, chain.family, chain.table);
    let tables = named(
        |chain| chain.table == "kube-proxy",
        |chain| format!("table {} kube-proxy", chain.family),
    );
    let services = named(|chain| chain.name == "KUBE-SERVICES", full_name);
    let modes = [("nftables", tables), ("iptables", services)].into_iter();
    let of_kube_proxy = modes.filter_map(|(mode, names)| {
        Some(Finding::differs(
            format!("rules of kube-proxy's mode {mode}"),
            format!(
                "{}: they stay when kube-proxy ends, and cost time; portolan sees every packet before them",
                names?
            ),
            "remove them when kube-proxy's connections have ended: docs/migrate.md, \"Clean up after kube-proxy\"",
        ))
    });
    let drops = named(|chain| chain.forward && chain.drops, full_name).map(|names| {
        Finding::differs(
            "forwarded packets",
            format!(
                "{names} drops what no rule accepts. kube-proxy's mode iptables accepts its own and established packets there; portolan \
                 does if it is told to"
            ),
            "set portolan.acceptForward: true, unless the CNI accepts them",
        )
    });
    of_kube_proxy.chain(drops).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use datapath::ForeignProgram;

    fn program(place: ChainPosition, name: &str) -> (String, ForeignProgram) {
        let program = ForeignProgram {
            egress: false,
            place,
            name: name.into(),
        };
        ("eth0".into(), program)
    }

    fn hook(name: &str) -> ForeignHook {
        ForeignHook {
            hook: "connect_v4",
            name: name.into(),
        }
    }

    #[test]
    fn foreign_programs_are_listed_with_their_position() {
        assert_eq!(programs(&Foreseen::default()), []);
        let found = programs(&Foreseen {
            programs: vec![
                program(ChainPosition::Before, "program 1 (first)"),
                program(ChainPosition::Behind, "program 2 (police)"),
                program(ChainPosition::Behind, "program 3 (count)"),
            ],
            hooks: vec![hook("cil_sock4_conne"), hook("watch")],
        });
        let said: Vec<_> = found.iter().map(|one| &*one.found).collect();
        assert!(said[0].starts_with("program 1 (first) would run before portolan's at ingress"));
        assert!(said[1].starts_with(
            "program 2 (police) at ingress of eth0, program 3 (count) at ingress of eth0 would run behind"
        ));
        assert!(said[2] == "Cilium translates services there: cil_sock4_conne at connect_v4");
        let levels: Vec<_> = found.iter().map(|one| one.level).collect();
        use crate::finding::Level::{Differs, InTheWay};
        assert_eq!(levels, [Differs, Differs, InTheWay, Differs]);
    }

    fn chain(family: &'static str, table: &str, name: &str) -> NftChain {
        NftChain {
            family,
            table: table.into(),
            name: name.into(),
            ..NftChain::default()
        }
    }

    #[test]
    fn each_nftables_table_of_kube_proxy_is_named_once() {
        assert_eq!(rules(&[chain("ip", "filter", "INPUT")]), []);
        let found = rules(&[
            chain("ip", "kube-proxy", "services"),
            chain("ip", "kube-proxy", "masquerading"),
            chain("ip6", "kube-proxy", "services"),
            chain("ip", "nat", "KUBE-SERVICES"),
        ]);
        assert_eq!(found.len(), 2);
        let stay = "table ip kube-proxy, table ip6 kube-proxy: they stay";
        assert!(found[0].found.starts_with(stay));
        assert_eq!(found[1].about, "rules of kube-proxy's mode iptables");
    }

    #[test]
    fn a_dropping_forward_chain_is_named() {
        let mut forward = chain("ip", "filter", "FORWARD");
        forward.drops = true;
        assert_eq!(rules(&[forward.clone()]), [], "at another hook");
        forward.forward = true;
        let found = rules(&[forward]);
        let drops = "FORWARD in table ip filter drops";
        assert!(found[0].found.starts_with(drops), "{found:?}");
    }
}
