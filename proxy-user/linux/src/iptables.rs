// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whether legacy iptables (not iptables-nft) drops forwarded packets by the policy of its chain
//! FORWARD, and whether kube-proxy masquerades with it. Called by `agent` and `portolan explain`.

use std::{fs, io, os::fd::AsRawFd};

use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};

use super::{answers::word, nftables::KUBE_POSTROUTING};

/// `IPT_SO_GET_INFO` and `IPT_SO_GET_ENTRIES`; IPv6 has the same numbers.
const GET_INFO: i32 = 64;
const GET_ENTRIES: i32 = 65;
/// Length of the field with a table's name, in bytes.
const NAME: usize = 32;

/// Rulesets with more bytes than this are not searched for kube-proxy's chain, but count as having
/// it: only a service proxy makes so many rules.
const READABLE: u32 = 4 << 20;

/// How to read the iptables tables of an address family.
pub(super) struct Family {
    pub(super) program: &'static str,
    address: AddressFamily,
    level: i32,
    /// The file that lists the existing tables. It is read first, because asking the kernel for
    /// another table would create that table.
    tables: &'static str,
    /// Offset of the field that says where an entry's target begins: `target_offset` of
    /// `struct ipt_entry` and `struct ip6t_entry`.
    pub(super) target: usize,
}

pub(super) const FAMILIES: [Family; 2] = [
    Family {
        program: "iptables-legacy",
        address: AddressFamily::Inet,
        level: libc::IPPROTO_IP,
        tables: "/proc/net/ip_tables_names",
        target: 88,
    },
    Family {
        program: "ip6tables-legacy",
        address: AddressFamily::Inet6,
        level: libc::IPPROTO_IPV6,
        tables: "/proc/net/ip6_tables_names",
        target: 140,
    },
];

/// The chain FORWARD of legacy iptables for one address family.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LegacyForward {
    /// The program that manages the chain: `iptables-legacy` or `ip6tables-legacy`.
    pub program: &'static str,
    pub v6: bool,
    /// The chain's policy drops packets that no rule has accepted.
    pub drops: bool,
    pub has_rules: bool,
}

/// Returns the programs (`iptables-legacy`, `ip6tables-legacy`) whose chain FORWARD in this network
/// namespace has the policy DROP.
pub fn legacy_drops() -> io::Result<Vec<&'static str>> {
    let chains = legacy_forward()?.into_iter();
    let drop = chains.filter(|chain| chain.drops);
    Ok(drop.map(|chain| chain.program).collect())
}

/// Returns the chains FORWARD of legacy iptables that exist in this network namespace.
pub fn legacy_forward() -> io::Result<Vec<LegacyForward>> {
    let there = FAMILIES.iter().filter(|family| family.has("filter"));
    there.map(Family::forward).collect()
}

/// True if legacy iptables has a table for IPv6 (if `v6`) or IPv4 (if not) in this network
/// namespace.
pub fn has_legacy_tables(v6: bool) -> bool {
    let mut families = FAMILIES.iter().filter(|family| family.is_v6() == v6);
    families.any(|family| !family.tables().is_empty())
}

