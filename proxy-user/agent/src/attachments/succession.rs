// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Takes over from an earlier agent's maps, or from smaller ones, once the services are in the new
//! maps. Called after every complete sync and once a second; goes on in turns, as attaching and
//! detaching take the kernel's time at each interface.

use std::time::Duration;

use control::{causes::chain, object::Warning, warnings::Topic};
use datapath::{Carried, DatapathError};
use tokio::time::Instant;

use super::{Attachments, SLICE};
use crate::{agent::Shared, services::Services};

/// How long to wait if the new programs cannot be attached everywhere, before the previous ones are
/// removed all the same. Changes of services do not reach packets meanwhile.
const PATIENCE: Duration = Duration::from_secs(10);

/// How far taking over from the previous maps is.
#[derive(Debug, Default)]
pub(super) struct Takeover {
    began: Option<Instant>,
    /// Since when only interfaces or hooks that refuse the new programs lack them.
    refused: Option<Instant>,
    /// True if the next turn may come at once, because time ran out.
    pub(super) more: bool,
}

/// What one turn has come to.
enum Turn {
    /// The next turn may come at once.
    More,
    /// The new programs cannot be attached everywhere yet; the next turn comes in a second.
    Wait,
    Complete(Carried),
}

impl Attachments {
    /// If there are maps of an earlier agent, or smaller ones: copies their flows and sockets into
    /// the new maps, attaches the new programs, then removes the old ones; as much of it as one
    /// turn takes. Warns if that fails; the next call tries again.
    pub(crate) fn take_over(&mut self, shared: &mut Shared, services: &Services) {
        let Some(before) = shared.datapath.predecessors() else {
            return;
        };
        let began = *self.takeover.began.get_or_insert_with(Instant::now);
        let turn = self.take_turn(shared, services);
        self.takeover.more = matches!(turn, Ok(Turn::More));
        let fault = match turn {
            Ok(Turn::More | Turn::Wait) => return,
            Ok(Turn::Complete(carried)) => {
                self.takeover = Takeover::default();
                tracing::info!(
                    before,
                    flows = carried.flows,
                    sockets = carried.sockets,
                    lost = carried.lost,
                    elapsed = ?began.elapsed(),
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

    /// Takes one turn: copies flows and sockets from the previous maps; or attaches the new
    /// programs to some interfaces; or, once they are everywhere, detaches some of the previous
    /// ones.
    fn take_turn(
        &mut self,
        shared: &mut Shared,
        services: &Services,
    ) -> Result<Turn, DatapathError> {
        if !shared.datapath.may_attach() {
            shared.datapath.carry_over(SLICE)?;
            return Ok(Turn::More);
        }
        if !shared.datapath.is_drained() {
            self.attach_interfaces(shared);
            if self.more_to_attach {
                return Ok(Turn::More);
            }
            if !self.attach(shared, services.served) {
                let refused = self.takeover.refused.get_or_insert_with(Instant::now);
                if refused.elapsed() < PATIENCE {
                    return Ok(Turn::Wait);
                }
            }
        }
        let carried = shared.datapath.take_over(SLICE)?;
        Ok(carried.map_or(Turn::More, Turn::Complete))
    }
}
