// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Guards: records of a service that make the programs reject the unserved ports of its cluster
//! IPs. Called by `prepare` and `commit`.

use std::collections::HashMap;

use control::{apply::Refusal, plan::ServicePlan};
use proxy_common::{Block, FrontendKey, FrontendKind, Record, RecordId, ServiceFlags, ServiceId};

use super::{
    change::{Batches, GuardChange},
    maps::Maps,
    reserve::Reserved,
    state::{ServiceState, Stored},
};

/// Reserves a record for each cluster IP whose guard is missing. `first` is the id of the service's
/// first port, to which the guards belong; `None` if the service has no ports.
pub(super) fn prepare_guards<A: Stored>(
    maps: &mut Maps,
    state: &ServiceState,
    plan: &ServicePlan,
    first: Option<ServiceId>,
    reserved: &mut Reserved<'_>,
) -> Result<GuardChange<A>, Refusal> {
    // A service without ports needs no guards, and has no id for them.
    let Some(first) = first else {
        return Ok(GuardChange {
            new: Vec::new(),
            kept: Vec::new(),
        });
    };
    let family = A::maps(maps);
    let standing: HashMap<A, RecordId> = state.guards[A::AT]
        .iter()
        .map(|id| (*id, family.records.load(id.0)))
        .filter(|(id, record)| family.index.get(&record.key) == Some(id) && record.service == first)
        .map(|(id, record)| (record.key.address, id))
        .collect();
    let mut addresses = A::guarded(plan).to_vec();
    addresses.sort();
    addresses.dedup();
    let (kept, new): (Vec<A>, Vec<A>) = addresses
        .into_iter()
        .partition(|address| standing.contains_key(address));
    let keys = new.iter().map(|address| FrontendKey::unserved(*address));
    let records = reserved.records(maps, keys)?;
    Ok(GuardChange {
        new: new.into_iter().zip(records).collect(),
        kept: kept
            .iter()
            .filter_map(|address| standing.get(address).copied())
            .collect(),
    })
}

/// Writes the records of new guards, and queues their keys and the removal of old guards.
pub(super) fn commit_guards<A: Stored>(
    maps: &Maps,
    state: &mut ServiceState,
    service: Option<ServiceId>,
    change: GuardChange<A>,
    at: usize,
    batches: &mut Batches,
) {
    let family = A::maps(maps);
    let mut guards = change.kept;
    let batch = A::batches_mut(batches);
    let old: Vec<(FrontendKey<A>, RecordId)> = state.guards[A::AT]
        .iter()
        .map(|id| (family.records.load(id.0).key, *id))
        .collect();
    let mut replaced = Vec::new();
    let written = change.new.len();
    for (address, record) in change.new {
        let key = FrontendKey::unserved(address);
        let value = Record {
            internal: Block::EMPTY,
            external: Block::EMPTY,
            flags: ServiceFlags::new(FrontendKind::Unserved),
            service: service.unwrap_or_default(),
            affinity_timeout: 0,
            key,
            _pad: A::RecordPad::default(),
        };
        let replaces = old
            .iter()
            .find(|(old, id)| *old == key && !guards.contains(id))
            .map(|(_, id)| *id);
        replaced.extend(replaces);
        batch.add_record(family, record, &value, replaces, at);
        guards.push(record);
    }
    batch.removed.extend(
        old.into_iter()
            .filter(|(_, id)| !guards.contains(id) && !replaced.contains(id)),
    );
    state.guards[A::AT] = guards;
    batches.written += written;
}
