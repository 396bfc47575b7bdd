// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Internet checksum arithmetic (RFC 1071, RFC 1624) for headers that no kernel helper updates.

/// Folds a sum of 16-bit words into 16 bits; carries are added back.
#[inline(always)]
pub const fn fold(sum: u64) -> u16 {
    let sum = (sum >> 32) + (sum & 0xffff_ffff);
    let sum = (sum >> 16) + (sum & 0xffff);
    let sum = (sum >> 16) + (sum & 0xffff);
    let sum = (sum >> 16) + (sum & 0xffff);
    sum as u16
}

/// Returns `checksum` after a word that it covers has changed from `old` to `new`; all three are in
/// the byte order of the wire.
#[inline(always)]
pub const fn replace_half(checksum: u16, old: u16, new: u16) -> u16 {
    !fold((!checksum as u64) + (!old as u64) + new as u64)
}
