// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Check words: hashes of a map element's key and value, stored in the value. By its check word a
//! reader detects a torn value, or an element that the kernel has reused.

/// Joins two 16-bit halves into one 32-bit word; `first` lies at the lower address in memory.
#[inline(always)]
pub const fn join(first: u16, second: u16) -> u32 {
    // Not through an array of bytes, which the compiler would assemble byte by byte.
    if cfg!(target_endian = "little") {
        first as u32 | (second as u32) << 16
    } else {
        (first as u32) << 16 | second as u32
    }
}

/// Returns the product of two numbers, each changed by `seed`. The sum of such products becomes a
/// check word ([`fold_check`]). The products are independent, so a processor computes them in
/// parallel.
#[inline(always)]
pub const fn mix(a: u32, b: u32, seed: u32) -> u64 {
    (a.wrapping_add(seed ^ 0x9e37_79b9) as u64)
        .wrapping_mul(b.wrapping_add(seed ^ 0x85eb_ca6b) as u64)
}

/// Makes a check word of a sum of [`mix`] results. The word is never zero, so zeroed memory never
/// has a valid check word.
#[inline(always)]
pub const fn fold_check(sum: u64) -> u32 {
    let mixed = sum ^ (sum >> 29);
    let word = (mixed.wrapping_mul(0x9fb2_1c65_1e98_df25) >> 32) as u32;
    word | 1
}
