// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The running kernel's own types, from its BTF: where programs at tracepoints find a packet's
//! members, and the names of the reasons for which it frees packets. And the names of its functions
//! by their addresses, from /proc/kallsyms. Called by `datapath::follow` and the command line.

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

/// The kernel's functions, sorted by address.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct KernelFunctions(Vec<(u64, String)>);

impl KernelFunctions {
    /// Reads the functions; none if the kernel hides their addresses (`kernel.kptr_restrict`).
    pub fn read() -> Self {
        Self::parse(&fs::read_to_string("/proc/kallsyms").unwrap_or_default())
    }

    /// True if no function is known.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn parse(text: &str) -> Self {
        let mut functions: Vec<_> = text.lines().filter_map(function).collect();
        functions.sort();
        Self(functions)
    }

    /// Returns the name of the function that contains this address; the address itself in
    /// hexadecimal digits if it is not known.
    pub fn at(&self, address: u64) -> String {
        let behind = self.0.partition_point(|(start, _)| *start <= address);
        match behind.checked_sub(1).and_then(|place| self.0.get(place)) {
            Some((_, name)) => name.clone(),
            None => format!("{address:#x}"),
        }
    }
}

/// Reads a line: address, kind, name; perhaps a module. Only kinds `t` and `T` are code.
fn function(line: &str) -> Option<(u64, String)> {
    let mut words = line.split_whitespace();
    let address = u64::from_str_radix(words.next()?, 16).ok()?;
    let is_code = matches!(words.next()?, "t" | "T" | "w" | "W");
    (is_code && address != 0).then_some((address, words.next()?.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_running_kernels_packets_and_reasons_are_found() {
        let types = kernel_types().expect("BTF");
        let found = types.offsets;
        assert!(found.head != 0 && found.data != found.head, "{found:?}");
        let named = |name: &str| types.reasons.values().any(|known| known == name);
        assert!(named("NETFILTER_DROP") && named("NO_SOCKET"));
    }

    #[test]
    fn an_address_belongs_to_the_last_function_that_begins_before_it() {
        let text = "0000000000000020 T later\n0000000000000010 t first [module]\n0000000000000018 d data\n0000000000000000 T hidden\n";
        let functions = KernelFunctions::parse(text);
        assert_eq!(functions.at(0x1f), "first");
        assert_eq!(functions.at(0x20), "later");
        assert_eq!(functions.at(0x0f), "0xf");
    }
}
