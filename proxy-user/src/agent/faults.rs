// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What could not be applied, as faults for `server::health`. Called by `steps`.

use crate::{
    datapath::{Affected, Failure},
    object::Warning,
    server::health::{Area, Health},
};

/// Replaces the faults of services, and of what they share.
pub(super) fn set(health: &Health, failures: &[Failure]) {
    let (services, shared): (Vec<_>, Vec<_>) = failures
        .iter()
        .map(|failure| {
            let fault = Warning {
                object: failure.affected.to_string(),
                reason: failure.reason.to_string(),
            };
            (matches!(failure.affected, Affected::Service(_)), fault)
        })
        .partition(|(is_service, _)| *is_service);
    for (area, faults) in [(Area::Services, services), (Area::Shared, shared)] {
        health.set_faults(area, faults.iter().map(|(_, fault)| fault));
    }
}
