// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Starts a proxy on the measured node, and removes what it leaves behind.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use lab::{
    load::{self, setup::Setup},
    node::{
        agent::Options,
        kube_proxy::CLUSTER_CIDR,
        netns::NetNs,
        settings::{Forwarding, SocketBalancing},
    },
};

use crate::{
    plan::{Cell, Proxy},
    world::World,
};

/// A proxy that runs. Dropping it ends the proxy, then removes kube-proxy's rules.
pub(crate) struct Running<'a> {
    pub(crate) proxy: load::proxy::Proxy<'a>,
    _rest: Rest<'a>,
}

/// What a proxy leaves on its node; dropping this removes it.
struct Rest<'a> {
    node: &'a NetNs,
    /// The node's settings without the rules of kube-proxy, which leaves them however it ends.
    setup: Option<Setup>,
}

impl Drop for Rest<'_> {
    fn drop(&mut self) {
        if let Some(Err(error)) = self.setup.map(|setup| setup.apply(self.node)) {
            eprintln!("remove kube-proxy's rules: {error:#}");
        }
        // Old conntrack entries would apply to later packets from the same client ports.
        if let Err(error) = self.node.feed("conntrack", &["-F"], "") {
            eprintln!("forget connections: {error:#}");
        }
    }
}

/// Paths of the proxies' programs.
pub(crate) struct Programs {
    pub(crate) portolan: PathBuf,
    pub(crate) kube_proxy: PathBuf,
}

/// Starts the cell's proxy, which reads the objects of an API server.
pub(crate) fn start<'a>(
    world: &'a World,
    cell: &Cell,
    programs: &Programs,
    kubeconfig: &Path,
) -> Result<Running<'a>> {
    use SocketBalancing::{All, Host};

    let node = world.node();
    let portolan = |socket_balancing, forwarding| {
        let options = Options {
            cluster_cidrs: &[CLUSTER_CIDR.parse().context("a range")?],
            config: &load::setup::config(forwarding),
            socket_balancing,
            kubeconfig: Some(kubeconfig),
            ..Options::new(&programs.portolan, world.cgroup().path())
        };
        load::proxy::Proxy::portolan(node, &options, "")
    };
    let kube_proxy = |mode, period| {
        let program = &programs.kube_proxy;
        load::proxy::Proxy::kube_proxy(node, program, mode, period, kubeconfig)
    };
    const FAST: Option<&str> = Some("100ms");
    let proxy = match cell.proxy {
        Proxy::Direct => load::proxy::Proxy::none(node),
        Proxy::PortolanSocket => portolan(All, Forwarding::Stack)?,
        Proxy::PortolanPacket => portolan(Host, Forwarding::Stack)?,
        Proxy::PortolanAuto => portolan(Host, Forwarding::Auto)?,
        Proxy::PortolanBoth => portolan(All, Forwarding::Auto)?,
        Proxy::Nftables => kube_proxy("nftables", None)?,
        Proxy::NftablesFast => kube_proxy("nftables", FAST)?,
        Proxy::Iptables => kube_proxy("iptables", None)?,
        Proxy::IptablesFast => kube_proxy("iptables", FAST)?,
    };
    let setup = cell.proxy.is_kube_proxy().then_some(cell.setup);
    let _rest = Rest { node, setup };
    Ok(Running { proxy, _rest })
}
