// SPDX-License-Identifier: Apache-2.0 OR MIT

use control::testing::rows;
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

/// Parses an address, or the last number of one.
fn address(text: &str) -> IpAddr {
    match text.parse::<u8>() {
        Ok(last) => [10, 40, 1, last].into(),
        Err(_) => text.parse().expect("an address"),
    }
}

/// Parses a link, written ADDRESS@INTERFACE.
fn link(text: &str) -> Option<PodLink> {
    let (own, interface) = text.split_once('@')?;
    Some(PodLink {
        address: address(own),
        interface: interface.parse().expect("a number"),
        mtu: 1500,
        destination: [2, 0, 0, 0, 0, 9],
        source: [2, 0, 0, 0, 0, 1],
    })
}

struct Answers<'a>(Vec<&'a str>);

impl Asked for Answers<'_> {
    fn listed(&self, addresses: &BTreeSet<IpAddr>) -> BTreeMap<IpAddr, bool> {
        let is_elsewhere = self.0.contains(&"elsewhere");
        let is_listed = is_elsewhere || self.0.contains(&"listed");
        let mut listed = BTreeMap::from_iter(is_listed.then(|| (address("9"), is_elsewhere)));
        listed.retain(|address, _| addresses.contains(address));
        listed
    }
    fn exists(&self, _: u32) -> bool {
        self.0.contains(&"exists")
    }
    fn leads_to_a_pod(&self, _: IpAddr) -> bool {
        self.0.contains(&"leads")
    }
}

/// What holds; the kind of the interface 7, by which a pod with the address 9 was reached while
/// another was by a port 6; and steps. A step has the seconds that pass, the links and ports that
/// are there then (OTHER: those of the other pod), what the kernel and the cluster say about the
/// pod, and behind `=` which addresses are gone.
const STEPS: &str = "
a pod is gone some time after its link, and for a while | routed
  | 1 OTHER; 2 OTHER; 1 OTHER = 9; 20 OTHER = 9; 11 OTHER = 9; 1 OTHER
the same at a bridge | port
  | 1 OTHER; 2 OTHER; 1 OTHER = 9; 20 OTHER = 9; 11 OTHER = 9; 1 OTHER
its neighbour entry went, but not its link | port | 60 7 6; 60 7 6
a slice lists it: gone without doubt, and not when that is there again
  | port | 0 OTHER; 10 OTHER listed; 1 OTHER = 9; 1 OTHER listed
its interface exists | port | 0 OTHER; 10 OTHER exists; 1 OTHER = 9; 1 OTHER exists
a route leads to it | port | 0 OTHER; 10 OTHER leads; 1 OTHER = 9; 1 OTHER leads
another pod has its address | port | 0 OTHER; 10 OTHER 9@12 12; 10 OTHER 12
a later port without a known address may have it
  | port | 0 OTHER; 10 OTHER 12; 1 OTHER 5@12 12 = 9
a link-local address says nothing about a later port's own | port
  | 0 fd00:40::9@7 7; 0 12; 10 fe80::9@12 12; 1 fe80::9@12 fd00:40::5@12 12 = fd00:40::9
hosts beyond an uplink are no pods | uplink | 0; 10 = 8
another node's pod has it: forgotten, its connections go on
  | routed | 0 OTHER; 10 OTHER elsewhere; 1 OTHER
long in doubt: forgotten | routed | 0 OTHER; 601 OTHER listed; 1 OTHER
";

#[test]
fn a_pod_is_gone_some_time_after_its_link_if_nothing_has_its_address() {
    for [what, own, steps] in rows(STEPS) {
        let mut reached = if own == "port" { port(7) } else { routed(7) };
        if own == "uplink" {
            reached.addresses = vec!["192.168.40.2/24".parse().expect("an address")];
        }
        let (mut pods, mut now) = (GonePods::default(), Instant::now());
        let links: Vec<_> = ["9@7", "8@6"].into_iter().filter_map(link).collect();
        pods.observe(&links, &[reached, port(6)], now);
        for step in steps.replace("OTHER", "8@6 6").split("; ") {
            let (seen, expected) = step.split_once(" =").unwrap_or((step, ""));
            let (seconds, seen) = seen.split_once(' ').unwrap_or((seen, ""));
            let words: Vec<_> = seen.split_whitespace().collect();
            let links: Vec<_> = words.iter().filter_map(|word| link(word)).collect();
            let ports = words.iter().filter_map(|word| word.parse().ok());
            let ports: Vec<_> = ports.map(port).collect();
            now += Duration::from_secs(seconds.parse().expect("a number"));
            pods.observe(&links, &ports, now);
            let gone = pods.gone(&links, &ports, now, &Answers(words));
            let expected: BTreeSet<_> = expected.split_whitespace().map(address).collect();
            assert_eq!(gone, expected, "{what}: {step}");
        }
    }
}
