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
use tempfile::TempDir;

use super::{folder, server::Server};
use crate::{command, fs};

/// Shell code that replaces `kubectl exec`: it prints pod and arguments; `portolan-c` fails, and
/// `portolan-o` leaves the answer open.
const EXEC: &str = r#"
case "$*" in
*" exec "*)
    pod=${*#* exec }
    pod=${pod%% *}
    asked=${*#* /portolan }
    echo "$pod was asked: $asked"
    echo "second line"
    if [ "$pod" = portolan-c ]; then
        echo "broken" >&2
        echo "command terminated with exit code 3" >&2
        exit 3
    fi
    if [ "$pod" = portolan-o ]; then exit 4; fi
    exit 0
    ;;
esac
"#;

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

/// Returns YAML: three nodes with agents, a client's pod on the first, and a service whose
/// endpoints are on the first two.
fn objects() -> String {
    let pod = |name: &str, node: &str, app: &str| {
        format!(
            "{{apiVersion: v1, kind: Pod, metadata: {{name: {name}, namespace: kube-system, labels: {{app: {app}}}}},
             spec: {{nodeName: {node}, containers: [{{name: portolan, image: none}}]}}}}\n---\n"
        )
    };
    let mut all = String::new();
    for letter in ["a", "b", "d"] {
        all += &format!("{{apiVersion: v1, kind: Node, metadata: {{name: node-{letter}}}}}\n---\n");
        let (name, node) = (format!("portolan-{letter}"), format!("node-{letter}"));
        all += &pod(&name, &node, "portolan");
    }
    all += &pod("client", "node-a", "shop");
    let endpoint = |address: &str, node: &str| {
        format!("{{addresses: [{address}], nodeName: {node}, conditions: {{ready: true}}}}")
    };
    all += &format!(
        "{{apiVersion: v1, kind: Service, metadata: {{name: cart, namespace: kube-system}},
          spec: {{type: NodePort, clusterIP: 172.30.1.1, externalIPs: [198.51.100.1], ports: [{{port: 80, nodePort: 30080}}]}}}}
---
{{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, addressType: IPv4,
  metadata: {{name: cart-a, namespace: kube-system, labels: {{kubernetes.io/service-name: cart}}}},
  ports: [{{port: 8080}}], endpoints: [{}, {}, {}]}}\n",
        endpoint("10.40.2.10", "node-b"),
        endpoint("10.40.1.11", "node-a"),
        endpoint("10.40.2.11", "node-b"),
    );
    all
}

