// SPDX-License-Identifier: Apache-2.0 OR MIT

use proxy_common::{FrontendKind, Origin};
use rstest::rstest;

use super::*;
use crate::{
    explain::words::tests::{self as words, PACKET},
    finding::Level,
};

fn asked() -> Asked {
    words::asked(PACKET)
}

fn explained(counter: Counter) -> Explained {
    let mut explained = words::explained(FrontendKind::ClusterIp, 0, 0, Origin::Pod);
    explained.counter = counter;
    explained
}

#[rstest]
#[case(Counter::RejectedNoEndpoint, Level::InTheWay)]
#[case(Counter::RejectedUnserved, Level::InTheWay)]
#[case(Counter::DroppedNoLocalEndpoint, Level::InTheWay)]
#[case(Counter::DroppedSource, Level::InTheWay)]
#[case(Counter::DroppedUnallocated, Level::InTheWay)]
#[case(Counter::Untouched, Level::Differs)]
#[case(Counter::SocketUntouched, Level::Differs)]
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
    let Finding { found, remedy, .. } = said;
    assert!(found.starts_with("no endpoint of it may be used"));
    assert!(remedy.contains("--kubeconfig or --manifests"));
    assert!(remedy.contains("kubectl -n shop get endpointslices"));
}

#[test]
fn the_followed_packet_does_not_tell_the_policys_refusal_again() {
    let finding = |counter: Counter| {
        let found = format!("{}: {}", counter.name(), counter.help());
        Finding::new(Level::InTheWay, "portolan, ingress of eth0", found)
    };
    let repeats = |followed: Counter, decided: Counter| {
        let finding = finding(followed);
        is_told(&finding, &explained(decided), &asked())
    };
    assert!(repeats(Counter::DroppedSource, Counter::DroppedSource));
    assert!(!repeats(Counter::DroppedSource, Counter::ForwardedNew));
    let full = Counter::DroppedFlowTableFull;
    assert!(!repeats(full, full));
}
