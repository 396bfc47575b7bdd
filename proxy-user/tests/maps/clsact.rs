// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests for attachments by filters of the clsact qdisc, as on kernels without tcx.

use datapath::cleanup::{cleanup, planned};

use crate::{
    attach::add_veth,
    support::{detach_all, filters, in_netns, run},
};

#[test]
fn clsact_filters_outlive_the_agent_and_are_replaced() {
    in_netns(|pins| {
        let mut datapath = pins.open_clsact();
        let veth = add_veth("v0");
        let ids = |text: &str| -> Vec<String> {
            let mut words = text.split_whitespace();
            let mut ids = Vec::new();
            while words.any(|word| word == "id") {
                ids.extend(words.next().map(str::to_owned));
            }
            ids
        };
        datapath.attach(&veth).expect("attaches");
        datapath.attach(&veth).expect("attaches again");
        let old = filters().map(|text| ids(&text));
        assert_eq!((old[0].len(), old[1].len()), (1, 1));
        drop(datapath);
        assert_eq!(filters().map(|text| ids(&text)), old, "without an agent");

        let mut datapath = pins.open_clsact();
        datapath.attach(&veth).expect("attaches");
        let new = filters().map(|text| ids(&text));
        assert_eq!((new[0].len(), new[1].len()), (1, 1));
        assert_ne!(new, old, "replaced");
        drop(datapath);
        let mut datapath = pins.open_clsact();
        detach_all(&mut datapath);
        assert_eq!(filters().concat(), "");
    });
}

#[test]
fn only_an_own_unused_clsact_qdisc_is_removed_on_detach() {
    in_netns(|pins| {
        let has_clsact = |name: &str| run(&format!("tc qdisc show dev {name}")).contains("clsact");
        let [own, shared, foreign, kept] = ["own", "shared", "foreign", "kept"].map(add_veth);
        run("tc qdisc add dev foreign clsact");
        let mut datapath = pins.open_clsact();
        for interface in [&own, &shared, &foreign, &kept] {
            datapath.attach(interface).expect("attaches");
        }
        run("tc filter add dev shared egress chain 3 protocol all u32 match u32 0 0");
        drop(datapath);

        // The next agent removes the qdisc. It knows from the pins that portolan made it.
        let mut datapath = pins.open_clsact();
        datapath.attach(&own).expect("attaches again");
        for interface in [&own, &shared, &foreign] {
            datapath.detach(interface.index).expect("detaches");
        }
        drop(datapath);
        assert!(!has_clsact("own"), "ours");
        assert!(has_clsact("shared"), "somebody has a filter there");
        assert!(has_clsact("foreign"), "somebody made it");
        run("tc qdisc add dev own ingress");

        assert!(has_clsact("kept"));
        let planned = planned(pins.path()).expect("a plan");
        let removed = cleanup(pins.path(), false).expect("cleans up");
        assert_eq!(planned, removed);
        assert!(!has_clsact("kept"), "cleanup removes it as well");
        let line = "the clsact qdisc of kept".to_owned();
        assert!(removed.contains(&line), "{removed:?}");
        assert!(!pins.path().exists());
    });
}

#[test]
fn a_foreign_qdisc_on_an_interface_with_a_reused_index_is_kept() {
    in_netns(|pins| {
        let mut datapath = pins.open_clsact();
        let gone = add_veth("v0");
        datapath.attach(&gone).expect("attaches");
        run("ip link del v0");
        let index = gone.index;
        let reused = add_veth(&format!("v1 index {index}"));
        run("tc qdisc add dev v1 clsact");
        datapath.attach(&reused).expect("attaches");
        datapath.detach(index).expect("detaches");
        assert!(run("tc qdisc show dev v1").contains("clsact"));
    });
}

#[test]
fn on_an_ingress_qdisc_attaching_fails_with_a_remedy() {
    in_netns(|pins| {
        let mut datapath = pins.open_clsact();
        let veth = add_veth("v0");
        // The CNI plugin `bandwidth` leaves such a qdisc. The kernel accepts filters for egress
        // there, and runs them at ingress.
        run("tc qdisc add dev v0 ingress");
        let error = datapath.attach(&veth).expect_err("it has no egress");
        let reason = std::error::Error::source(&error).expect("a reason");
        let remedy = "`tc qdisc del dev v0 ingress`";
        assert!(reason.to_string().contains(remedy), "{reason}");
        assert_eq!(run("tc filter show dev v0 ingress"), "");
        run("tc qdisc del dev v0 ingress");
        datapath.attach(&veth).expect("attaches when it is gone");
    });
}

#[test]
fn a_removed_qdisc_or_filter_is_found_and_repaired() {
    in_netns(|pins| {
        let mut datapath = pins.open_clsact();
        let veth = add_veth("v0");
        datapath.attach(&veth).expect("attaches");
        let before = filters();
        assert!(datapath.repair_interfaces([&veth], false).is_empty());
        for damage in ["tc qdisc del dev v0 clsact", "tc filter del dev v0 egress"] {
            run(damage);
            assert_ne!(filters(), before);
            let repaired = datapath.repair_interfaces([&veth], false);
            assert_eq!(repaired.len(), 1, "{damage}");
            assert_eq!(repaired[0].failure, None);
            assert!(repaired[0].damage.contains("at egress was detached"));
            assert_eq!(filters(), before, "{damage}");
            assert!(datapath.repair_interfaces([&veth], false).is_empty());
        }
    });
}
