// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Netkit pairs, which join pods to a node.

use anyhow::{Context, Result};
use rtnetlink::{LinkNetkit, new_connection, packet_route::link::NetkitMode};
use tokio::runtime::Builder;

/// Makes a netkit pair in the calling thread's network namespace. iproute2 can do this only since
/// 6.7.
pub(super) fn netkit(interface: &str, peer: &str, mode: &str) -> Result<()> {
    let mode = match mode {
        "L2" => NetkitMode::L2,
        _ => NetkitMode::L3,
    };
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let made = runtime.block_on(async {
        let (connection, handle, _) = new_connection()?;
        tokio::spawn(connection);
        let link = LinkNetkit::new(interface, peer, mode).build();
        handle.link().add(link).execute().await?;
        anyhow::Ok(())
    });
    made.context("make a netkit pair")
}
