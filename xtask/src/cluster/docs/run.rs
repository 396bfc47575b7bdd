// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Runs the steps of `cargo xtask docs`: each command as a reader would run it, in a shell on a
//! node or outside of the nodes, and counts the failed requests of clients meanwhile. The output of
//! the commands is kept in a file.

use std::{
    fs::OpenOptions,
    io::Write as _,
    path::{Path, PathBuf},
    process::{Child, Command},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};

use super::{
    left_out, page,
    steps::Step,
    words::{self, Meaning},
};
use crate::{
    cargo,
    cluster::{
        control::{beside, kubectl},
        daemon::{inside, run as output},
        disrupt::{Clients, sum},
        images, layout,
        layout::{CONTROL, NODES, Node},
        node, proxy,
        tools::Tools,
    },
    deploy, fs,
};

/// The run of all steps: the commands, their surroundings, and the results so far.
pub(super) struct Rehearsal<'a> {
    tools: &'a Tools,
    commands: Vec<page::Command>,
    clients: Clients<'a>,
    /// The folder in which the commands run, with a copy of `deploy` changed for this machine.
    pub(super) folder: PathBuf,
    /// The node whose name replaces NODE in commands, and on which commands for a node run.
    node: &'static Node,
    rows: Vec<String>,
    failed: u64,
    /// The process of a command that does not end by itself, with the path of its log.
    pub(super) beside: Option<(Child, PathBuf)>,
    /// The value of PATH with which the commands run.
    path: String,
}

/// Commands; true with a command means that it is for a shell on a node.
type Lines = Vec<(String, bool)>;

impl<'a> Rehearsal<'a> {
    pub(super) fn new(tools: &'a Tools, commands: Vec<page::Command>) -> Result<Self> {
        let folder = cargo::root().join("target/docs");
        fs::remove_dir_all(&folder)?;
        fs::create_dir_all(&folder)?;
        let mut copy = Command::new("cp");
        copy.arg("-r").arg(cargo::root().join("deploy"));
        output(copy.arg(&folder))?;
        let programs = [
            tools.path(),
            deploy::helm_folder()?.display().to_string(),
            cargo::root().join("target/image").display().to_string(),
            folder.join("deploy/kubectl").display().to_string(),
            std::env::var("PATH").unwrap_or_default(),
        ];
        let rehearsal = Self {
            path: programs.join(":"),
            beside: None,
            tools,
            commands,
            clients: Clients::new(tools)?,
            folder,
            node: &NODES[0],
            rows: Vec::new(),
            failed: 0,
        };
        // All nodes share one kernel, so a node's own cgroup mount is not at the usual path.
        let cgroups = node::cgroup_mount();
        for (file, key) in [
            ("base/daemonset.yaml", "path"),
            ("chart/values.yaml", "cgroupRoot"),
        ] {
            let value = |place: &dyn std::fmt::Display| format!("{key}: {place}");
            rehearsal.write(file, &value(&"/sys/fs/cgroup"), &value(&cgroups.display()))?;
        }
        Ok(rehearsal)
    }

    pub(super) fn go(&mut self, step: Step) -> Result<()> {
        match step {
            Step::Busy(page, section, part) => self.section(page, section, part, true),
            Step::Quiet(page, section, part) => self.section(page, section, part, false),
            Step::Said(line) => self.busy("", line, &[(line.to_owned(), false)], true),
            Step::Write(file, old, new) => self.write(file, old, new),
            Step::Tag(tag) => images::tag_agent(self.tools, tag),
            Step::KubeProxy(mode) => self.kube_proxy(mode),
            Step::Beside(page, section, part) => self.start_beside(page, section, part),
            Step::End => self.end_beside(),
            Step::Node(name) => {
                let node = NODES.iter().find(|node| node.place.name == name);
                self.node = node.context("no such node")?;
                Ok(())
            }
        }
    }

    /// Replaces portolan by kube-proxy in this mode (e.g. nftables), on all nodes and completely.
    fn kube_proxy(&self, mode: &str) -> Result<()> {
        let overlay = |name| format!("deploy/overlays/{name}");
        let release = "helm -n kube-system uninstall portolan --ignore-not-found";
        self.run(release, false)?;
        for name in ["kubeadm", "bare", "shadow", "drain"] {
            let overlay = overlay(name);
            let line = format!("kubectl delete --ignore-not-found --wait=true -k {overlay}");
            self.run(&line, false)?;
        }
        proxy::remove_kube_proxy(self.tools)?;
        for node in &NODES {
            let name = node.place.name;
            kubectl(
                self.tools,
                &format!("label node {name} portolan.dev/proxy-"),
            )?;
        }
        proxy::start_kube_proxy(self.tools, mode)?;
        self.run(&format!("kubectl apply -k {}", overlay("drain")), false)?;
        proxy::system(self.tools, "rollout status daemonset/portolan --timeout=5m")?;
        let gone = format!("kubectl delete --wait=true -k {}", overlay("drain"));
        self.run(&gone, false)?;
        self.clients.ready()
    }

    /// Returns a Markdown table with a row for each step.
    pub(super) fn table(&self) -> String {
        let head = "| page, section | commands | took | requests | failed |\n| --- | --- | ---: | ---: | ---: |";
        format!("{head}\n{}", self.rows.join("\n"))
    }

    /// Removes the clients' pods and service, and returns how many of the clients' requests failed.
    pub(super) fn end(self) -> Result<u64> {
        self.clients.remove()?;
        Ok(self.failed)
    }

