// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Starts agents, and the command that removes what they leave, on the node of a [`World`].

use std::{
    fs::{self, File},
    path::Path,
    process::{Child, Command, Stdio},
    sync::Arc,
};

use lab::node::{kubeconfig, options::HEALTH, rights, settings::config_file};

use super::World;
use crate::agent::Agent;

const CLUSTER_CIDR: &str = "10.40.0.0/16,fd00:40::/48";

impl World {
    /// Gives all agents from now on the rights of the agent's container, and no others.
    pub(crate) fn confine(&self) {
        self.confined.set(true);
    }

    fn command(&self, starter: &[&str]) -> Command {
        let binary = self.binary.borrow();
        let mut command = match starter {
            [program, words @ ..] => {
                let mut command = Command::new(program);
                command.args(words).arg(&*binary);
                command
            }
            [] if self.confined.get() => rights::command(&binary),
            [] => Command::new(&*binary),
        };
        command.args(["run", "--hostname-override", "node-a"]);
        command
    }

    /// Starts an agent and waits until it has applied the Node object's version 7, the first.
    pub(crate) fn start(&self) -> Agent {
        self.start_with(&[])
    }

    /// Starts an agent with this configuration and waits in the same way.
    pub(crate) fn start_configured(&self, config: &str) -> Agent {
        let path = self.configure(config);
        self.start_with(&["--config", &path])
    }

    /// Starts an agent that leaves pods' connections to the packet path, and waits in the same way.
    pub(crate) fn start_by_packet(&self, config: &str) -> Agent {
        let path = self.configure(config);
        self.start_with(&["--config", &path, "--socket-balancing", "host"])
    }

    /// Starts an agent that sends every packet through the node's stack.
    pub(crate) fn start_by_stack(&self) -> Agent {
        self.start_configured("portolan: {forwarding: stack}\n")
    }

    /// Writes a configuration file with these settings and those of all; returns its path.
    pub(crate) fn configure(&self, config: &str) -> String {
        let path = self.path("config.yaml");
        fs::write(&path, complete(config)).expect("a config");
        path
    }

    /// Writes a kubeconfig with this server and token; returns its path.
    pub(crate) fn kubeconfig(&self, server: &str, token: &str) -> String {
        let path = self.path("kubeconfig");
        fs::write(&path, kubeconfig::render(server, token)).expect("a kubeconfig");
        path
    }

    /// Starts an agent of another version; later agents are of that version, too.
    pub(crate) fn start_other(&self, binary: &Path) -> Agent {
        binary.clone_into(&mut self.binary.borrow_mut());
        self.start()
    }

    /// Starts an agent with more flags and waits in the same way.
    pub(crate) fn start_with(&self, flags: &[&str]) -> Agent {
        let agent = self.spawn(flags);
        agent.wait_for(7);
        agent
    }

    /// Starts `portolan cleanup` of the last agent's binary for the pins of this node.
    pub(crate) fn cleanup(&self, flags: &[&str]) -> Child {
        self.cleanup_by(&self.binary.borrow(), flags)
    }

    /// Starts `portolan cleanup` of this binary.
    pub(crate) fn cleanup_by(&self, binary: &Path, flags: &[&str]) -> Child {
        let mut command = Command::new(binary);
        command.args(["cleanup", "--pin-dir"]).arg(self.pins.path());
        self.begin(command.args(flags).stdout(Stdio::null()))
    }

    /// Starts an agent that reads the manifests, with more flags; does not wait for it.
    pub(crate) fn spawn(&self, flags: &[&str]) -> Agent {
        self.spawn_by(&[], &[&["--manifests", &self.manifests()], flags].concat())
    }

    /// Starts an agent through another program, which sets its rights; does not wait for it.
    pub(crate) fn spawn_by(&self, starter: &[&str], flags: &[&str]) -> Agent {
        let number = self.logs.get();
        self.logs.set(number + 1);
        let log = self.folder.path().join(format!("log{number}"));
        let mut command = self.command(starter);
        command.arg("--pin-dir").arg(self.pins.path()).args(flags);
        command.stderr(File::create(&log).expect("a log"));
        // With a configuration file these flags have no effect.
        let has_file = flags.contains(&"--config");
        if !has_file {
            command.args(["--cluster-cidr", CLUSTER_CIDR]);
        }
        if !has_file && !flags.contains(&"--healthz-bind-address") {
            let address = HEALTH.to_string();
            command.args(["--healthz-bind-address", &address]);
        }
        if !flags.contains(&"--cgroup-root") {
            command.arg("--cgroup-root").arg(self.cgroup.path());
        }
        Agent::new(Arc::clone(&self.node), self.begin(&mut command), log)
    }
}

/// A configuration file with these settings and those of every agent here.
pub(crate) fn complete(config: &str) -> String {
    let more = [
        ("clusterCIDR", format!("'{CLUSTER_CIDR}'")),
        ("healthzBindAddress", HEALTH.to_string()),
    ];
    config_file(config, &more)
}
