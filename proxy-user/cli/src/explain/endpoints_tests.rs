// SPDX-License-Identifier: Apache-2.0 OR MIT

use datapath::read::AffineEndpoint;
use proxy_common::Settings;

use super::*;

fn serving(last: u8, slots: u32, [cluster, local]: [bool; 2]) -> ServingEndpoint {
    ServingEndpoint {
        address: format!("10.40.1.{last}:8080").parse().expect("an address"),
        slots,
        cluster,
        local,
    }
}

fn listed(last: u8) -> ListedEndpoint {
    ListedEndpoint {
        address: Some([10, 40, 1, last].into()),
        ports: vec![8080],
        pod: Some(format!("shop/cart-{last}")),
        ready: true,
        serving: true,
        ..ListedEndpoint::default()
    }
}

fn explained(endpoints: Vec<ServingEndpoint>) -> Explained {
    let mut explained = Explained::unmatched(Settings::EMPTY, Counter::ForwardedNew, None);
    explained.endpoints = endpoints;
    explained
}

fn reasons(explained: &Explained, listed: &[ListedEndpoint]) -> Vec<String> {
    let rows = rows(explained, listed, false).into_iter();
    rows.map(|row| row.because).collect()
}

#[test]
fn endpoints_that_are_not_chosen_are_listed_with_the_reason() {
    let mut one = explained(vec![
        serving(1, 1, [true, true]),
        serving(2, 0, [true, false]),
        serving(3, 0, [false, false]),
    ]);
    assert!(reasons(&one, &[])[2].starts_with("serves, but is hinted"));
    let hinted = ListedEndpoint {
        hints: vec!["zone west".into()],
        ..listed(3)
    };
    let ending = ListedEndpoint {
        ready: false,
        terminating: true,
        ..listed(3)
    };
    assert_eq!(reasons(&one, &[hinted])[2], "hinted for zone west");
    assert_eq!(
        reasons(&one, &[ending])[2],
        "terminating, while others are ready"
    );
    one.local_only = true;
    assert_eq!(
        reasons(&one, &[])[1],
        "on another node, and the traffic policy is Local"
    );
    one.counter = Counter::DroppedSource;
    assert_eq!(
        reasons(&one, &[])[1],
        "the client is outside the source ranges"
    );
}

#[test]
fn with_affinity_all_other_endpoints_are_left_out() {
    let mut one = explained(vec![
        serving(1, 1, [true, true]),
        serving(2, 1, [true, true]),
    ]);
    one.affinity = Some(AffineEndpoint::new(one.endpoints[1].address, 9));
    assert_eq!(
        reasons(&one, &[]),
        ["affinity holds the client to another one", ""]
    );
}

#[test]
fn shares_and_weight_0_are_told_and_affinity_still_leads_there() {
    let mut one = explained(vec![
        serving(1, 3, [true, false]),
        serving(2, 1, [true, false]),
        serving(3, 0, [true, true]),
    ]);
    let share = |slots| Some(Share { slots, of: 4 });
    let shares = |one| Vec::from_iter(rows(one, &[], false).iter().map(|row| row.share));
    assert_eq!(shares(&one), [share(3), share(1), None]);
    let reason = &reasons(&one, &[])[2];
    assert!(reason.contains("service.portolan.dev/weight"), "{reason}");
    one.affinity = Some(AffineEndpoint::new(one.endpoints[2].address, 9));
    let can = |one| Vec::from_iter(rows(one, &[], false).iter().map(|row| row.can_answer));
    assert_eq!(can(&one), [false, false, true]);
}

#[test]
fn endpoints_that_only_kubernetes_lists_are_added() {
    let one = explained(vec![serving(1, 1, [true, true])]);
    let not_ready = ListedEndpoint {
        ready: false,
        serving: false,
        ..listed(4)
    };
    let of_another_port = ListedEndpoint {
        ports: vec![9090],
        ..listed(5)
    };
    let of_ipv6 = ListedEndpoint {
        address: "fd00::7".parse().ok(),
        ..listed(7)
    };
    let all = [listed(1), not_ready, of_another_port, listed(6), of_ipv6];
    let rows = rows(&one, &all, false);
    let said: Vec<_> = rows
        .iter()
        .map(|row| (row.pod.as_deref(), row.can_answer))
        .collect();
    assert_eq!(
        said,
        [
            (Some("shop/cart-1"), true),
            (Some("shop/cart-4"), false),
            (Some("shop/cart-6"), false)
        ]
    );
    assert_eq!(rows[1].because, "not ready");
    let absent = "listed by Kubernetes, and not in the maps";
    assert!(rows[2].because.starts_with(absent));
}
