// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Every map carries its types, so that bpftool prints the names of fields.

use std::process::Command;

use proxy_common::maps::{ALL, LAYOUT_VERSION};
use serde_json::Value;

use crate::world::World;

/// Fields that bpftool must name in these maps.
const NAMED: [(&str, &str); 9] = [
    ("frontends_v4", "address port protocol"),
    ("records_v4", "internal external affinity_timeout"),
    ("backends_v4", "address port sets generation"),
    ("names", "namespace port_name"),
    ("flows_v4", "src dst_port masquerade_port last_seen"),
    ("sock_buckets_v4", "owner frontend backend_address"),
    ("traffic_v4", "packets_in connections unanswered"),
    ("ring_ends", "pushed emptied"),
    ("settings", "masquerade_ports internal_v4 node_netns"),
];

/// What a command prints, which must be JSON.
fn json(command: &mut Command) -> Value {
    let output = command.output().expect("it starts");
    assert!(output.status.success(), "{command:?}: {output:?}");
    let parsed = serde_json::from_slice(&output.stdout);
    parsed.unwrap_or_else(|error| panic!("{command:?}: {error}: {output:?}"))
}

pub(crate) fn bpftool_reads_every_map_with_the_names_of_its_fields(world: &World) {
    let _open = world.connect("172.30.1.1:80").expect("served");
    for map in ALL {
        let pin = world.pins().join(format!("v{LAYOUT_VERSION}/{map}"));
        let bpftool = |words: &[&str]| {
            let mut command = Command::new("bpftool");
            command.arg("map").arg(words[0]).arg("pinned").arg(&pin);
            command.args(&words[1..]);
            command
        };
        let about = json(bpftool(&["show"]).arg("--json"));
        assert!(about["btf_id"].is_u64(), "{map} has no types: {about}");
        let kind = about["type"].as_str().expect("a type");
        // Of arrays one element: many are large.
        let shown = match kind.ends_with("array") {
            true => json(&mut bpftool(&["lookup", "key", "0", "0", "0", "0"])),
            false => json(&mut bpftool(&["dump"])),
        };
        let shown = shown.to_string();
        let named = NAMED.iter().find(|(name, _)| name == map);
        for field in named.into_iter().flat_map(|(_, fields)| fields.split(' ')) {
            assert!(
                shown.contains(&format!("\"{field}\":")),
                "{map}: {field}: {shown}"
            );
        }
    }
}