/// Tests that `explain` asks the agents of the client's node and of the endpoints' nodes, for each
/// form in which client and service can be given.
pub(super) fn check(server: &Server, kubectl: &Path) -> Result<()> {
    server.apply(&objects())?;
    let running = |pod: &str, ip: &str| {
        let status = format!(
            r#"{{"status":{{"phase":"Running","podIP":"{ip}","podIPs":[{{"ip":"{ip}"}}]}}}}"#
        );
        let patch = ["patch", "pod", pod];
        let how = ["--subresource=status", "--type=merge", "--patch", &status];
        server.kubectl(&[&patch[..], &how].concat())
    };
    for (letter, ip) in [
        ("a", "192.168.40.2"),
        ("b", "192.168.40.3"),
        ("d", "192.168.40.4"),
    ] {
        running(&format!("portolan-{letter}"), ip)?;
    }
    running("client", "10.40.1.9")?;
    let kubeconfig = server.kubeconfig();
    let kubeconfig = format!("--kubeconfig={}", kubeconfig.display());
    let plugin = Plugin::new(&format!("exec {} \"$@\"\n", kubectl.display()))?;

    let nodes = command::stdout(&plugin.run(&[&kubeconfig, "nodes"])?, "nodes")?;
    let expected = "NODE    POD\nnode-a  portolan-a\nnode-b  portolan-b\nnode-d  portolan-d\n";
    ensure!(nodes == expected, "{nodes}");
    for from in ["pod/kube-system/client", "10.40.1.9"] {
        for to in [
            "service/kube-system/cart:80",
            "172.30.1.1:80",
            "198.51.100.1:80",
            "192.168.40.3:30080",
        ] {
            let output = plugin.run(&[&kubeconfig, "explain", "--from", from, "--to", to])?;
            let said = command::stdout(&output, &format!("{from} {to}"))?;
            let asked = format!("was asked: explain --from {from} --to {to}\nsecond line\n");
            let expected = format!(
                "== node-a, the client's node\nportolan-a {asked}\
                 == node-b, a node of its endpoints\nportolan-b {asked}"
            );
            ensure!(said == expected, "{from} {to}: {said}");
        }
    }
    // A client outside of the cluster has no node, so only the endpoints' nodes are asked.
    let outside = ["explain", "--from=203.0.113.9", "--to=172.30.1.1:80"];
    let output = plugin.run(&[&[kubeconfig.as_str()], &outside[..]].concat())?;
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

    const PODS: &str = "echo 'node-b portolan-b'\necho 'a portolan-a'\n";
    const ONE_FAILS: &str = "echo 'node-b portolan-b'\necho 'c portolan-c'\n";

    fn run(pods: &str, arguments: &[&str]) -> (Option<i32>, String, String) {
        let plugin = Plugin::new(pods).expect("a plugin");
        let output = plugin.run(arguments).expect("it starts");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let code = output.status.code();
        (code, text(&output.stdout), text(&output.stderr))
    }

    #[test]
    fn the_right_nodes_are_asked_and_named() {
        let said = |node: &str, start: &str, words: &str| {
            let pod = node.trim_start_matches("node-");
            format!("{start}portolan-{pod} was asked: {words}\n{start}second line\n")
        };
        let one = |words: &str| said("a", "", words);
        // Lines of several nodes start with the node; texts that are one whole come in sections.
        let both = |words: &str| said("a", "a       ", words) + &said("node-b", "node-b  ", words);
        let sections = |words: &str| {
            let (a, b) = (said("a", "", words), said("node-b", "", words));
            format!("== a\n{a}== node-b\n{b}")
        };
        for (arguments, expected) in [
            ("flows --client 10.0.0.1", both("flows --client 10.0.0.1")),
            (
                "trace --write - --duration 3",
                both("trace --write - --duration 3"),
            ),
            ("--node a services", one("services")),
            ("--node=a --namespace=x services", one("services")),
            ("flows --help", one("flows --help")),
            ("completions bash", one("completions bash")),
            ("--sections services", sections("services")),
            ("services --output json", sections("services --output json")),
            ("services -oyaml", sections("services -oyaml")),
        ] {
            let words: Vec<_> = arguments.split(' ').collect();
            let seen = run(PODS, &words);
            assert_eq!(seen, (Some(0), expected, String::new()), "{arguments}");
        }
        let (_, seen, _) = run(PODS, &["--node", "a", "trace", "--port 80", "$HOME", "*"]);
        assert_eq!(seen, one("trace --port 80 $HOME *"), "unchanged");
    }

    #[test]
    fn the_highest_exit_status_is_the_plugins_and_complaints_have_the_nodes_name() {
        let (code, said, errors) = run(ONE_FAILS, &["check"]);
        assert_eq!((code, errors.as_str()), (Some(3), "c: broken\n"));
        let line = "node-b  portolan-b was asked: check";
        assert!(said.contains(line), "{said}");
        let (code, _, _) = run(ONE_FAILS, &["--node", "c", "check"]);
        assert_eq!(code, Some(3));
        // What was not looked at on one node says less than what was found on another.
        for other in ["a portolan-a", "c portolan-c"] {
            let (code, _, _) = run(
                &format!("echo '{other}'\necho 'o portolan-o'\n"),
                &["check"],
            );
            assert_eq!(code, Some(if other.starts_with('c') { 3 } else { 4 }));
        }
    }

    #[test]
    fn with_every_right_a_pod_is_asked_that_is_gone_afterwards() {
        // The calls are recorded, and what is created with them.
        let pods = r#"
            echo "$*" >>"$0.calls"
            case "$*" in
            *" create "*) cat >>"$0.calls"; echo portolan-debug-x ;;
            *" get pod "*) printf 'account\n\nregistry.example/portolan:1\n' ;;
            *" get pods "*) echo 'a portolan-a'; echo 'b portolan-b' ;;
            esac
        "#;
        let plugin = Plugin::new(pods).expect("a plugin");
        let output = plugin.run(&["--node", "a", "--debug", "top", "--programs"]);
        let said = command::stdout(&output.expect("it starts"), "top").expect("text");
        assert_eq!(
            said,
            "portolan-debug-x was asked: top --programs\nsecond line\n"
        );
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

    #[test]
    fn invalid_plugin_arguments_give_one_line_and_exit_status_2() {
        for (arguments, named) in [
            (
                "services --watch",
                "--watch is for one node: name it with --node",
            ),
            (
                "trace --verdict drop",
                "trace of several nodes needs --duration",
            ),
            ("--nodes a services", "--nodes is no flag of the plugin"),
            ("--node", "--node needs a value"),
            (
                "--node elsewhere services",
                "on node elsewhere in namespace kube-system",
            ),
            ("--node a --node none services", "on node none"),
            ("", "Usage: kubectl portolan"),
        ] {
            let words: Vec<_> = arguments.split_whitespace().collect();
            let (code, said, errors) = run(PODS, &words);
            assert_eq!(
                (code, said.as_str()),
                (Some(2), ""),
                "{arguments}: {errors}"
            );
            assert!(errors.contains(named), "{arguments}: {errors}");
            let lines = errors.lines().count();
            assert!(lines == 1 || arguments.is_empty(), "{errors}");
        }
        let (code, _, errors) = run("", &["services"]);
        assert_eq!(code, Some(2));
        let named = errors.contains("no running pod with app=portolan");
        assert!(named, "{errors}");
    }

    #[test]
    fn a_failure_of_kubectl_is_passed_on() {
        let (code, said, errors) = run("echo 'no cluster' >&2; exit 1\n", &["services"]);
        assert_eq!((code, said.as_str()), (Some(1), ""));
        assert_eq!(errors, "no cluster\n");
    }
}
