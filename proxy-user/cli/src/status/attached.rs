// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Compares the programs that are attached to this node with those that should be. For `status`.

use std::collections::BTreeSet;

use anyhow::Result;
use datapath::{HOOK_COUNT, present};
use linux::interfaces::{Interface, Interfaces};
use serde::Serialize;

use crate::{
    agent::{Agent, AgentArgs, metric},
    frame::runtime,
};

/// How many hooks or interfaces should have programs, and how many have them.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Count {
    pub(super) wanted: usize,
    pub(super) attached: usize,
}

/// An interface at whose XDP hook portolan's program is attached.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Uplink {
    pub(super) interface: String,
    /// The XDP mode: `native` or `generic`.
    pub(super) xdp: &'static str,
}

/// Where portolan's programs are attached on this node.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Attached {
    pub(super) interfaces: Count,
    pub(super) hooks: Count,
    /// The interfaces at whose XDP hook portolan's program is attached.
    pub(super) uplinks: Vec<Uplink>,
}

/// Compares where programs are attached with what the agent's settings ask for; without an agent,
/// with the defaults. Adds differences to `problems`.
pub(super) fn attached(
    agent: &Agent,
    args: &AgentArgs,
    metrics: Option<&str>,
    problems: &mut Vec<String>,
) -> Result<Attached> {
    let read = present(&args.pins.pin_dir);
    let is_read = read.is_ok();
    let present = read.unwrap_or_else(|error| {
        problems.push(format!("what is attached cannot be read: {error}"));
        Default::default()
    });
    let patterns = agent.config.interface_patterns();
    let interfaces = runtime()?.block_on(Interfaces::open(patterns));
    let wanted: Vec<_> = match &interfaces {
        Ok(all) => all.current().iter().filter(|one| one.attach).collect(),
        Err(error) => {
            problems.push(format!("the interfaces cannot be read: {error}"));
            Vec::new()
        }
    };
    let missing: Vec<_> = present.missing(wanted.iter().copied()).collect();
    if !missing.is_empty() && !present.interfaces.is_empty() {
        let hook = |(one, hook): &(&Interface, &str)| format!("{hook} of {}", one.name);
        let hooks: Vec<_> = missing.iter().map(hook).collect();
        problems.push(format!("no program is attached at {}", hooks.join(", ")));
    }
    let name_of = |index: u32| {
        let mut all = interfaces.iter().flat_map(Interfaces::current);
        let one = all.find(|one| one.index == index);
        one.map_or_else(|| index.to_string(), |one| one.name.clone())
    };
    let uplinks = present.uplinks.iter().map(|(index, xdp)| Uplink {
        interface: name_of(*index),
        xdp,
    });
    let uplinks = uplinks.collect();
    let without: BTreeSet<_> = missing.iter().map(|(one, _)| one.index).collect();
    let interfaces = Count {
        wanted: wanted.len(),
        attached: wanted.len() - without.len(),
    };
    // The kernel may lack some hooks; the agent's metrics have the number.
    let count = metrics.and_then(|text| metric(text, "portolan_hooks_wanted"));
    let wanted = count.map_or(HOOK_COUNT, |count| count as usize);
    let hooks = Count {
        wanted,
        attached: present.hooks.len(),
    };
    if is_read && present.interfaces.is_empty() && hooks.attached == 0 {
        problems.push("no program of portolan is attached to this node".to_owned());
    } else if is_read && hooks.attached < hooks.wanted {
        let Count { wanted, attached } = hooks;
        problems.push(format!("{attached} of {wanted} socket hooks are attached"));
    }
    Ok(Attached {
        interfaces,
        hooks,
        uplinks,
    })
}
