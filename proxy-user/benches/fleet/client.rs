// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A process of the fleet: agents of which only the source of objects runs. It lists, watches and
//! converts; its batches are looked through for marked objects, and dropped.
//! `lab/src/fleet/lines.rs` describes what it reads and writes.

use std::{
    io::{BufRead, Write, stdin, stdout},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::{SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, Result};
use control::{
    change::{Batch, Change},
    model::{Endpoints, Object},
    object::ObjectName,
};
use lab::fleet::{
    lines::{Mark, Marks, Subject, parse_restart},
    objects::{
        MARKED_NAMESPACE, MARKED_SERVICE, MARKED_SLICE, mark_of_address, mark_of_port, node_name,
    },
};
use source::{
    ObjectSource,
    api_server::{Access, ApiServer},
};
use tokio::{sync::mpsc, task::JoinHandle};

/// How many batches may wait, as in the agent.
const BATCHES: usize = 16;

/// Runs `count` agents until standard input ends. The first one's node has the number `first`.
pub(crate) fn run(kubeconfig: &Path, first: u32, count: usize) -> Result<()> {
    let (sender, mut commands) = mpsc::unbounded_channel();
    thread::spawn(move || {
        for line in stdin().lock().lines().map_while(Result::ok) {
            _ = sender.send(line);
        }
    });
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let marks = Arc::new(Mutex::new(Marks::new(count)));
    let start = |agent: usize| {
        let node = node_name(first + agent as u32);
        tokio::spawn(follow(
            kubeconfig.to_owned(),
            node,
            agent,
            Arc::clone(&marks),
        ))
    };
    runtime.block_on(async {
        let mut agents: Vec<JoinHandle<()>> = (0..count).map(start).collect();
        while let Some(command) = commands.recv().await {
            let range = parse_restart(&command).with_context(|| format!("command {command:?}"))?;
            for agent in &mut agents[range.clone()] {
                agent.abort();
                // The error says that it was aborted.
                _ = agent.await;
            }
            for agent in range {
                agents[agent] = start(agent);
            }
        }
        Ok(())
    })
}

/// Follows the API server as one agent does, and reports what arrives.
async fn follow(kubeconfig: PathBuf, node: String, agent: usize, marks: Arc<Mutex<Marks>>) {
    let access = Access::Kubeconfig {
        file: kubeconfig,
        master: None,
    };
    let (sender, mut batches) = mpsc::channel::<Batch>(BATCHES);
    // With ServiceCIDRs, which kube-proxy follows and the agent by default does not.
    let source = ApiServer::new(access, &node).with_service_cidrs(true);
    let look = async {
        while let Some(batch) = batches.recv().await {
            if batch.listed {
                report(&format!("listed {agent}"));
            }
            let mut marks = marks.lock().unwrap_or_else(PoisonError::into_inner);
            for mark in batch.changes.iter().filter_map(mark_of) {
                for mark in marks.saw(agent, mark) {
                    report(&format!("seen {mark}"));
                }
            }
        }
    };
    let (result, ()) = tokio::join!(source.run(sender), look);
    if let Err(error) = result {
        eprintln!("{node}: {error}");
        std::process::exit(1);
    }
}

/// Writes a line and the time, at once: the bench waits for it.
fn report(text: &str) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.map_or(0, |since| since.as_nanos());
    let mut out = stdout().lock();
    let written = writeln!(out, "{text} {now}").and_then(|()| out.flush());
    if written.is_err() {
        // The bench has ended.
        std::process::exit(1);
    }
}

/// Returns which change of a marked object it is; None if it is of another object.
fn mark_of(change: &Change) -> Option<Mark> {
    let Change::Upsert(object) = change else {
        return None;
    };
    let ObjectName { namespace, name } = object.name();
    if **namespace != *MARKED_NAMESPACE {
        return None;
    }
    let (subject, number) = match object {
        Object::EndpointSlice(slice) if **name == *MARKED_SLICE => {
            let Endpoints::V4(endpoints) = &slice.endpoints else {
                return None;
            };
            let addresses = endpoints.iter().map(|endpoint| endpoint.address.octets);
            let marks = addresses.filter_map(|octets| mark_of_address(octets.into()));
            (Subject::Slice, marks.max())
        }
        Object::Service(service) if **name == *MARKED_SERVICE => {
            let ports = service.ports.iter();
            let marks = ports.filter_map(|port| mark_of_port(port.port.host()));
            (Subject::Service, marks.max())
        }
        _ => return None,
    };
    number.map(|number| Mark { subject, number })
}
