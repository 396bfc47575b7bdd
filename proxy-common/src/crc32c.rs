// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Updates SCTP's CRC32c checksum after a change of the ports, without reading the payload.
//!
//! CRC is linear over GF(2): the new value is the old one xor the CRC (without the usual
//! inversions) of the ports' difference followed by as many zero bytes as the packet has after
//! them. A register run through n zero bytes is multiplied by x^(8n) modulo the polynomial, which
//! takes one multiplication per set bit of n.

/// The Castagnoli polynomial, bits reversed.
const POLYNOMIAL: u32 = 0x82f6_3b78;

/// Number of bits of a distance in bytes between two positions of a packet: at most 65 535.
const STEPS: usize = 16;

/// Element k is x^(8 * 2^k) modulo the polynomial, bits reversed.
const POWERS: [u32; STEPS] = powers();

const fn powers() -> [u32; STEPS] {
    let mut powers = [0; STEPS];
    // x^8: in the reversed order bit 31 is x^0.
    let mut power = 0x8000_0000 >> 8;
    let mut k = 0;
    while k < STEPS {
        powers[k] = power;
        power = multiply(power, power);
        k += 1;
    }
    powers
}

/// Product of two polynomials modulo the polynomial; all bits reversed.
#[inline(always)]
const fn multiply(a: u32, b: u32) -> u32 {
    let mut product = 0;
    let mut b = b;
    let mut bit = 0;
    while bit < 32 {
        // By masks: conditions would become branches in the kernel programs.
        product ^= b & 0_u32.wrapping_sub((a >> (31 - bit)) & 1);
        b = (b >> 1) ^ (POLYNOMIAL & 0_u32.wrapping_sub(b & 1));
        bit += 1;
    }
    product
}

/// Returns the checksum of a packet whose first four bytes (the ports, as they lie in memory) were
/// `old` and are `new`. `distance` is the number of bytes after the ports. `checksum` is the old
/// checksum as it lies in memory, read as a little-endian number (RFC 9260, appendix A); the result
/// has the same form.
#[inline(always)]
pub const fn replace_ports(checksum: u32, old: u32, new: u32, distance: u16) -> u32 {
    let difference = u32::from_le_bytes((old ^ new).to_ne_bytes());
    // The register takes in four bytes: a multiplication by x^32.
    let mut register = multiply(difference, POWERS[2]);
    let mut k = 0;
    while k < STEPS {
        if distance & (1 << k) != 0 {
            register = multiply(register, POWERS[k]);
        }
        k += 1;
    }
    checksum ^ register
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn crc32c(bytes: &[u8]) -> u32 {
        let shifted = |crc: u32| (crc >> 1) ^ (POLYNOMIAL & 0_u32.wrapping_sub(crc & 1));
        let with = |crc: u32, byte: &u8| (0..8).fold(crc ^ *byte as u32, |crc, _| shifted(crc));
        !bytes.iter().fold(!0, with)
    }

    proptest! {
        #[test]
        fn crc32c_updated_for_new_ports_equals_a_full_computation(
            mut packet in proptest::collection::vec(any::<u8>(), 12..3000), ports: [u8; 4],
        ) {
            let old = u32::from_ne_bytes([packet[0], packet[1], packet[2], packet[3]]);
            let before = crc32c(&packet);
            packet[..4].copy_from_slice(&ports);
            let after = replace_ports(before, old, u32::from_ne_bytes(ports), packet.len() as u16 - 4);
            prop_assert_eq!(after, crc32c(&packet));
        }
    }
}
