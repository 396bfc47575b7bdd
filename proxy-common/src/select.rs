// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Selects one of the slots in a service's block for a new flow. With `selection: random` by a
//! random number; with `selection: maglev` by a hash of the client and the frontend, so that every
//! node selects the same slot ([`flow_number`]); then the block holds a table of [`maglev`]. A
//! backend's share of the slots is its share of the connections ([`weights`]).

#[cfg(any(test, feature = "user"))]
pub mod maglev;
#[cfg(any(test, feature = "user"))]
pub mod weights;

use crate::{Addr, Block, FrontendKey, Port};

/// Returns the slot of the block for a number that is uniform over 32 bits; `None` for an empty
/// block.
#[inline(always)]
pub const fn slot(block: Block, number: u32) -> Option<u32> {
    let count = block.count();
    if count == 0 {
        return None;
    }
    Some(block.first().wrapping_add(number % count))
}

/// Returns the number that selects a slot for a client's flow to a frontend: the same on every
/// node, for every packet of the flow.
///
/// The frontend key of a node port has no address, so nodes agree whichever of their addresses is
/// the destination.
#[inline(always)]
pub fn flow_number<A: Addr>(client: A, client_port: Port, frontend: &FrontendKey<A>) -> u32 {
    const SEED: u64 = 0x243f_6a88_85a3_08d3;
    let ports = (client_port.host() as u64) << 32
        | (frontend.port.host() as u64) << 8
        | frontend.protocol.0 as u64;
    let addresses = frontend.address.scramble(client.scramble(SEED));
    (scramble(addresses ^ ports) >> 32) as u32
}

/// Returns the number that selects a slot for a client of a service with `sessionAffinity:
/// ClientIP`. It is computed from the client's address alone, so that every node selects the same
/// backend.
#[inline(always)]
pub fn client_number<A: Addr>(client: A) -> u32 {
    const SEED: u64 = 0x1319_8a2e_0370_7344;
    (client.scramble(SEED) >> 32) as u32
}

/// Changes a 64-bit word so that each of its bits depends on all of them: two rounds of shift and
/// multiplication.
#[inline(always)]
pub const fn scramble(word: u64) -> u64 {
    let word = (word ^ word >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93);
    let word = (word ^ word >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93);
    word ^ word >> 32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Protocol, V4};

    #[test]
    fn an_empty_block_has_no_slot() {
        assert_eq!(slot(Block::EMPTY, 7), None);
    }

    #[test]
    fn every_slot_of_a_block_is_selected_and_no_other() {
        let seen: std::collections::BTreeSet<_> = (0..1000)
            .filter_map(|n| slot(Block::new(40, 7), n))
            .collect();
        assert_eq!(seen, (40..47).collect());
    }

    fn address(n: u32) -> V4 {
        V4 {
            octets: n.to_be_bytes(),
        }
    }

    /// Clients with consecutive addresses, consecutive ports, and both: what one machine or one
    /// subnet sends.
    #[test]
    fn clients_that_differ_little_are_spread_evenly() {
        const SLOTS: u32 = 100;
        const EACH: u32 = 1000;
        let frontend = FrontendKey::new(address(0xac1e_0101), Port::from_host(80), Protocol::TCP);
        let flow = |client: u32, port: u32| {
            let port = Port::from_host(port as u16);
            flow_number(address(0x0a00_0000 + client), port, &frontend)
        };
        let numbers: [&dyn Fn(u32) -> u32; 5] = [
            &|n| flow(n, 40_000),
            &|n| flow(n << 8, 40_000),
            &|n| flow(n / 50_000, 10_000 + n % 50_000),
            &|n| flow(n >> 4, 40_000 + 2 * (n & 15)),
            &|n| client_number(address(n)),
        ];
        for (at, number) in numbers.into_iter().enumerate() {
            let mut counts = [0_u32; SLOTS as usize];
            for n in 0..SLOTS * EACH {
                counts[(number(n) % SLOTS) as usize] += 1;
            }
            // Six times the standard deviation of a random choice, 31.5.
            let even = counts.iter().all(|count| count.abs_diff(EACH) < 190);
            assert!(even, "{at}: {counts:?}");
        }
    }

    #[test]
    fn address_port_frontend_and_protocol_change_the_flow_number() {
        let (one, two) = (address(0x0a00_0001), address(0x0a00_0002));
        let port = Port::from_host;
        let key = |at, n, protocol| FrontendKey::new(at, port(n), protocol);
        let numbers: std::collections::BTreeSet<_> = [
            flow_number(one, port(1), &key(two, 80, Protocol::TCP)),
            flow_number(two, port(1), &key(one, 80, Protocol::TCP)),
            flow_number(one, port(2), &key(two, 80, Protocol::TCP)),
            flow_number(one, port(80), &key(two, 1, Protocol::TCP)),
            flow_number(one, port(1), &key(two, 80, Protocol::UDP)),
        ]
        .into();
        assert_eq!(numbers.len(), 5);
    }
}
