// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `portolan services NAME --bpftool`: prints the commands that show the map elements of a service.
//! Called by `services`.

use std::fmt::Write;

use datapath::read::{About, Element, Frontend};

/// A function that writes the address of a frontend as text.
type Address = fn(&Frontend) -> String;

/// Returns, for each map element, a comment and the bpftool command that shows it.
pub(super) fn commands(elements: &[Element], address: Address) -> String {
    let mut text = String::from(
        "# From a frontend to its endpoints, and what is kept of the service. docs/maps.md explains each field.\n",
    );
    for element in elements {
        let map = element.map.display();
        let command = match &element.key {
            Some(key) => {
                let key: Vec<_> = key.iter().map(|byte| format!("{byte:02x}")).collect();
                format!("bpftool map lookup pinned {map} key hex {}", key.join(" "))
            }
            None => format!("bpftool map dump pinned {map}"),
        };
        // Writing to a string does not fail.
        _ = writeln!(text, "# {}\n{command}", what(&element.about, address));
    }
    text
}

/// Returns the comment that says what to look for in a map element.
fn what(about: &About, address: Address) -> String {
    match about {
        About::Frontend(row) => format!(
            "{} {} {}: `value` is its record's id",
            row.service,
            row.kind,
            address(row)
        ),
        About::Record(id, [internal, external]) => format!(
            "record {id}: `internal` and `external` are its blocks ({} for clients inside the cluster, {} for others): first slot x 2^32 + how many",
            slots(*internal),
            slots(*external)
        ),
        About::Slot(number, of, backend) => {
            let more = if number + 1 < *of { "" } else { ", the last" };
            format!(
                "slot {} of {of}{more}: `value` is a backend's id, {backend}",
                number + 1
            )
        }
        About::Backend(id, address) => format!(
            "backend {id}, {address}: `port` as on the wire; `sets` 1 cluster, 2 local, 3 both, 0 not selected"
        ),
        About::Traffic(address, true) => format!(
            "what was counted of {address}, by each CPU: connections, packets and bytes each way"
        ),
        About::Traffic(address, false) => {
            format!("what was counted of {address} together with all others beyond the map's size")
        }
        About::Name(id) => {
            format!("service port {id}: its namespace, name and port, as octets")
        }
        About::Source(range) => {
            format!("clients of {range} may use it: `prefix_len` is 32 more than the range's")
        }
        About::Held(client, backend) => format!(
            "affinity of {client}: held to `backend` {backend}, void if its `generation` is not the backend's"
        ),
        About::NobodyHeld(id) => {
            format!(
                "affinity: no client is held now; elements with `service` {id} would be its own"
            )
        }
        About::Refused(counter) => {
            format!("packets that were refused, by each CPU: {}", counter.name())
        }
    }
}

fn slots(count: u32) -> String {
    match count {
        0 => "no slot".to_owned(),
        1 => "1 slot".to_owned(),
        count => format!("{count} slots"),
    }
}

#[cfg(test)]
mod tests {
    use proxy_common::Counter;

    use super::*;
    use crate::services::{address, tests::rows};

    #[test]
    fn every_element_has_a_comment_and_a_command_with_its_key() {
        let element = |map: &str, key: Option<&[u8]>, about| Element {
            map: format!("/pins/{map}").into(),
            key: key.map(<[u8]>::to_vec),
            about,
        };
        let frontend = rows().remove(0);
        let endpoint = "10.40.1.10:8080".parse().expect("an address");
        let said = commands(
            &[
                element(
                    "frontends_v4",
                    Some(&[172, 30, 1, 1, 0, 80, 6, 0]),
                    About::Frontend(frontend),
                ),
                element("records_v4", Some(&[1, 0, 0, 0]), About::Record(1, [2, 0])),
                element("slots", Some(&[9, 0, 0, 0]), About::Slot(1, 2, 7)),
                element(
                    "backends_v4",
                    Some(&[7, 0, 0, 0]),
                    About::Backend(7, endpoint),
                ),
                element("affinity_v4", None, About::NobodyHeld(3)),
                element(
                    "refused",
                    Some(&[3]),
                    About::Refused(Counter::DroppedSource),
                ),
            ],
            address,
        );
        let lines: Vec<_> = said.lines().skip(1).collect();
        assert_eq!(lines.len(), 12);
        assert!(lines.chunks(2).all(|pair| pair[0].starts_with("# ")));
        assert_eq!(
            lines[0],
            "# shop/cart cluster-ip 172.30.1.1:80/TCP: `value` is its record's id"
        );
        assert_eq!(
            lines[1],
            "bpftool map lookup pinned /pins/frontends_v4 key hex ac 1e 01 01 00 50 06 00"
        );
        assert!(lines[2].contains("2 slots for clients inside the cluster, no slot for others"));
        assert_eq!(
            lines[4],
            "# slot 2 of 2, the last: `value` is a backend's id, 7"
        );
        assert_eq!(lines[9], "bpftool map dump pinned /pins/affinity_v4");
    }
}