/// True if this network namespace has the legacy iptables chain in which kube-proxy masquerades
/// packets with its mark, or so many rules that it probably has.
pub fn legacy_masquerades_marked() -> io::Result<bool> {
    for family in &FAMILIES {
        if family.has("nat") && family.masquerades_marked()? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The number of netfilter's hook `forward`.
const FORWARD: usize = 2;

/// What the kernel says about a table.
pub(super) struct Info {
    /// For each hook the offset of its first entry, in bytes; None where the table has no chain.
    pub(super) starts: [Option<u32>; 5],
    /// For each hook the offset of the entry that stands for its policy.
    pub(super) policies: [u32; 5],
    /// Length of all entries, in bytes.
    pub(super) size: u32,
}

impl Family {
    fn has(&self, name: &str) -> bool {
        self.tables().iter().any(|table| table == name)
    }

    pub(super) fn is_v6(&self) -> bool {
        self.address == AddressFamily::Inet6
    }

    /// Returns the names of the tables that exist.
    pub(super) fn tables(&self) -> Vec<String> {
        let tables = fs::read_to_string(self.tables).unwrap_or_default();
        tables.lines().map(str::to_owned).collect()
    }

    fn forward(&self) -> io::Result<LegacyForward> {
        let info = self.info("filter")?;
        let entries = self.entries("filter", info.size)?;
        let is_drop = is_drop(&entries, info.policies[FORWARD] as usize, self.target);
        Ok(LegacyForward {
            program: self.program,
            v6: self.is_v6(),
            drops: is_drop.ok_or(io::ErrorKind::InvalidData)?,
            has_rules: info.starts[FORWARD] != Some(info.policies[FORWARD]),
        })
    }

    fn masquerades_marked(&self) -> io::Result<bool> {
        let size = self.info("nat")?.size;
        if size > READABLE {
            return Ok(true);
        }
        let entries = self.entries("nat", size)?;
        let name = KUBE_POSTROUTING.as_bytes();
        Ok(entries.windows(name.len()).any(|bytes| bytes == name))
    }

    pub(super) fn info(&self, table: &str) -> io::Result<Info> {
        /// Offsets in `struct ipt_getinfo`.
        const HOOKS: usize = NAME;
        const STARTS: usize = NAME + 4;
        const POLICIES: usize = STARTS + 5 * 4;
        const SIZE: usize = POLICIES + 5 * 4 + 4;
        const LENGTH: usize = SIZE + 4;
        let mut info = vec![0; LENGTH];
        self.get(table, GET_INFO, &mut info)?;
        let at = |offset| word(&info, offset).ok_or(io::ErrorKind::InvalidData);
        let hooks = at(HOOKS)?;
        let mut found = Info {
            starts: [None; 5],
            policies: [0; 5],
            size: at(SIZE)?,
        };
        for hook in 0..5 {
            if hooks & 1 << hook != 0 {
                found.starts[hook] = Some(at(STARTS + hook * 4)?);
                found.policies[hook] = at(POLICIES + hook * 4)?;
            }
        }
        Ok(found)
    }

    pub(super) fn entries(&self, table: &str, size: u32) -> io::Result<Vec<u8>> {
        /// Length of `struct ipt_get_entries` before its entries.
        const HEADER: usize = 40;
        let mut entries = vec![0; HEADER + size as usize];
        entries[NAME..NAME + 4].copy_from_slice(&size.to_ne_bytes());
        self.get(table, GET_ENTRIES, &mut entries)?;
        Ok(entries.split_off(HEADER))
    }

    fn get(&self, table: &str, option: i32, buffer: &mut [u8]) -> io::Result<()> {
        buffer[..table.len()].copy_from_slice(table.as_bytes());
        let socket = socket(
            self.address,
            SockType::Datagram,
            SockFlag::SOCK_CLOEXEC,
            None,
        )?;
        let mut length = libc::socklen_t::try_from(buffer.len()).map_err(io::Error::other)?;
        // SAFETY: the kernel writes at most `length` bytes, which is the buffer's length.
        let result = unsafe {
            libc::getsockopt(
                socket.as_raw_fd(),
                self.level,
                option,
                buffer.as_mut_ptr().cast(),
                &raw mut length,
            )
        };
        if result == 0 {
            Ok(())
        } else {
            Err(io::Error::last_os_error())
        }
    }
}

/// True if the entry at this offset, which stands for a chain's policy, drops packets; None if the
/// entries are malformed.
fn is_drop(entries: &[u8], entry: usize, target_offset: usize) -> Option<bool> {
    /// Length of `struct xt_entry_target`.
    const TARGET: usize = 32;
    /// `-NF_DROP - 1`.
    const DROP: u32 = u32::MAX;

    let offset = entries.get(entry + target_offset..)?.first_chunk()?;
    let target = entry + usize::from(u16::from_ne_bytes(*offset));
    Some(word(entries, target + TARGET)? == DROP)
}
