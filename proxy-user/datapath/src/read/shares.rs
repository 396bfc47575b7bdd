// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Counts the slots that backends have in the blocks of their service port: their shares of new
//! connections. Called by the list of backends.

use std::collections::HashMap;

use proxy_common::{BackendId, Block, EndpointSet, ServiceId, maps};
use serde::Serialize;

use super::{Reader, failed};
use crate::{
    error::DatapathError,
    maps::{arrays::MappedArray, family::Family},
};

/// A backend's share of the new connections of one endpoint set: so many slots of a block.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Share {
    pub slots: u32,
    pub of: u32,
}

/// The slots of all blocks of one address family, by endpoint set.
#[derive(Default)]
pub(super) struct Shares {
    blocks: HashMap<(ServiceId, u16), Block>,
    owned: HashMap<(BackendId, u16), u32>,
}

impl Shares {
    /// Returns the share of a service port's backend in a set.
    pub(super) fn of(&self, service: ServiceId, id: BackendId, set: EndpointSet) -> Share {
        let block = self.blocks.get(&(service, set.0));
        Share {
            slots: self.owned.get(&(id, set.0)).copied().unwrap_or(0),
            of: block.map_or(0, |block| block.count()),
        }
    }

    /// Takes a set's block. Returns false if its slots need no counting: the set has a block
    /// already, or this one is empty, as those of a frontend that is no port (`unserved-ports`).
    fn take(&mut self, service: ServiceId, set: u16, block: Block) -> bool {
        let is_new = block.count() != 0 && !self.blocks.contains_key(&(service, set));
        if is_new {
            self.blocks.insert((service, set), block);
        }
        is_new
    }
}

impl Reader {
    /// Reads the shares of all backends of one address family.
    pub(super) fn shares<A: Family>(&self) -> Result<Shares, DatapathError> {
        let slots: MappedArray<u32> = self.array(maps::SLOTS)?;
        let mut shares = Shares::default();
        for record in self.records::<A>()? {
            for (external, block) in [(false, record.internal), (true, record.external)] {
                let set = record.flags.set_of_block(external).0;
                if !shares.take(record.service, set, block) {
                    continue;
                }
                let end = block.first().saturating_add(block.count());
                if end > slots.capacity() {
                    continue;
                }
                let mapped = slots.ensure(block.first(), block.count());
                mapped.map_err(failed(maps::SLOTS))?;
                for at in block.first()..end {
                    let owner = (BackendId(slots.load(at)), set);
                    *shares.owned.entry(owner).or_default() += 1;
                }
            }
        }
        Ok(shares)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_block_of_the_same_service_does_not_hide_the_ports_block() {
        let (service, set) = (ServiceId(7), EndpointSet::CLUSTER);
        let mut shares = Shares::default();
        assert!(!shares.take(service, set.0, Block::EMPTY));
        assert!(shares.take(service, set.0, Block::new(40, 3)));
        assert!(!shares.take(service, set.0, Block::new(40, 3)));
        shares.owned.insert((BackendId(1), set.0), 1);
        let share = shares.of(service, BackendId(1), set);
        assert_eq!((share.slots, share.of), (1, 3));
    }
}
