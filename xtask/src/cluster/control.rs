// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Starts the control plane: etcd, API server, controllers, scheduler and DNS, each as a process in
//! the control plane's network namespace; runs kubectl there. Called by `cluster up`.

use std::{path::Path, process::Command, time::Duration};

use anyhow::Result;

use super::{
    daemon::{run, start as start_daemon, wait},
    layout::{CLUSTER_CIDR, CONTROL, DNS, DOMAIN, SERVICE_CIDR, kubeconfig, pki},
    tools::Tools,
};
use crate::{cargo, fs};

/// The longest time that a server of the control plane may take to start on a busy machine.
const PATIENCE: Duration = Duration::from_secs(90);

/// Starts the control plane's processes that do not run, and waits until the API server answers.
pub(super) fn start(tools: &Tools) -> Result<()> {
    let path = |name: &str| pki(name).display().to_string();
    daemon(
        "etcd",
        format!(
            "{} --unsafe-no-fsync --log-level error --data-dir {}/etcd",
            tools.kubernetes("etcd"),
            CONTROL.folder().display()
        ),
    )?;
    start_server(tools)?;
    daemon(
        "kube-controller-manager",
        format!(
            "{} --kubeconfig={} --leader-elect=false --use-service-account-credentials --root-ca-file={} --service-account-private-key-file={} --cluster-cidr={CLUSTER_CIDR}",
            tools.kubernetes("kube-controller-manager"),
            path("controller-manager.kubeconfig"),
            path("ca.crt"),
            path("sa.key"),
        ),
    )?;
    daemon(
        "kube-scheduler",
        format!(
            "{} --kubeconfig={} --leader-elect=false",
            tools.kubernetes("kube-scheduler"),
            path("scheduler.kubeconfig"),
        ),
    )?;
    start_dns(tools)
}

/// Starts the API server if it does not run, and waits until it answers.
pub(super) fn start_server(tools: &Tools) -> Result<()> {
    let path = |name: &str| pki(name).display().to_string();
    daemon(
        "kube-apiserver",
        format!(
            "{} --etcd-servers=http://127.0.0.1:2379 --advertise-address={} --secure-port=6443 --allow-privileged \
             --tls-cert-file={} --tls-private-key-file={} --client-ca-file={} --authorization-mode=Node,RBAC \
             --enable-admission-plugins=NodeRestriction --service-cluster-ip-range={SERVICE_CIDR} \
             --service-account-issuer=https://kubernetes.default.svc.{DOMAIN} --service-account-signing-key-file={} \
             --service-account-key-file={} --kubelet-client-certificate={} --kubelet-client-key={} \
             --kubelet-preferred-address-types=InternalIP",
            tools.kubernetes("kube-apiserver"),
            CONTROL.address,
            path("apiserver.crt"),
            path("apiserver.key"),
            path("ca.crt"),
            path("sa.key"),
            path("sa.pub"),
            path("kubelet-client.crt"),
            path("kubelet-client.key"),
        ),
    )?;
    let answers = || kubectl(tools, "get --raw /readyz").is_ok();
    wait(
        "the API server",
        PATIENCE,
        &CONTROL,
        "kube-apiserver",
        answers,
    )
}

fn start_dns(tools: &Tools) -> Result<()> {
    let file = CONTROL.folder().join("Corefile");
    let text = format!(
        ".:53 {{\n  bind {}\n  errors\n  kubernetes {DOMAIN} in-addr.arpa ip6.arpa {{\n    kubeconfig {}\n    pods insecure\n    fallthrough in-addr.arpa ip6.arpa\n  }}\n  cache 5\n}}\n",
        CONTROL.address,
        kubeconfig().display(),
    );
    fs::write(&file, text)?;
    let command = format!("{} -conf {}", tools.coredns(), file.display());
    daemon("coredns", command)
}

/// Returns YAML of the DNS service; its endpoint is the DNS server outside of the cluster.
pub(super) fn dns_objects() -> String {
    format!(
        "apiVersion: v1
kind: Service
metadata: {{name: kube-dns, namespace: kube-system, labels: {{k8s-app: kube-dns}}}}
spec:
  clusterIP: {DNS}
  ports: [{{name: dns, port: 53, protocol: UDP}}, {{name: dns-tcp, port: 53, protocol: TCP}}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: kube-dns-1, namespace: kube-system, labels: {{kubernetes.io/service-name: kube-dns}}}}
addressType: IPv4
ports: [{{name: dns, port: 53, protocol: UDP}}, {{name: dns-tcp, port: 53, protocol: TCP}}]
endpoints: [{{addresses: [{}]}}]
",
        CONTROL.address
    )
}

fn daemon(name: &str, line: String) -> Result<()> {
    start_daemon(&CONTROL, name, line.split_whitespace())
}

/// Returns a command that runs `program` in the control plane's network namespace, not on a node.
pub(super) fn beside(program: &Path) -> Command {
    let mut command = Command::new("nsenter");
    command
        .arg(format!("--net=/run/netns/{}", CONTROL.netns()))
        .arg(program);
    command
}

/// Returns a command that runs kubectl as an administrator.
pub(super) fn kubectl_command(tools: &Tools) -> Command {
    let mut command = beside(Path::new(&tools.kubernetes("kubectl")));
    command.arg("--kubeconfig").arg(kubeconfig());
    command
}

/// Runs kubectl with the words of a text as its arguments, in the root folder of the clone.
pub(super) fn kubectl(tools: &Tools, words: &str) -> Result<String> {
    let mut command = kubectl_command(tools);
    run(command
        .args(words.split_whitespace())
        .current_dir(cargo::root()))
}

/// Creates or changes the cluster's objects that the YAML text `objects` describes.
pub(super) fn apply(tools: &Tools, objects: &str) -> Result<()> {
    let file = CONTROL.folder().join("objects.yaml");
    fs::write(&file, objects)?;
    // The flags replace what anybody else has changed in an object meanwhile.
    let flags = "--server-side --force-conflicts";
    kubectl(tools, &format!("apply {flags} -f {}", file.display())).map(drop)
}
