// SPDX-License-Identifier: Apache-2.0 OR MIT

use linux::interfaces::InterfaceKind;

use super::*;

const BRIDGE: u32 = 3;

fn interface(index: u32, kind: InterfaceKind) -> Interface {
    Interface {
        peer_elsewhere: true,
        ..linux::testing::interface(index, &format!("if{index}"), kind)
    }
}

fn routed(index: u32) -> Interface {
    interface(index, InterfaceKind::PodSide)
}

fn port(index: u32) -> Interface {
    Interface {
        bridge: Some(BRIDGE),
        veth_port: true,
        ..interface(index, InterfaceKind::BridgePort)
    }
}

fn address(last: u8) -> IpAddr {
    [10, 40, 1, last].into()
}

fn link(last: u8, interface: u32) -> PodLink {
    PodLink {
        address: address(last),
        interface,
        mtu: 1500,
        destination: [2, 0, 0, 0, 0, last],
        source: [2, 0, 0, 0, 0, 1],
    }
}

#[derive(Default)]
struct Answers {
    listed: BTreeMap<IpAddr, bool>,
    exists: bool,
    leads: bool,
}

impl Asked for Answers {
    fn listed(&self, addresses: &BTreeSet<IpAddr>) -> BTreeMap<IpAddr, bool> {
        let mut listed = self.listed.clone();
        listed.retain(|address, _| addresses.contains(address));
        listed
    }
    fn exists(&self, _: u32) -> bool {
        self.exists
    }
    fn leads_to_a_pod(&self, _: IpAddr) -> bool {
        self.leads
    }
}

/// A pod with the address 9 that was reached by the interface 7, and other ones.
struct Scene {
    pods: GonePods,
    now: Instant,
}

impl Scene {
    fn new(own: Interface) -> Self {
        let mut scene = Self {
            pods: GonePods::default(),
            now: Instant::now(),
        };
        scene.see(&[link(9, 7), link(8, 6)], &[own, port(6)]);
        scene
    }
    fn see(&mut self, links: &[PodLink], interfaces: &[Interface]) {
        self.pods.observe(links, interfaces, self.now);
    }
    /// Lets time pass, and returns the addresses of pods that are gone.
    fn after(
        &mut self,
        seconds: u64,
        links: &[PodLink],
        interfaces: &[Interface],
        answers: &Answers,
    ) -> Vec<IpAddr> {
        self.now += Duration::from_secs(seconds);
        self.see(links, interfaces);
        let gone = self.pods.gone(links, interfaces, self.now, answers);
        gone.into_iter().collect()
    }
}

#[test]
fn a_pod_is_gone_some_time_after_its_link() {
    for own in [routed(7), port(7)] {
        let mut scene = Scene::new(own);
        let rest = (&[link(8, 6)][..], &[port(6)][..]);
        assert_eq!(
            scene.after(1, rest.0, rest.1, &Answers::default()),
            [] as [IpAddr; 0]
        );
        assert_eq!(
            scene.after(2, rest.0, rest.1, &Answers::default()),
            [] as [IpAddr; 0]
        );
        let gone = [address(9)];
        assert_eq!(scene.after(1, rest.0, rest.1, &Answers::default()), gone);
        assert_eq!(scene.after(20, rest.0, rest.1, &Answers::default()), gone);
        assert_eq!(scene.after(11, rest.0, rest.1, &Answers::default()), gone);
        assert_eq!(
            scene.after(1, rest.0, rest.1, &Answers::default()),
            [] as [IpAddr; 0]
        );
    }
}

#[test]
fn a_pod_whose_neighbour_entry_went_but_not_its_link_is_not_gone() {
    let mut scene = Scene::new(port(7));
    let all = [port(7), port(6)];
    assert_eq!(
        scene.after(60, &[], &all, &Answers::default()),
        [] as [IpAddr; 0]
    );
    assert_eq!(
        scene.after(60, &[], &all, &Answers::default()),
        [] as [IpAddr; 0]
    );
}

