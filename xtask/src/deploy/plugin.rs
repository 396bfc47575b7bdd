// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests the kubectl plugin (deploy/kubectl): which commands it runs in which pods, and how it
//! finds the nodes of client and endpoints for `explain`, with a real API server.

use std::{
    env,
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{Command, Output, Stdio},
};

use anyhow::{Context, Result, ensure};
use serde_json::json;
use tempfile::TempDir;

use super::{folder, server::Server};
use crate::{command, fs};

/// Shell code that replaces `kubectl exec`: it prints pod and arguments, for `flows` in two lines,
/// and what `status` and `test` print; `portolan-c` fails, and `portolan-o` leaves the answer open.
const EXEC: &str = include_str!("../../deploy/exec.sh");

/// A folder with a replacement for kubectl. The plugin finds it first, by its PATH.
struct Plugin {
    folder: TempDir,
}

impl Plugin {
    /// Creates the folder. `rest` is shell code for kubectl commands other than `exec`.
    fn new(rest: &str) -> Result<Self> {
        let folder = TempDir::with_prefix("portolan-plugin-").context("make a folder")?;
        let kubectl = folder.path().join("kubectl");
        let text = format!("#!/bin/sh\n{EXEC}{rest}");
        fs::write(&kubectl, text)?;
        let mode = PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(&kubectl, mode).context("make kubectl executable")?;
        Ok(Self { folder })
    }

    fn run(&self, arguments: &[&str]) -> Result<Output> {
        let path = env::var_os("PATH").unwrap_or_default();
        let first = self.folder.path().to_owned();
        let path = [first].into_iter().chain(env::split_paths(&path));
        let path = env::join_paths(path).context("a PATH")?;
        Command::new(folder("kubectl/kubectl-portolan"))
            .args(arguments)
            .env("PATH", path)
            .stdin(Stdio::null())
            .output()
            .context("start the plugin")
    }
}

/// Nodes, pods of agents and of a client, and a service whose endpoints are on the first two nodes.
const OBJECTS: &str = include_str!("../../deploy/plugin.yaml");

