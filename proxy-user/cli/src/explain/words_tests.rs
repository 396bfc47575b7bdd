// SPDX-License-Identifier: Apache-2.0 OR MIT

use FrontendKind::{ClusterIp, LoadBalancer, NodePort};
use Origin::{External, Host, Pod};

use super::*;

pub(crate) fn asked(by: By) -> Asked {
    Asked {
        protocol: proxy_common::Protocol::TCP,
        client: [10, 40, 1, 10].into(),
        client_port: 0,
        to: "10.96.0.1:80".parse().expect("an address"),
        by,
    }
}

pub(crate) const PACKET: By = By::Interface(7);

/// Returns the decision about a packet to a frontend of this kind that is served.
pub(crate) fn explained(
    kind: FrontendKind,
    flags: u32,
    settings: u32,
    origin: Origin,
) -> Explained {
    let settings = Settings {
        flags: settings,
        ..Settings::EMPTY
    };
    let mut explained = Explained::unmatched(settings, Counter::ForwardedNew, None);
    explained.origin = Some(origin);
    explained.to = vec!["10.40.1.20:8080".parse().expect("an address")];
    explained.frontend = Some(MatchedFrontend {
        service: "shop/cart".into(),
        port_name: "http".into(),
        kind,
        address: None,
        port: 80,
        flags: ServiceFlags(ServiceFlags::new(kind).0 | flags),
        service_id: 1,
        affinity_timeout: 0,
        source_ranges: Vec::new(),
    });
    explained
}

const LOCAL: u32 = ServiceFlags::EXTERNAL_LOCAL;
const DETECTS: u32 = Settings::DETECTS_PODS;
const ALL: u32 = DETECTS | Settings::MASQUERADE_ALL;

#[test]
fn the_given_reason_of_a_masquerade_agrees_with_the_policy() {
    for (kind, flags, settings, origin, expected) in [
        (ClusterIp, 0, DETECTS, Pod, "kept: a pod asks a cluster IP"),
        (ClusterIp, 0, DETECTS, External, "masqueraded: no pod asks"),
        (ClusterIp, 0, ALL, Pod, "masqueraded: masqueradeAll"),
        (ClusterIp, 0, 0, External, "kept: pods are not detected"),
        (NodePort, 0, DETECTS, Pod, "masqueraded: with external"),
        (LoadBalancer, LOCAL, DETECTS, Host, "masqueraded: the node"),
        (LoadBalancer, LOCAL, DETECTS, External, "kept: external"),
    ] {
        let masquerades = expected.starts_with("masqueraded");
        let mut explained = explained(kind, flags, settings, origin);
        explained.masquerades = masquerades;
        let policy = explained.settings.policy::<proxy_common::V4>();
        let flags = explained.frontend.as_ref().expect("it").flags;
        let flags = flags.with(ServiceFlags::HAS_ENDPOINTS, true);
        let verdict = proxy_common::decide(flags, origin, policy, true, true, true);
        assert!(
            matches!(verdict, proxy_common::Verdict::Forward { masquerade, .. } if masquerade == masquerades),
            "the policy says so as well: {verdict:?}"
        );
        let said = source(&explained, &asked(PACKET)).expect("a source");
        assert!(said.starts_with(expected), "{said}");
    }
}

#[test]
fn a_masquerade_by_hairpin_or_node_rules_is_explained() {
    let mut one = explained(ClusterIp, 0, DETECTS, Pod);
    let said = |one: &Explained, by| source(one, &asked(by)).expect("a source");
    one.to = vec!["10.40.1.10:8080".parse().expect("an address")];
    let hairpin = "masqueraded: the client reaches itself (hairpin)";
    assert_eq!(said(&one, PACKET), hairpin);
    one.to.push("10.40.1.20:8080".parse().expect("an address"));
    let ends = "masqueraded where the client reaches itself (hairpin)";
    assert!(said(&one, PACKET).ends_with(ends));
    let mut one = explained(NodePort, 0, DETECTS, External);
    one.masquerades = true;
    one.to.push("10.40.1.30:8080".parse().expect("an address"));
    one.keeps = one.to[..1].to_vec();
    let some = format!("kept towards 1 of {} endpoints", one.to.len());
    assert!(said(&one, PACKET).contains(&some));
    one.keeps = one.to.clone();
    assert!(said(&one, PACKET).starts_with("kept: clientAddress is keep"));
    let mut one = explained(NodePort, 0, Settings::MARK_ONLY, External);
    one.masquerades = true;
    assert!(said(&one, PACKET).contains("only marked"));
    assert!(said(&one, By::NodeSocket).starts_with("the process's own"));
}

#[test]
fn affinity_and_the_way_back_name_the_addresses() {
    let mut one = explained(NodePort, 0, DETECTS, External);
    let asked = asked(PACKET);
    assert_eq!(affinity(&one, &asked), None);
    one.frontend.as_mut().expect("it").affinity_timeout = 600;
    let said = |one: &Explained| affinity(one, &asked).expect("words");
    let begins = "not held yet; its first connection will hold it for 600 s";
    assert_eq!(said(&one), begins);
    one.affinity = Some(AffineEndpoint {
        endpoint: one.to[0],
        seconds_left: 30,
    });
    assert!(said(&one).starts_with("held to 10.40.1.20:8080, for 30 s"));

    let said = |one: &Explained, own| way_back(one, &asked, own).expect("words");
    let masqueraded = said(&one, Some([10, 40, 0, 1].into()));
    assert!(masqueraded.contains("to 10.40.0.1;") && masqueraded.contains("10.40.1.10 back"));
    let kept = said(&one, None);
    assert!(kept.contains("answers to 10.40.1.10") && kept.ends_with("10.96.0.1:80 back"));
    one.counter = Counter::RejectedNoEndpoint;
    assert!(said(&one, None).starts_with("the refusal is made here"));
}