    /// Runs those commands of a documentation page's section whose text contains `part`.
    /// `with_clients`: clients send requests meanwhile, and failed requests are counted.
    fn section(&mut self, page: &str, section: &str, part: &str, with_clients: bool) -> Result<()> {
        let lines = self.lines(page, section, part)?;
        let what = format!("{section}: {part}");
        self.busy(page, what.trim_end_matches(": "), &lines, with_clients)
    }

    /// Returns the commands of a section that contain `part`.
    pub(super) fn lines(&self, page: &str, section: &str, part: &str) -> Result<Lines> {
        let commands = self.commands.iter();
        let lines: Lines = commands
            .filter(|command| command.page == page && command.section == section)
            .filter(|command| command.line.contains(part) && left_out(command).is_none())
            .map(|command| (command.line.clone(), command.on_node))
            .collect();
        ensure!(!lines.is_empty(), "no such command on the page");
        Ok(lines)
    }

    fn busy(
        &mut self,
        page: &str,
        what: &str,
        lines: &[(String, bool)],
        with_clients: bool,
    ) -> Result<()> {
        let mut took = Duration::ZERO;
        let mut act = || {
            let begun = Instant::now();
            let mut lines = lines.iter();
            let done = lines.try_for_each(|(line, on_node)| self.run(line, *on_node));
            took = begun.elapsed();
            done
        };
        let load = if with_clients {
            let results = self.clients.during(&mut act)?;
            let (done, failed) = (sum(&results, "done"), sum(&results, "failed"));
            if failed > 0 {
                eprintln!("{results:?}");
            }
            self.failed += failed;
            format!("{done} | {failed}")
        } else {
            act()?;
            " | ".to_owned()
        };
        let (count, seconds) = (lines.len(), took.as_secs_f64());
        let row = format!("| {page} {what} | {count} | {seconds:.1} s | {load} |");
        self.rows.push(row);
        Ok(())
    }

    fn write(&self, file: &str, old: &str, new: &str) -> Result<()> {
        let file = self.folder.join("deploy").join(file);
        let text = fs::read_to_string(&file)?;
        ensure!(text.contains(old), "{} has no {old:?}", file.display());
        fs::write(&file, text.replacen(old, new, 1))
    }

    /// Returns the command `line` with each of its placeholders replaced by this cluster's value.
    pub(super) fn filled(&self, line: &str) -> Result<String> {
        let node = &self.node.place;
        words::fill(line, |meaning| match meaning {
            Meaning::Is(text) => Ok(text.to_owned()),
            Meaning::PodOnNode => {
                let on = format!("--field-selector=spec.nodeName={}", node.name);
                let get = format!("get pods -l app=portolan -o name {on}");
                let pods = proxy::system(self.tools, &get)?;
                Ok(pods.lines().next().unwrap_or_default().to_owned())
            }
            Meaning::Node if line.starts_with("curl") => Ok(node.address.to_owned()),
            Meaning::Node => Ok(node.name.to_owned()),
            Meaning::Server => Ok(format!("//{}", CONTROL.address)),
            Meaning::Kubeconfig => Ok(format!("--kubeconfig {}", layout::kubeconfig().display())),
            Meaning::Client => {
                let get = "get pod load-client -o jsonpath={.status.podIP}";
                kubectl(self.tools, get)
            }
            Meaning::Service => Ok(self.clients.address().to_owned()),
        })
    }

    /// Returns a command that runs `line` in a shell, on the current node or outside of the nodes,
    /// in the folder `folder`.
    pub(super) fn shell(&self, line: &str, on_node: bool) -> Result<Command> {
        let shell = Path::new("/bin/sh");
        let mut command = if on_node {
            let mut command = inside(&self.node.place)?;
            command.arg(shell);
            command
        } else {
            beside(shell)
        };
        // The editor of `kubectl edit`: it changes one setting, as a reader would.
        let editor = "sed -i s/socketBalancing..all/socketBalancing..host/";
        let home = self.folder.join("helm");
        let homes = ["HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME"];
        // Commands on a node have the node's mounts, so the shell must enter the folder again.
        let line = format!("cd {} && {line}", self.folder.display());
        command
            .args(["-c", &line])
            .envs([("PATH", self.path.as_str()), ("KUBE_EDITOR", editor)])
            .envs(homes.map(|name| (name, &home)))
            .env("KUBECONFIG", layout::kubeconfig());
        Ok(command)
    }

    /// Runs the command `line`, and fails if its exit status is not one that it may have.
    fn run(&self, line: &str, on_node: bool) -> Result<()> {
        let line = self.filled(line)?;
        let done = self.shell(&line, on_node)?.output();
        let done = done.with_context(|| line.clone())?;
        let said = String::from_utf8_lossy(&done.stdout);
        let errors = String::from_utf8_lossy(&done.stderr);
        let mut kept = OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.folder.join("said.log"))
            .context("keep what the commands print")?;
        writeln!(kept, "$ {line}\n{said}{errors}").context("keep what a command printed")?;
        if !words::is_as_it_should(&line, done.status.code()) {
            bail!("{line}: {}\n{said}{errors}", done.status);
        }
        eprintln!("  $ {line}");
        Ok(())
    }
}

impl Drop for Rehearsal<'_> {
    fn drop(&mut self) {
        if let Some((child, _)) = &mut self.beside {
            // The process may have ended already.
            _ = child.kill();
        }
    }
}