/// Tests that `explain` asks the agents of the client's node and of the endpoints' nodes, for each
/// form in which client and service can be given.
pub(super) fn check(server: &Server, kubectl: &Path) -> Result<()> {
    server.apply(OBJECTS)?;
    for (pod, ip) in [
        ("portolan-a", "192.168.40.2"),
        ("portolan-b", "192.168.40.3"),
        ("portolan-d", "192.168.40.4"),
        ("client", "10.40.1.9"),
    ] {
        let status = json!({"status": {"phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}]}});
        let patch = format!("patch pod {pod} --subresource=status --type=merge --patch {status}");
        server.kubectl(&patch.split(' ').collect::<Vec<_>>())?;
    }
    let kubeconfig = format!("--kubeconfig={}", server.kubeconfig().display());
    let plugin = Plugin::new(&format!("exec {} \"$@\"\n", kubectl.display()))?;
    let run = |words: &str| {
        let words: Vec<_> = words.split(' ').collect();
        plugin.run(&[&[kubeconfig.as_str()], &words[..]].concat())
    };

    let nodes = command::stdout(&plugin.run(&[kubeconfig.as_str()])?, "nodes")?;
    let lines = nodes.lines();
    let nodes = lines.filter_map(|line| line.split(" 0.1.0").next());
    let nodes: Vec<_> = nodes.collect();
    let expected = [
        "NODE    POD         AGENT      VERSION  SERVICES  WARNINGS  PROBLEMS",
        "node-a  portolan-a  healthy   ",
        "node-b  portolan-b  healthy   ",
        "node-d  portolan-d  healthy   ",
        "node-e  -           none runs  -        -         -         -",
    ];
    ensure!(nodes == expected, "{nodes:?}");
    for from in ["pod/kube-system/client", "10.40.1.9"] {
        for to in "service/kube-system/cart:80 172.30.1.1:80 198.51.100.1:80 192.168.40.3:30080"
            .split(' ')
        {
            let words = format!("explain --from {from} --to {to}");
            let said = command::stdout(&run(&words)?, &words)?;
            let words = words.replace("pod/kube-system/client", "10.40.1.9");
            let asked = format!("was asked: {words}\n");
            let expected = format!(
                "== node-a, the client's node\nportolan-a {asked}\
                 == node-b, a node of its endpoints\nportolan-b {asked}"
            );
            ensure!(said == expected, "{words}: {said}");
        }
    }
    // A client outside of the cluster has no node, so only the endpoints' nodes are asked.
    let output = run("explain --from=203.0.113.9 --to=172.30.1.1:80")?;
    let said = command::stdout(&output, "explain")?;
    let both = said.contains("== node-a, a node") && said.contains("== node-b, a node");
    ensure!(both && !said.contains("== node-d"), "{said}");
    let told = String::from_utf8_lossy(&output.stderr);
    let is_told = told.contains("no pod and no node has 203.0.113.9");
    ensure!(is_told, "{told}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The agents' pods, the plugin's flags, the command, the exit status, the answer, in which `/`
    /// ends a line, and the complaint.
    const CASES: &str = include_str!("../../deploy/plugin.txt");

    /// Returns shell code for kubectl that lists the agents' pods.
    fn pods(names: &str) -> String {
        let line = |name: &str| {
            let letter = name.trim_start_matches("node-");
            format!("echo '{name} portolan-{letter}'\n")
        };
        names.split_whitespace().map(line).collect()
    }

    fn run(pods: &str, arguments: &[&str]) -> (Option<i32>, String, String) {
        let plugin = Plugin::new(pods).expect("a plugin");
        let output = plugin.run(arguments).expect("it starts");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let code = output.status.code();
        (code, text(&output.stdout), text(&output.stderr))
    }

    #[test]
    fn the_right_nodes_are_asked_and_named_and_the_highest_exit_status_counts() {
        for row in CASES.lines().filter(|line| !line.starts_with('#')) {
            let mut cells = row.split('|').map(str::trim);
            let [names, flags, words, status, answer, complaint] =
                [(); 6].map(|()| cells.next().unwrap_or_default());
            let arguments = format!("{flags} {words}");
            let arguments: Vec<_> = arguments.split_whitespace().collect();
            let (code, said, errors) = run(&pods(names), &arguments);
            assert_eq!(code, status.parse().ok(), "{row}: {errors}");
            let lines = answer.split_terminator('/').map(|line| format!("{line}\n"));
            let answer = lines
                .collect::<String>()
                .replace("ASKED", &format!("was asked: {words}"));
            assert_eq!(said, answer, "{row}");
            assert!(errors.contains(complaint), "{row}: {errors}");
            let complaints = usize::from(!complaint.is_empty());
            assert_eq!(errors.lines().count(), complaints, "{errors}");
        }
        let (_, said, _) = run(&pods("a"), &["trace", "--port 80", "$HOME", "*"]);
        assert_eq!(said, "portolan-a was asked: trace --port 80 $HOME *\n");
        let (code, said, errors) = run("echo 'no cluster' >&2; exit 1\n", &["services"]);
        assert_eq!((code, said + &errors), (Some(1), "no cluster\n".to_owned()));
    }

    #[test]
    fn one_archive_has_what_all_nodes_dump_and_log() {
        let plugin = Plugin::new(&pods("a node-b")).expect("a plugin");
        let file = plugin.folder.path().join("dump.tar.gz");
        let file = file.to_str().expect("text");
        for (code, complaint) in [(0, ""), (2, "is there already")] {
            let output = plugin.run(&["sysdump", file]).expect("it starts");
            let errors = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(code), "{errors}");
            assert!(errors.contains(complaint), "{errors}");
        }
        let text = |name: &str| {
            let mut tar = command::of("tar", &format!("-xzOf {file} dump/{name}"));
            command::output(&mut tar, "read").expect("it is there")
        };
        assert_eq!(text("node-b.tar.gz"), "portolan-b was asked: dump -\n");
        for name in ["a.log", "services.yaml", "pods.yaml"] {
            assert!(text(name).contains("portolan-a"), "{name}");
        }
    }

    #[test]
    fn with_every_right_a_pod_is_asked_that_is_gone_afterwards() {
        // The calls are recorded, and what is created with them.
        let pods = include_str!("../../deploy/debug.sh");
        let plugin = Plugin::new(pods).expect("a plugin");
        let output = plugin.run(&["--node", "a", "--debug", "sockets"]);
        let said = command::stdout(&output.expect("it starts"), "sockets").expect("text");
        assert_eq!(said, "portolan-debug-x was asked: sockets\n");
        let calls = fs::read_to_string(plugin.folder.path().join("kubectl.calls")).expect("calls");
        for part in [
            "nodeName: a\n",
            "serviceAccountName: account\n",
            "image: registry.example/portolan:1\n",
            "imagePullSecrets: []\n",
            "hostPID: true\n",
            "privileged: true",
            "wait --for=condition=Ready pod/portolan-debug-x",
            "delete pod --now --wait=false portolan-debug-x",
        ] {
            assert!(calls.contains(part), "{part}: {calls}");
        }
        assert!(!calls.contains("nodeName: b"), "{calls}");
    }
}