#[test]
fn a_pod_that_a_slice_lists_or_that_the_kernel_knows_is_not_gone() {
    let doubts = [
        Answers {
            listed: [(address(9), false)].into(),
            ..Answers::default()
        },
        Answers {
            exists: true,
            ..Answers::default()
        },
        Answers {
            leads: true,
            ..Answers::default()
        },
    ];
    for doubt in doubts {
        let mut scene = Scene::new(port(7));
        scene.see(&[link(8, 6)], &[port(6)]);
        assert_eq!(
            scene.after(10, &[link(8, 6)], &[port(6)], &doubt),
            [] as [IpAddr; 0]
        );
        // As soon as there is no doubt any more.
        let gone = scene.after(1, &[link(8, 6)], &[port(6)], &Answers::default());
        assert_eq!(gone, [address(9)]);
        // And not when it is there again.
        assert_eq!(
            scene.after(1, &[link(8, 6)], &[port(6)], &doubt),
            [] as [IpAddr; 0]
        );
    }
}

#[test]
fn an_address_that_another_pod_has_is_not_gone() {
    let mut scene = Scene::new(port(7));
    scene.see(&[link(8, 6)], &[port(6)]);
    let next = [link(8, 6), link(9, 12)];
    let all = [port(6), port(12)];
    assert_eq!(
        scene.after(10, &next, &all, &Answers::default()),
        [] as [IpAddr; 0]
    );
    assert_eq!(
        scene.after(10, &[link(8, 6)], &all, &Answers::default()),
        [] as [IpAddr; 0]
    );
}

#[test]
fn a_later_port_of_the_bridge_without_a_known_address_may_have_this_one() {
    let mut scene = Scene::new(port(7));
    scene.see(&[link(8, 6)], &[port(6)]);
    let all = [port(6), port(12)];
    assert_eq!(
        scene.after(10, &[link(8, 6)], &all, &Answers::default()),
        [] as [IpAddr; 0]
    );
    let known = [link(8, 6), link(5, 12)];
    let gone = scene.after(1, &known, &all, &Answers::default());
    assert_eq!(gone, [address(9)]);
}

#[test]
fn a_link_local_address_says_nothing_about_a_later_ports_own() {
    let own: IpAddr = "fd00:40::9".parse().expect("an address");
    let of = |address, interface| PodLink {
        address,
        ..link(9, interface)
    };
    let mut scene = Scene::new(port(7));
    scene.see(&[of(own, 7)], &[port(7)]);
    scene.see(&[], &[port(12)]);
    let local = of("fe80::9".parse().expect("an address"), 12);
    let gone = scene.after(10, &[local], &[port(12)], &Answers::default());
    assert!(!gone.contains(&own), "{gone:?}");
    let known = of("fd00:40::5".parse().expect("an address"), 12);
    let gone = scene.after(1, &[local, known], &[port(12)], &Answers::default());
    assert!(gone.contains(&own), "{gone:?}");
}

#[test]
fn hosts_beyond_an_uplink_are_no_pods() {
    let uplink = Interface {
        addresses: vec!["192.168.40.2/24".parse().expect("an address")],
        ..routed(7)
    };
    let mut scene = Scene::new(uplink);
    scene.see(&[], &[]);
    let gone = scene.after(10, &[], &[], &Answers::default());
    assert_eq!(gone, [address(8)]);
}

#[test]
fn an_address_that_a_pod_of_another_node_has_had_is_not_gone() {
    let mut scene = Scene::new(routed(7));
    scene.see(&[link(8, 6)], &[port(6)]);
    let elsewhere = Answers {
        listed: [(address(9), true)].into(),
        ..Answers::default()
    };
    let rest = (&[link(8, 6)][..], &[port(6)][..]);
    let nobody = [] as [IpAddr; 0];
    assert_eq!(scene.after(10, rest.0, rest.1, &elsewhere), nobody);
    // It leaves its slice, and its connections go on.
    assert_eq!(scene.after(1, rest.0, rest.1, &Answers::default()), nobody);
}

#[test]
fn a_pod_that_was_in_doubt_for_long_is_forgotten() {
    let mut scene = Scene::new(routed(7));
    scene.see(&[link(8, 6)], &[port(6)]);
    let listed = Answers {
        listed: [(address(9), false)].into(),
        ..Answers::default()
    };
    let rest = (&[link(8, 6)][..], &[port(6)][..]);
    let nobody = [] as [IpAddr; 0];
    assert_eq!(scene.after(601, rest.0, rest.1, &listed), nobody);
    assert_eq!(scene.after(1, rest.0, rest.1, &Answers::default()), nobody);
}
