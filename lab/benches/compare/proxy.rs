// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Starts a proxy on the measured node.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use lab::{
    load,
    node::{
        agent::{Agent, Manifests, Options},
        kube_proxy::{CLUSTER_CIDR, KubeProxy},
        settings::{Forwarding, SocketBalancing},
    },
};

use crate::{
    plan::{Cell, Proxy},
    world::World,
};

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
) -> Result<load::proxy::Proxy<'a>> {
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
        let agent = Agent::start(node, &options, &Manifests::Text(""))?;
        Ok::<_, anyhow::Error>(load::proxy::Proxy::Portolan(agent))
    };
    let kube_proxy = |mode, period| {
        let program = &programs.kube_proxy;
        let started = KubeProxy::start(node, program, mode, period, kubeconfig)?;
        Ok::<_, anyhow::Error>(load::proxy::Proxy::KubeProxy(started))
    };
    const FAST: Option<&str> = Some("100ms");
    Ok(match cell.proxy {
        Proxy::Direct => load::proxy::Proxy::None,
        Proxy::PortolanSocket => portolan(All, Forwarding::Stack)?,
        Proxy::PortolanPacket => portolan(Host, Forwarding::Stack)?,
        Proxy::PortolanAuto => portolan(Host, Forwarding::Auto)?,
        Proxy::PortolanBoth => portolan(All, Forwarding::Auto)?,
        Proxy::Nftables => kube_proxy("nftables", None)?,
        Proxy::NftablesFast => kube_proxy("nftables", FAST)?,
        Proxy::Iptables => kube_proxy("iptables", None)?,
        Proxy::IptablesFast => kube_proxy("iptables", FAST)?,
    })
}
