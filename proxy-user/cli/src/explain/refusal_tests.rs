// SPDX-License-Identifier: Apache-2.0 OR MIT

use datapath::read::{By, MatchedFrontend};
use proxy_common::{FrontendKind, Protocol, ServiceFlags, Settings};
use rstest::rstest;

use super::*;
use crate::finding::Level;

fn asked() -> Asked {
    Asked {
        protocol: Protocol::TCP,
        client: [10, 40, 1, 10].into(),
        client_port: 0,
        to: "10.96.0.1:80".parse().expect("an address"),
        by: By::Interface(7),
    }
}

fn explained(counter: Counter) -> Explained {
    let mut explained = Explained::unmatched(Settings::EMPTY, counter, None);
    explained.frontend = Some(MatchedFrontend {
        service: "shop/cart".into(),
        port_name: "http".into(),
        kind: FrontendKind::ClusterIp,
        address: None,
        port: 80,
        flags: ServiceFlags::new(FrontendKind::ClusterIp),
        service_id: 1,
        affinity_timeout: 0,
        internal: 1,
        external: 1,
        source_ranges: Vec::new(),
    });
    explained
}

#[rstest]
#[case(Counter::RejectedNoEndpoint, InTheWay)]
#[case(Counter::RejectedUnserved, InTheWay)]
#[case(Counter::DroppedNoLocalEndpoint, InTheWay)]
#[case(Counter::DroppedSource, InTheWay)]
#[case(Counter::DroppedUnallocated, InTheWay)]
#[case(Counter::Untouched, Differs)]
#[case(Counter::SocketUntouched, Differs)]
fn every_refusal_has_a_level_a_remedy_and_a_page(#[case] counter: Counter, #[case] level: Level) {
    let mut one = explained(counter);
    let said = of_policy(&one, &asked(), None).expect("a finding");
    assert_eq!(said.level, level);
    assert!(said.about == "Service shop/cart" && !said.remedy.is_empty());
    assert!(said.page.starts_with("docs/"));
    one.counter = Counter::ForwardedNew;
    assert_eq!(of_policy(&one, &asked(), None), None);
}

#[test]
fn without_kubernetes_no_reason_for_a_missing_endpoint_is_claimed() {
    let one = explained(Counter::RejectedNoEndpoint);
    let said = of_policy(&one, &asked(), None).expect("a finding");
    assert!(
        said.found.starts_with("no endpoint of it may be used"),
        "{}",
        said.found
    );
    assert!(
        said.remedy.contains("--kubeconfig or --manifests"),
        "{}",
        said.remedy
    );
    assert!(said.remedy.contains("kubectl -n shop get endpointslices"));
}

#[test]
fn the_followed_packet_does_not_tell_the_policys_refusal_again() {
    let finding = |counter: Counter| {
        let found = format!("{}: {}", counter.name(), counter.help());
        Finding::in_the_way("portolan, ingress of eth0", found, "")
    };
    let repeats = |followed: Counter, decided: Counter| {
        let finding = finding(followed);
        is_told(&finding, &explained(decided), &asked())
    };
    assert!(repeats(Counter::DroppedSource, Counter::DroppedSource));
    assert!(!repeats(Counter::DroppedSource, Counter::ForwardedNew));
    assert!(!repeats(
        Counter::DroppedFlowTableFull,
        Counter::DroppedFlowTableFull
    ));
}
