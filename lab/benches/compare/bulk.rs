// SPDX-License-Identifier: Apache-2.0 OR MIT
//! iperf3 servers in the pods of both nodes, for measuring the throughput.

use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};

use crate::world::World;

/// The processes of the iperf3 servers. Dropping this ends the servers.
pub(crate) struct BulkServers(Vec<Child>);

impl BulkServers {
    pub(crate) fn start(worlds: [&World; 2]) -> Result<Self> {
        let mut all = Self(Vec::new());
        for world in worlds {
            for port in World::bulk_ports() {
                let mut command = Command::new("iperf3");
                command
                    .args(["--server", "--port", &port.to_string()])
                    .stdin(Stdio::null())
                    .stdout(Stdio::null());
                let spawn = || world.pod().enter(|| command.spawn());
                let child = world.cgroup().inside(spawn)??;
                all.0.push(child.context("start iperf3: install it")?);
            }
        }
        Ok(all)
    }
}

impl Drop for BulkServers {
    fn drop(&mut self) {
        for child in &mut self.0 {
            _ = child.kill();
            _ = child.wait();
        }
    }
}
