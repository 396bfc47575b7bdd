// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `cargo xtask docs`: runs the commands of the pages, word by word, in the cluster that `cluster up` has built, while clients are
//! busy, and tells how long each took and what the clients lost.

mod page;
mod steps;

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};

use self::steps::{LEFT_OUT, STEPS, Step};
use super::{
    control::{beside, kubectl},
    daemon::{inside, run as output},
    disrupt::{Clients, sum},
    images, layout,
    layout::{NODES, Node},
    node, proxy,
    tools::Tools,
};
use crate::cargo;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Only name the commands, and those that are left out
    #[arg(long)]
    list: bool,
    /// Begin with the round from kube-proxy that has this number
    #[arg(long, default_value_t = 1)]
    round: usize,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let commands = page::all()?;
    if arguments.list {
        for command in &commands {
            let reason =
                left_out(command).map_or(String::new(), |why| format!("   (left out: {why})"));
            println!(
                "{} \"{}\": {}{reason}",
                command.page, command.section, command.line
            );
        }
        return Ok(());
    }
    let tools = super::standing()?;
    let mut rehearsal = Rehearsal::new(&tools, commands)?;
    let mut round = 0;
    let steps = STEPS.iter().filter(|step| {
        round += usize::from(matches!(step, Step::KubeProxy(_)));
        round >= arguments.round
    });
    let ended = steps.into_iter().try_for_each(|step| {
        eprintln!("docs: {step:?}");
        rehearsal.go(*step).with_context(|| format!("{step:?}"))
    });
    println!(
        "| page, section | commands | took | requests | failed |\n| --- | --- | ---: | ---: | ---: |"
    );
    println!("{}", rehearsal.rows.join("\n"));
    ended?;
    rehearsal.clients.remove()?;
    ensure!(
        rehearsal.failed == 0,
        "{} requests failed",
        rehearsal.failed
    );
    Ok(())
}

fn left_out(command: &page::Command) -> Option<&'static str> {
    let found = LEFT_OUT.iter().find(|(page, section, start, _)| {
        *page == command.page
            && (section.is_empty() || *section == command.section)
            && command.line.starts_with(start)
    });
    found.map(|(.., why)| *why)
}

/// What is tried, where, and what came of it so far.
struct Rehearsal<'a> {
    tools: &'a Tools,
    commands: Vec<page::Command>,
    clients: Clients<'a>,
    /// Has a copy of `deploy` with what this machine needs; the commands run there.
    folder: PathBuf,
    /// What NODE stands for.
    node: &'static Node,
    rows: Vec<String>,
    failed: u64,
}

impl<'a> Rehearsal<'a> {
    fn new(tools: &'a Tools, commands: Vec<page::Command>) -> Result<Self> {
        let folder = cargo::root().join("target/docs");
        if folder.exists() {
            fs::remove_dir_all(&folder).with_context(|| format!("remove {}", folder.display()))?;
        }
        fs::create_dir_all(&folder).with_context(|| format!("make {}", folder.display()))?;
        output(
            Command::new("cp")
                .arg("-r")
                .arg(cargo::root().join("deploy"))
                .arg(&folder),
        )?;
        let rehearsal = Self {
            tools,
            commands,
            clients: Clients::new(tools)?,
            folder,
            node: &NODES[0],
            rows: Vec::new(),
            failed: 0,
        };
        // All nodes share one kernel, so each has cgroups of its own elsewhere.
        let cgroups = node::cgroup_mount();
        let cgroups = format!("path: {}", cgroups.display());
        rehearsal.write("base/daemonset.yaml", "path: /sys/fs/cgroup", &cgroups)?;
        Ok(rehearsal)
    }

    fn go(&mut self, step: Step) -> Result<()> {
        match step {
            Step::Busy(page, section, part) => self.section(page, section, part, true),
            Step::Quiet(page, section, part) => self.section(page, section, part, false),
            Step::Said(line) => self.busy("", line, &[(line.to_owned(), false)], true),
            Step::Write(file, old, new) => self.write(file, old, new),
            Step::Tag(tag) => images::tag_agent(self.tools, tag),
            Step::KubeProxy(mode) => self.kube_proxy(mode),
            Step::Node(name) => {
                let node = NODES.iter().find(|node| node.place.name == name);
                self.node = node.context("no such node")?;
                Ok(())
            }
        }
    }

