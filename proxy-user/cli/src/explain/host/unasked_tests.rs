// SPDX-License-Identifier: Apache-2.0 OR MIT

use datapath::ChainMember;
use linux::{ChainRules, LegacyRules, LinkFacts};
use rstest::rstest;

use super::*;

fn place(index: u32, bridge: Option<&str>) -> HookedInterface {
    let name = format!("veth{index}");
    HookedInterface {
        index,
        stack_index: bridge.map_or(index, |_| 99),
        stack_name: bridge.unwrap_or(&name).to_owned(),
        link: LinkFacts {
            name,
            ..LinkFacts::default()
        },
        ..HookedInterface::default()
    }
}

fn host(incoming: Option<HookedInterface>, outgoing: Option<HookedInterface>) -> Host {
    let routed = match &outgoing {
        Some(place) => Routed::Leaves {
            interface: place.stack_index,
            neighbour: [10, 0, 0, 9].into(),
            mtu: None,
        },
        None => Routed::Here,
    };
    let endpoint = Endpoint {
        address: "10.0.0.9:80".parse().expect("an address"),
        asked_for: false,
        routed,
        outgoing,
        mtu: None,
        silent: None,
        masqueraded: false,
        deaf: None,
    };
    Host {
        incoming,
        endpoints: vec![endpoint],
        ..Host::default()
    }
}

fn chain(family: &'static str, hook: u32, device: &str) -> NftChain {
    NftChain {
        family,
        table: "t".into(),
        name: "c".into(),
        hook: Some(hook),
        devices: Some(device)
            .filter(|name| !name.is_empty())
            .map(str::to_owned)
            .into_iter()
            .collect(),
        ..NftChain::default()
    }
}

#[rstest]
#[case::forwarded(Some(place(1, None)), Some(place(2, None)), &[0, 2, 4])]
#[case::to_the_node(Some(place(1, None)), None, &[0, 1, 3, 4])]
#[case::of_the_node(None, Some(place(2, None)), &[0, 1, 3, 4])]
fn the_hooks_follow_from_client_and_endpoint(
    #[case] incoming: Option<HookedInterface>,
    #[case] outgoing: Option<HookedInterface>,
    #[case] hooks: &[u32],
) {
    let mut one = host(incoming, outgoing);
    assert_eq!(PassedHooks::new(&one).hooks, hooks);
    one.redirected = true;
    assert!(PassedHooks::new(&one).hooks.is_empty(), "past the stack");
    one.redirected = false;
    one.endpoints.clear();
    assert!(
        PassedHooks::new(&one).hooks.is_empty(),
        "refused by portolan"
    );
}

#[rstest]
#[case("ip", 2, "", true)]
#[case("inet", 2, "", true)]
#[case("ip6", 2, "", false)]
#[case("ip", 1, "", false)]
#[case("inet", 5, "veth1", true)]
#[case("inet", 5, "eth7", false)]
#[case("netdev", 0, "veth1", true)]
#[case("netdev", 1, "cni0", true)]
#[case("netdev", 0, "eth7", false)]
#[case("bridge", 2, "", true)]
fn a_chain_is_passed_by_family_hook_and_device(
    #[case] family: &'static str,
    #[case] hook: u32,
    #[case] device: &str,
    #[case] passes: bool,
) {
    let bridged = host(Some(place(1, None)), Some(place(2, Some("cni0"))));
    assert_eq!(
        PassedHooks::new(&bridged).contain(&chain(family, hook, device)),
        passes
    );
    let routed = host(Some(place(1, None)), Some(place(2, None)));
    let is_of_bridge = family == "bridge" || device == "cni0";
    let passes = passes && !is_of_bridge;
    assert_eq!(
        PassedHooks::new(&routed).contain(&chain(family, hook, device)),
        passes
    );
}

#[test]
fn rules_and_programs_of_others_are_counted_and_listed() {
    let mut one = host(Some(place(1, None)), Some(place(2, None)));
    let nothing = Unasked::new(&one);
    assert!(nothing.is_empty());
    one.rules = vec![
        ChainRules {
            chain: chain("ip", 2, ""),
            rules: 38,
        },
        ChainRules {
            chain: chain("inet", 0, ""),
            rules: 2,
        },
    ];
    one.legacy_rules = vec![LegacyRules {
        table: "iptables-legacy filter".into(),
        chains: 1,
        rules: 1,
    }];
    let found = Unasked::new(&one);
    assert_eq!(
        found.describe(),
        "3 chains with 41 rules of others may judge this packet"
    );
    assert_eq!(
        found.list(),
        "ip t c (38), inet t c (2), iptables-legacy filter (1)"
    );
    let police = ChainMember {
        name: "program 4 (police)".into(),
        program: Some(4),
    };
    let incoming = one.incoming.as_mut().expect("it");
    incoming.hooks[0].behind = vec![police.clone()];
    incoming.hooks[0].before = vec![police];
    incoming.xdp = Some("program 5".into());
    let found = Unasked::new(&one);
    assert!(
        found
            .describe()
            .starts_with("3 chains with 41 rules and 3 programs of others")
    );
    // A program that was run on the packet was looked at.
    one.incoming.as_mut().expect("it").verdicts = vec![datapath::ForeignVerdict::Next];
    assert_eq!(
        Unasked::new(&one).programs,
        [
            "program 4 (police) at ingress of veth1",
            "program 5 at XDP of veth1"
        ]
    );
}
