// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whether legacy iptables (not iptables-nft) drops forwarded packets by the policy of its chain
//! FORWARD, and whether kube-proxy masquerades with it. Called by `agent`, and by
//! `portolan explain --follow`.

use std::{fs, io, os::fd::AsRawFd};

use nix::{
    errno::Errno,
    sys::socket::{AddressFamily, SockFlag, SockType, socket},
};

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
struct Family {
    program: &'static str,
    address: AddressFamily,
    level: i32,
    /// The file that lists the existing tables. It is read first, because asking the kernel for
    /// another table would create that table.
    tables: &'static str,
    /// Offset of the field that says where an entry's target begins: `target_offset` of
    /// `struct ipt_entry` and `struct ip6t_entry`.
    target: usize,
}

const FAMILIES: [Family; 2] = [
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

/// Returns the programs (`iptables-legacy`, `ip6tables-legacy`) whose chain FORWARD in this network
/// namespace has the policy DROP.
pub fn legacy_drops() -> io::Result<Vec<&'static str>> {
    let mut found = Vec::new();
    for family in FAMILIES.iter().filter(|family| family.has("filter")) {
        if family.drops_forwarded()? {
            found.push(family.program);
        }
    }
    Ok(found)
}

/// True if legacy iptables has a table for IPv6 (if `v6`) or IPv4 (if not) in this network
/// namespace.
pub fn has_legacy_tables(v6: bool) -> bool {
    let [of_v4, of_v6] = &FAMILIES;
    let family = if v6 { of_v6 } else { of_v4 };
    !family.tables().is_empty()
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
struct Info {
    /// The offset of the entry that stands for the policy of the hook `forward`.
    policy: u32,
    /// Length of all entries, in bytes.
    size: u32,
}

impl Family {
    fn has(&self, name: &str) -> bool {
        self.tables().iter().any(|table| table == name)
    }

    fn tables(&self) -> Vec<String> {
        let tables = fs::read_to_string(self.tables).unwrap_or_default();
        tables.lines().map(str::to_owned).collect()
    }

    fn drops_forwarded(&self) -> io::Result<bool> {
        let info = self.info("filter")?;
        let entries = self.entries("filter", info.size)?;
        let is_drop = is_drop(&entries, info.policy as usize, self.target);
        is_drop.ok_or(io::ErrorKind::InvalidData.into())
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

    fn info(&self, table: &str) -> io::Result<Info> {
        /// Offsets in `struct ipt_getinfo`: behind the name and the set of hooks.
        const POLICIES: usize = NAME + 4 + 5 * 4;
        const SIZE: usize = POLICIES + 5 * 4 + 4;
        const LENGTH: usize = SIZE + 4;
        let mut info = vec![0; LENGTH];
        self.get(table, GET_INFO, &mut info)?;
        let at = |offset| word(&info, offset).ok_or(io::ErrorKind::InvalidData);
        Ok(Info {
            policy: at(POLICIES + FORWARD * 4)?,
            size: at(SIZE)?,
        })
    }

    fn entries(&self, table: &str, size: u32) -> io::Result<Vec<u8>> {
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
        Ok(Errno::result(result).map(drop)?)
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
