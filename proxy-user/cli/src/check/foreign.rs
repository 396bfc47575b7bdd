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
            ChainPosition::Before => {
                findings.push(Finding::of("tc-before", &[interface, name, &hook]));
            }
            ChainPosition::Behind | ChainPosition::Bridge => {
                behind.insert(format!("{name} at {hook} of {interface}"));
            }
        }
    }
    findings.extend(some_if_any(&behind).map(|behind| Finding::of("tc-behind", &[&behind])));
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
    let proxies = SERVICE_PROXIES
        .iter()
        .filter_map(|(_, proxy)| Some(Finding::of("other-proxy", &[proxy, &of(Some(proxy))?])));
    let others = of(None).map(|names| Finding::of("other-hooks", &[&names]));
    proxies.chain(others).collect()
}

/// Returns a finding for each interface without tcx where another qdisc is in clsact's place.
pub(super) fn qdiscs(interfaces: &[Interface]) -> Vec<Finding> {
    let wanted = interfaces.iter().filter(|one| one.attach);
    if wanted.clone().next().is_none_or(|one| has_tcx(one.index)) {
        return Vec::new();
    }
    let qdiscs = filter_qdiscs().unwrap_or_default();
    let occupied = wanted.filter(|one| qdiscs.get(&one.index) == Some(&false));
    let found = occupied.map(|one| Finding::of("qdisc", &[&one.name]));
    found.collect()
}

/// Returns findings about kube-proxy's rules in nf_tables, and chains that drop by policy.
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
    let of_kube_proxy =
        modes.filter_map(|(mode, names)| Some(Finding::of("kube-proxy-rules", &[&mode, &names?])));
    let drops = named(|chain| chain.forward && chain.drops, full_name);
    let drops = drops.map(|names| Finding::of("forward-drops", &[&names]));
    of_kube_proxy.chain(drops).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::Level::{Differs, InTheWay};
    use datapath::ForeignProgram;

    fn program(place: ChainPosition, name: &str) -> (String, ForeignProgram) {
        let program = ForeignProgram {
            egress: false,
            place,
            name: name.into(),
        };
        ("eth0".into(), program)
    }

    #[test]
    fn foreign_programs_are_listed_with_their_position() {
        assert_eq!(programs(&Foreseen::default()), []);
        let hooks = ["cil_sock4_conne", "watch"].map(|name| ForeignHook {
            hook: "connect_v4",
            name: name.into(),
        });
        let found = programs(&Foreseen {
            programs: vec![
                program(ChainPosition::Before, "program 1 (first)"),
                program(ChainPosition::Behind, "program 2 (police)"),
                program(ChainPosition::Behind, "program 3 (count)"),
            ],
            hooks: hooks.into(),
        });
        let said: Vec<_> = found.iter().map(|one| &*one.found).collect();
        let begins = [
            "program 1 (first) would run before portolan's at ingress",
            "program 2 (police) at ingress of eth0, program 3 (count) at ingress of eth0",
            "Cilium translates services there: cil_sock4_conne at connect_v4",
            "other programs are there, too: watch at connect_v4",
        ];
        for (said, begin) in said.iter().zip(begins) {
            assert!(said.starts_with(begin), "{said}");
        }
        let levels: Vec<_> = found.iter().map(|one| one.level).collect();
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
    fn tables_of_kube_proxy_and_dropping_forward_chains_are_named_once() {
        assert_eq!(rules(&[chain("ip", "filter", "INPUT")]), []);
        let found = rules(&[
            chain("ip", "kube-proxy", "services"),
            chain("ip", "kube-proxy", "masquerading"),
            chain("ip6", "kube-proxy", "services"),
            chain("ip", "nat", "KUBE-SERVICES"),
        ]);
        let stay = "table ip kube-proxy, table ip6 kube-proxy: they stay";
        assert!(found.len() == 2 && found[0].found.starts_with(stay));
        assert_eq!(found[1].about, "rules of kube-proxy's mode iptables");

        let mut forward = chain("ip", "filter", "FORWARD");
        forward.drops = true;
        assert_eq!(rules(&[forward.clone()]), [], "at another hook");
        forward.forward = true;
        let found = rules(&[forward]);
        let drops = "FORWARD in table ip filter drops";
        assert!(found[0].found.starts_with(drops), "{found:?}");
    }
}
