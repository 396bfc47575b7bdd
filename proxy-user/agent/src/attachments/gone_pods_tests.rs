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

/// No address.
const NOBODY: [IpAddr; 0] = [];

/// Links of pods, and interfaces.
type Seen<'a> = (&'a [PodLink], &'a [Interface]);

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
        scene.see((&[link(9, 7), link(8, 6)], &[own, port(6)]));
        scene
    }
    /// Returns the scene after the pod's link has gone.
    fn without(own: Interface) -> Self {
        let mut scene = Self::new(own);
        scene.see((&[link(8, 6)], &[port(6)]));
        scene
    }
    fn see(&mut self, (links, interfaces): Seen<'_>) {
        self.pods.observe(links, interfaces, self.now);
    }
    /// Lets time pass, and returns the addresses of pods that are gone.
    fn asked(&mut self, seconds: u64, seen: Seen<'_>, answers: &Answers) -> Vec<IpAddr> {
        self.now += Duration::from_secs(seconds);
        self.see(seen);
        let gone = self.pods.gone(seen.0, seen.1, self.now, answers);
        gone.into_iter().collect()
    }
    /// The same, while nobody knows of the pod.
    fn after(&mut self, seconds: u64, seen: Seen<'_>) -> Vec<IpAddr> {
        self.asked(seconds, seen, &Answers::default())
    }
}

#[test]
fn a_pod_is_gone_some_time_after_its_link() {
    for own in [routed(7), port(7)] {
        let mut scene = Scene::new(own);
        for (seconds, is_gone) in [
            (1, false),
            (2, false),
            (1, true),
            (20, true),
            (11, true),
            (1, false),
        ] {
            let gone = scene.after(seconds, (&[link(8, 6)], &[port(6)]));
            assert_eq!(gone, [address(9)][..usize::from(is_gone)], "{seconds}");
        }
    }
}

#[test]
fn a_pod_whose_neighbour_entry_went_but_not_its_link_is_not_gone() {
    let mut scene = Scene::new(port(7));
    for _ in 0..2 {
        assert_eq!(scene.after(60, (&[], &[port(7), port(6)])), NOBODY);
    }
}

#[test]
fn a_pod_that_a_slice_lists_or_that_the_kernel_knows_is_not_gone() {
    let listed = [(address(9), false)].into();
    for (listed, exists, leads) in [
        (listed, false, false),
        (BTreeMap::new(), true, false),
        (BTreeMap::new(), false, true),
    ] {
        let doubt = Answers {
            listed,
            exists,
            leads,
        };
        let (links, ports) = ([link(8, 6)], [port(6)]);
        let mut scene = Scene::without(port(7));
        assert_eq!(scene.asked(10, (&links, &ports), &doubt), NOBODY);
        // As soon as there is no doubt any more, and not when it is there again.
        assert_eq!(scene.after(1, (&links, &ports)), [address(9)]);
        assert_eq!(scene.asked(1, (&links, &ports), &doubt), NOBODY);
    }
}

#[test]
fn an_address_that_another_pod_has_is_not_gone() {
    let mut scene = Scene::without(port(7));
    let all = [port(6), port(12)];
    assert_eq!(scene.after(10, (&[link(8, 6), link(9, 12)], &all)), NOBODY);
    assert_eq!(scene.after(10, (&[link(8, 6)], &all)), NOBODY);
}

#[test]
fn a_later_port_of_the_bridge_without_a_known_address_may_have_this_one() {
    let mut scene = Scene::without(port(7));
    let all = [port(6), port(12)];
    assert_eq!(scene.after(10, (&[link(8, 6)], &all)), NOBODY);
    let gone = scene.after(1, (&[link(8, 6), link(5, 12)], &all));
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
    scene.see((&[of(own, 7)], &[port(7)]));
    scene.see((&[], &[port(12)]));
    let local = of("fe80::9".parse().expect("an address"), 12);
    let gone = scene.after(10, (&[local], &[port(12)]));
    assert!(!gone.contains(&own), "{gone:?}");
    let known = of("fd00:40::5".parse().expect("an address"), 12);
    let gone = scene.after(1, (&[local, known], &[port(12)]));
    assert!(gone.contains(&own), "{gone:?}");
}

#[test]
fn hosts_beyond_an_uplink_are_no_pods() {
    let uplink = Interface {
        addresses: vec!["192.168.40.2/24".parse().expect("an address")],
        ..routed(7)
    };
    let mut scene = Scene::new(uplink);
    scene.see((&[], &[]));
    assert_eq!(scene.after(10, (&[], &[])), [address(8)]);
}

/// The first leaves its slice, and its connections go on.
#[test]
fn an_address_of_another_nodes_pod_or_long_in_doubt_is_forgotten() {
    for (seconds, is_elsewhere) in [(10, true), (601, false)] {
        let listed = Answers {
            listed: [(address(9), is_elsewhere)].into(),
            ..Answers::default()
        };
        let (links, ports) = ([link(8, 6)], [port(6)]);
        let mut scene = Scene::without(routed(7));
        assert_eq!(scene.asked(seconds, (&links, &ports), &listed), NOBODY);
        assert_eq!(scene.after(1, (&links, &ports)), NOBODY);
    }
}
