// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Finds the cluster's programs and installs or builds those that are missing: Kubernetes' own,
//! containerd, a DNS server, and others from Debian's packages.

use std::path::PathBuf;

use anyhow::{Result, ensure};

use crate::{
    host,
    setup::{
        self,
        control_plane::{self, KUBE_PROXY, KUBERNETES},
        go::{self, Module, Program},
    },
};

const CONTAINERD: Module = Module {
    folder: "containerd",
    versioned: "github.com/containerd/containerd/v2",
};
const COREDNS: Module = Module {
    folder: "coredns",
    versioned: "github.com/coredns/coredns",
};

const NODE_PROGRAMS: [Program; 6] = [
    Program::new(
        "kube-controller-manager",
        "k8s.io/kubernetes/cmd/kube-controller-manager",
    ),
    Program::new("kube-scheduler", "k8s.io/kubernetes/cmd/kube-scheduler"),
    Program::new("kubelet", "k8s.io/kubernetes/cmd/kubelet"),
    KUBE_PROXY,
    Program::new("agnhost", "k8s.io/kubernetes/test/images/agnhost"),
    Program::new(
        "regression-issue-74839",
        "k8s.io/kubernetes/test/images/regression-issue-74839",
    ),
];

const E2E_PROGRAMS: [Program; 2] = [
    Program::new("ginkgo", "github.com/onsi/ginkgo/v2/ginkgo"),
    Program::of_tests("e2e.test", "k8s.io/kubernetes/test/e2e"),
];

const CONTAINERD_PROGRAMS: [Program; 3] = [
    Program::new(
        "containerd",
        "github.com/containerd/containerd/v2/cmd/containerd",
    ),
    Program::new(
        "containerd-shim-runc-v2",
        "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2",
    ),
    Program::new("ctr", "github.com/containerd/containerd/v2/cmd/ctr"),
];

const FLANNEL: Module = Module {
    folder: "flannel",
    versioned: "github.com/flannel-io/flannel",
};
const KUBE_ROUTER: Module = Module {
    folder: "kube-router",
    versioned: "github.com/cloudnativelabs/kube-router/v2",
};

const GATEWAY: Module = Module {
    folder: "gateway-api",
    versioned: "sigs.k8s.io/gateway-api/conformance",
};
const GATEWAY_PROGRAMS: [Program; 2] = [
    Program::new(
        "echo-basic",
        "sigs.k8s.io/gateway-api-conformance-images/echo-basic",
    ),
    Program::of_tests("conformance.test", "portolan/gateway-api"),
];

/// The folder of the CNI plugins in Debian's package.
pub(super) const CNI: &str = "/usr/lib/cni";

/// Programs that the cluster's nodes or xtask start, each with its Debian package. A CNI plugin has
/// its full path, because iproute2 also has a program `bridge`.
const PACKAGES: [(&str, &str); 7] = [
    ("runc", "runc"),
    ("/usr/lib/cni/bridge", "containernetworking-plugins"),
    ("debootstrap", "debootstrap"),
    ("nsenter", "util-linux"),
    ("iptables", "iptables"),
    ("nft", "nftables"),
    ("conntrack", "conntrack"),
];

/// The folders with the programs that were built.
pub(super) struct Tools {
    kubernetes: PathBuf,
    containerd: PathBuf,
    coredns: PathBuf,
}

impl Tools {
    /// Installs and builds the programs that are missing.
    pub(super) fn find() -> Result<Self> {
        ensure!(
            host::is_root(),
            "a cluster of containers in network namespaces needs root: run this as root"
        );
        setup::tools(&PACKAGES)?;
        // Both calls build from one Go module, so they put the programs into one folder.
        go::programs(&KUBERNETES, &control_plane::PROGRAMS, "4 to 8 minutes")?;
        Ok(Self {
            kubernetes: go::programs(&KUBERNETES, &NODE_PROGRAMS, "3 to 5 minutes")?,
            containerd: go::programs(&CONTAINERD, &CONTAINERD_PROGRAMS, "2 minutes")?,
            coredns: go::programs(
                &COREDNS,
                &[Program::new("coredns", "github.com/coredns/coredns")],
                "3 minutes",
            )?,
        })
    }
    /// Returns the folder with Kubernetes' e2e tests and the program that runs them in parallel.
    pub(super) fn e2e() -> Result<PathBuf> {
        go::programs(&KUBERNETES, &E2E_PROGRAMS, "5 minutes")
    }
    pub(super) fn kubernetes(&self, name: &str) -> String {
        self.kubernetes.join(name).display().to_string()
    }
    pub(super) fn containerd(&self, name: &str) -> String {
        self.containerd.join(name).display().to_string()
    }
    pub(super) fn coredns(&self) -> String {
        self.coredns.join("coredns").display().to_string()
    }
    /// Returns the folder with the Gateway API's conformance suite and its echo server.
    pub(super) fn gateway() -> Result<PathBuf> {
        go::programs(&GATEWAY, &GATEWAY_PROGRAMS, "2 minutes")
    }
    /// Returns the path of flannel's daemon; builds it if it is missing.
    pub(super) fn flannel(&self) -> Result<String> {
        // The backend `udp`, which nobody uses here, has a part in C.
        let program = Program::new("flanneld", "github.com/flannel-io/flannel").with_c();
        let folder = go::programs(&FLANNEL, &[program], "2 minutes")?;
        Ok(folder.join(program.name).display().to_string())
    }
    /// Returns the path of kube-router; builds it, and installs ipset, which it calls.
    pub(super) fn kube_router(&self) -> Result<String> {
        setup::tools(&[("ipset", "ipset")])?;
        let package = "github.com/cloudnativelabs/kube-router/v2/cmd/kube-router";
        let program = Program::new("kube-router", package);
        let folder = go::programs(&KUBE_ROUTER, &[program], "4 minutes")?;
        Ok(folder.join(program.name).display().to_string())
    }
    /// Returns the PATH for programs on a node: containerd searches it for its shim and for runc.
    pub(super) fn path(&self) -> String {
        format!(
            "{}:{}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            self.containerd.display(),
            self.kubernetes.display()
        )
    }
}
