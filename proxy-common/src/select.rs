// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Selects a slot of a block for a new flow.

use crate::Block;

/// The slot for a random number, uniform over 32 bits; `None` for an empty block.
#[inline(always)]
pub const fn slot(block: Block, number: u32) -> Option<u32> {
    let count = block.count();
    if count == 0 {
        return None;
    }
    Some(block.first().wrapping_add(number % count))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_block_has_no_slot() {
        assert_eq!(slot(Block::EMPTY, 7), None);
    }

    #[test]
    fn every_slot_of_a_block_is_reached_and_no_other() {
        let seen: std::collections::BTreeSet<_> = (0..1000)
            .filter_map(|n| slot(Block::new(40, 7), n))
            .collect();
        assert_eq!(seen, (40..47).collect());
    }
}