    /// kube-proxy serves, and nothing of portolan is left on any node.
    fn kube_proxy(&self, mode: &str) -> Result<()> {
        let overlay = |name| {
            self.folder
                .join("deploy/overlays")
                .join(name)
                .display()
                .to_string()
        };
        let (serving, drain) = (overlay("kubeadm"), overlay("drain"));
        for overlay in [&serving, &drain] {
            let delete = ["delete", "--ignore-not-found", "--wait=true", "-k", overlay];
            kubectl(self.tools, &delete)?;
        }
        proxy::remove_kube_proxy(self.tools)?;
        for node in &NODES {
            let label = ["label", "node", node.place.name, "portolan.dev/proxy-"];
            kubectl(self.tools, &label)?;
        }
        proxy::start_kube_proxy(self.tools, mode)?;
        kubectl(self.tools, &["apply", "-k", &drain])?;
        proxy::system(
            self.tools,
            &["rollout", "status", "daemonset/portolan", "--timeout=5m"],
        )?;
        kubectl(self.tools, &["delete", "--wait=true", "-k", &drain])?;
        self.clients.ready()
    }

    /// Runs those commands of a section that contain a part.
    fn section(&mut self, page: &str, section: &str, part: &str, with_clients: bool) -> Result<()> {
        let lines: Vec<_> = self
            .commands
            .iter()
            .filter(|command| command.page == page && command.section == section)
            .filter(|command| command.line.contains(part) && left_out(command).is_none())
            .map(|command| (command.line.clone(), command.on_node))
            .collect();
        ensure!(!lines.is_empty(), "no such command on the page");
        self.busy(page, section, &lines, with_clients)
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
            let done = lines
                .iter()
                .try_for_each(|(line, on_node)| self.run(line, *on_node));
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
        self.rows.push(format!(
            "| {page} {what} | {} | {:.1} s | {load} |",
            lines.len(),
            took.as_secs_f64()
        ));
        Ok(())
    }

    fn write(&self, file: &str, old: &str, new: &str) -> Result<()> {
        let file = self.folder.join("deploy").join(file);
        let text = fs::read_to_string(&file).with_context(|| format!("read {}", file.display()))?;
        ensure!(text.contains(old), "{} has no {old:?}", file.display());
        fs::write(&file, text.replacen(old, new, 1))
            .with_context(|| format!("write {}", file.display()))
    }

    /// Runs a command as the reader would, in a shell outside of the nodes or on one.
    fn run(&self, line: &str, on_node: bool) -> Result<()> {
        let node = &self.node.place;
        let mut line = line.replace("NAMESPACE/NAME", "default/load-server");
        if line.contains("POD") {
            let field = format!("spec.nodeName={}", node.name);
            let pod = [
                "-n",
                "kube-system",
                "get",
                "pods",
                "-l",
                "app=portolan",
                "-o",
                "name",
                "--field-selector",
                &field,
            ];
            let pod = kubectl(self.tools, &pod)?;
            line = line.replace("POD", pod.trim().lines().next().unwrap_or_default());
        }
        let name = if line.starts_with("curl") {
            node.address
        } else {
            node.name
        };
        line = line.replace("NODE", name);
        let shell = Path::new("/bin/sh");
        let mut command = if on_node {
            let mut command = inside(node)?;
            command.arg(shell);
            command
        } else {
            beside(shell)
        };
        // A reader's editor: it changes one setting.
        let editor = "sed -i s/socketBalancing..all/socketBalancing..host/";
        let path = format!(
            "{}:{}",
            self.tools.path(),
            std::env::var("PATH").unwrap_or_default()
        );
        command
            .args(["-c", &line])
            .current_dir(&self.folder)
            .envs([("PATH", path.as_str()), ("KUBE_EDITOR", editor)])
            .env("KUBECONFIG", layout::kubeconfig());
        let done = command.output().with_context(|| line.clone())?;
        // What grep finds nothing of is no failure.
        let searches = line.contains("| grep") && done.status.code() == Some(1);
        if !done.status.success() && !searches {
            bail!(
                "{line}: {}\n{}",
                done.status,
                String::from_utf8_lossy(&done.stderr)
            );
        }
        eprintln!("  $ {line}");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_of_the_pages_is_tried_or_left_out_for_a_reason() {
        for command in page::all().unwrap() {
            let tried = STEPS.iter().any(|step| match step {
                Step::Busy(page, section, part) | Step::Quiet(page, section, part) => {
                    *page == command.page
                        && *section == command.section
                        && command.line.contains(part)
                }
                Step::Said(line) => command.line == *line,
                _ => false,
            });
            assert!(
                tried || left_out(&command).is_some(),
                "{} \"{}\": {}: neither a step of the rehearsal nor left out",
                command.page,
                command.section,
                command.line
            );
        }
    }

    #[test]
    fn what_is_left_out_is_on_its_page() {
        let commands = page::all().unwrap();
        for left_out in LEFT_OUT {
            let (page, section, start, _) = left_out;
            let found = |command: &page::Command| {
                let is_there = section.is_empty() || command.section == *section;
                command.page == *page && is_there && command.line.starts_with(start)
            };
            assert!(commands.iter().any(found), "{left_out:?}");
        }
    }
}
