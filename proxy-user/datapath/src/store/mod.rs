// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Writes the services into the maps. In: services' plans. Out: map elements, written in an order
//! that is safe for the programs that read them, and the failures. Called by `Datapath`; `sweep`
//! asks which backends still serve.

mod adopt;
mod apply;
mod change;
mod check;
mod commit;
mod delta;
mod garbage;
mod guards;
mod ids;
mod maps;
mod prepare;
mod publish;
mod reserve;
mod state;

pub(super) use apply::Store;
pub(super) use state::Stored;
