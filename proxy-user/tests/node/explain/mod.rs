// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `portolan explain`: its answer agrees with what happens to real packets.

mod input;
mod names;
mod reasons;
mod verdicts;

use std::process::Output;

use lab::node::{netns::NetNs, pod::plug};
use serde_json::Value;

use crate::world::World;

/// The address of the client pod.
const CLIENT: &str = "10.40.1.10";
/// The address of a client outside the node that is no pod.
pub(crate) const OUTSIDE: &str = "198.51.100.7";

pub(crate) fn run(world: &World, flags: &[&str]) -> Output {
    let mut command = world.asking(&[&["explain"], flags].concat());
    world.output(command.env_remove("KUBECONFIG"))
}

/// One answer of `portolan explain`.
pub(crate) struct Said {
    pub(crate) status: i32,
    pub(crate) report: Value,
}

/// Runs `portolan explain`.
pub(crate) fn explain(world: &World, from: &str, to: &str, flags: &[&str]) -> Said {
    let words = ["--from", from, "--to", to, "--output", "json"];
    let output = run(world, &[&words, flags].concat());
    let said = String::from_utf8_lossy(&output.stderr);
    let report = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {output:?} {said}"));
    Said {
        status: output.status.code().expect("a status"),
        report,
    }
}

impl Said {
    /// Whether nothing of portolan's is in the way.
    fn is_in_order(&self) -> bool {
        let (verdict, answered) = match self.status {
            1 => ("differs", Value::Null),
            3 => ("notAnswered", Value::Bool(false)),
            _ => ("notLookedAt", Value::Null),
        };
        let said = (&self.report["verdict"], &self.report["answered"]);
        assert_eq!(said, (&verdict.into(), &answered), "{:#}", self.report);
        self.status != 3
    }
    pub(crate) fn outcome(&self) -> &str {
        self.report["outcome"].as_str().expect("an outcome")
    }
    /// The endpoints that can answer.
    #[track_caller]
    fn endpoints(&self) -> Vec<&str> {
        let all = self.report["endpoints"].as_array().expect("endpoints");
        let able = all.iter().filter(|one| one["canAnswer"] == true);
        able.map(|one| one["address"].as_str().expect("an address"))
            .collect()
    }
    /// Expects a finding of this level with these words and a page; unless it is a note, also a
    /// remedy.
    #[track_caller]
    pub(crate) fn finds(&self, level: &str, words: &str) {
        let findings = self.report["findings"].as_array().expect("findings");
        let text = |finding: &Value, key: &str| finding[key].as_str().map(ToOwned::to_owned);
        let is_it = |finding: &&Value| {
            let said =
                [text(finding, "about"), text(finding, "found")].map(Option::unwrap_or_default);
            finding["level"] == level && said.join(": ").contains(words)
        };
        let found = findings.iter().find(is_it);
        let found = found.unwrap_or_else(|| panic!("{level}, {words}: {:#}", self.report));
        assert!(
            found["page"]
                .as_str()
                .is_some_and(|page| page.starts_with("docs/"))
        );
        assert_eq!(found["remedy"].is_string(), level != "note", "{found:#}");
    }
    /// Expects this outcome, and that portolan's part is in order.
    #[track_caller]
    fn is_clean(&self, outcome: &str) {
        let said = (self.status, self.outcome());
        assert_eq!(said, (4, outcome), "{:#}", self.report);
    }
}

/// Connects a client that is no pod to the node.
pub(crate) fn outside(world: &World) -> NetNs {
    let outside = NetNs::new("outside").expect("run as root");
    plug(world.node(), &outside, &[OUTSIDE]).expect("joined");
    outside
}

/// Gives the server pod another address, at which it answers too.
pub(crate) fn serve_also(world: &World, address: &str) {
    let add = format!("address add {address}/32 dev eth0\n");
    world.server().ip(&add).expect("an address");
    let interface = world.server_interface();
    world.ip(&format!("route add {address}/32 dev {interface}"));
    world.serve((address, 8080));
}
