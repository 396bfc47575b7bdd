// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Takes over from an earlier agent's maps, or from smaller ones, once the services are in the new
//! maps. Called after every complete sync and once a second.

use std::time::Duration;

use control::{causes::chain, object::Warning, warnings::Topic};
use datapath::{Carried, DatapathError};
use tokio::time::Instant;

use super::Attachments;
use crate::{agent::Shared, services::Services};

/// How long to wait if the new programs cannot be attached everywhere, before the previous ones are
/// removed all the same. Changes of services do not reach packets meanwhile.
const PATIENCE: Duration = Duration::from_secs(10);

impl Attachments {
    /// If there are maps of an earlier agent, or smaller ones: copies their flows and sockets into
    /// the new maps, attaches the new programs, then removes the old ones. Warns if that fails; the
    /// next call tries again.
    pub(crate) fn take_over(&mut self, shared: &mut Shared, services: &Services) {
        let Some(before) = shared.datapath.predecessors() else {
            return;
        };
        let started = std::time::Instant::now();
        let since = *self.taking_over.get_or_insert_with(Instant::now);
        let fault = match self.try_to_take_over(shared, services, since) {
            Ok(None) => return,
            Ok(Some(carried)) => {
                self.taking_over = None;
                tracing::info!(
                    before,
                    flows = carried.flows,
                    sockets = carried.sockets,
                    lost = carried.lost,
                    elapsed = ?started.elapsed(),
                    "took over from the maps before",
                );
                (carried.lost > 0).then(|| {
                    format!(
                        "{} entries of flows or sockets found no room in the new maps, so their connections break; raise portolan.maps.flows and portolan.maps.sockets before the next change of sizes",
                        carried.lost,
                    )
                })
            }
            Err(error) => Some(format!(
                "what they hold could not be taken over: {}; they go on serving, changes of services do not reach packets; it is tried again every second",
                chain(&error),
            )),
        };
        let warning = fault.map(|reason| Warning {
            object: format!("maps of an earlier agent ({before})"),
            reason,
        });
        shared
            .warnings
            .replace(Topic::Succession, Vec::from_iter(warning));
    }

    /// Copies flows and sockets from the previous maps and attaches the new programs; then removes
    /// the previous ones. Returns what was copied; `None` while programs are not attached
    /// everywhere yet.
    fn try_to_take_over(
        &mut self,
        shared: &mut Shared,
        services: &Services,
        since: Instant,
    ) -> Result<Option<Carried>, DatapathError> {
        if !shared.datapath.may_attach() {
            shared.datapath.carry_over()?;
        }
        if !self.attach(shared, services.served) && since.elapsed() < PATIENCE {
            return Ok(None);
        }
        shared.datapath.take_over().map(Some)
    }
}
