// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which programs are watched, and where the kernel keeps what is read of their packets and calls.

use std::{collections::BTreeSet, io, path::Path};

use proxy_common::trace::{Hook, Target};

use crate::datapath::{programs::attached_programs, sys::KernelTypes};

/// A program of ours that can be watched.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Program {
    pub(super) hook: Hook,
    pub(super) link_layer: bool,
}

impl Program {
    /// By the name of its entry point, which the kernel cuts after 15 characters.
    pub(super) fn by_name(name: &str) -> Option<Self> {
        let (hook, link_layer) = match name {
            "ingress" => (Hook::Ingress, true),
            "egress" => (Hook::Egress, true),
            "ingress_l3" => (Hook::Ingress, false),
            "egress_l3" => (Hook::Egress, false),
            "egress_loopback" => (Hook::Loopback, true),
            "connect_v4" | "connect_v6" => (Hook::Connect, false),
            "send_v4" | "send_v6" => (Hook::Send, false),
            "receive_v4" | "receive_v6" => (Hook::Receive, false),
            "peer_name_v4" | "peer_name_v6" => (Hook::PeerName, false),
            "bind_v4" | "bind_v6" => (Hook::Bind, false),
            _ => return None,
        };
        Some(Self { hook, link_layer })
    }
}

/// The ids of the programs of every generation that are attached now.
pub(super) fn attached(pin_dir: &Path) -> io::Result<BTreeSet<u32>> {
    attached_programs(pin_dir)
}

/// The places of members, the same for all programs.
pub(super) struct Offsets(Target);

impl Offsets {
    pub(super) fn of(types: &KernelTypes) -> io::Result<Self> {
        let [skb_len, skb_data_len, skb_data, skb_dev, skb_mark] =
            types.offsets("sk_buff", ["len", "data_len", "data", "dev", "mark"])?;
        let [dev_ifindex] = types.offsets("net_device", ["ifindex"])?;
        let [call_sock, call_uaddr] = types.offsets("bpf_sock_addr_kern", ["sk", "uaddr"])?;
        let [
            sock_cookie,
            sock_protocol,
            sock_source_v4,
            sock_source_v6,
            sock_port,
            sock_family,
        ] = types.offsets(
            "sock",
            [
                "__sk_common.skc_cookie",
                "sk_protocol",
                "__sk_common.skc_rcv_saddr",
                "__sk_common.skc_v6_rcv_saddr",
                "__sk_common.skc_num",
                "__sk_common.skc_family",
            ],
        )?;
        Ok(Self(Target {
            skb_len,
            skb_data_len,
            skb_data,
            skb_dev,
            skb_mark,
            dev_ifindex,
            call_sock,
            call_uaddr,
            sock_cookie,
            sock_protocol,
            sock_source_v4,
            sock_source_v6,
            sock_port,
            sock_family,
            ..Target::default()
        }))
    }

    pub(super) fn target(&self, program: Program) -> Target {
        Target {
            hook: program.hook as u32,
            link_layer: program.link_layer.into(),
            ..self.0
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::datapath::PROGRAMS;

    #[test]
    fn every_program_at_an_interface_is_watched() {
        for name in PROGRAMS {
            let is_watched = Program::by_name(name).is_some();
            assert_eq!(is_watched, !name.starts_with("expire"), "{name}");
        }
    }
}
