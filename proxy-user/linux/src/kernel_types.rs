// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The running kernel's own types, from its BTF: where programs at tracepoints find a packet's
//! members, and the names of the reasons for which it frees packets. Called by `datapath::follow`.

use std::{collections::BTreeMap, fs, io};

use proxy_common::trace::follow::Offsets;

use super::btf::Types;

/// Linux 5.4, with CONFIG_DEBUG_INFO_BTF.
const FILE: &str = "/sys/kernel/btf/vmlinux";
/// The prefix of all names in `enum skb_drop_reason`.
const REASON: &str = "SKB_DROP_REASON_";

/// The types of the running kernel that following a packet needs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KernelTypes {
    pub offsets: Offsets,
    /// Number and name (without `SKB_DROP_REASON_`) of the reasons for which the kernel frees
    /// packets.
    pub reasons: BTreeMap<u32, String>,
}

/// Reads the types of the running kernel.
pub fn kernel_types() -> io::Result<KernelTypes> {
    let data = fs::read(FILE)?;
    let unreadable = |what: &str| {
        io::Error::new(
            io::ErrorKind::InvalidData,
            format!("{FILE} does not say {what}"),
        )
    };
    let types = Types::new(&data).ok_or_else(|| unreadable("the kernel's types"))?;
    let offset = |name: &str, path: &str| {
        let found = types.offset(name, path);
        found.ok_or_else(|| unreadable(&format!("where struct {name} has {path}")))
    };
    let offsets = Offsets {
        len: offset("sk_buff", "len")?,
        mark: offset("sk_buff", "mark")?,
        head: offset("sk_buff", "head")?,
        data: offset("sk_buff", "data")?,
        network_header: offset("sk_buff", "network_header")?,
        dev: offset("sk_buff", "dev")?,
        sk: offset("sk_buff", "sk")?,
        dev_index: offset("net_device", "ifindex")?,
        dev_net: offset("net_device", "nd_net.net")?,
        sock_net: offset("sock", "__sk_common.skc_net.net")?,
        net_inode: offset("net", "ns.inum")?,
    };
    let reasons = types.values("skb_drop_reason").into_iter();
    let reasons = reasons.filter_map(|(number, name)| {
        let name = name.strip_prefix(REASON)?.to_owned();
        Some((number, name))
    });
    Ok(KernelTypes {
        offsets,
        reasons: reasons.collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_running_kernels_packets_and_reasons_are_found() {
        let types = kernel_types().expect("BTF");
        let offsets = types.offsets;
        assert!(
            offsets.head != 0 && offsets.data != offsets.head,
            "{offsets:?}"
        );
        let named = |name: &str| types.reasons.values().any(|known| known == name);
        assert!(named("NETFILTER_DROP") && named("NO_SOCKET"));
    }
}
