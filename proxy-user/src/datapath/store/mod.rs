// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The published services. In: services' plans; out: map elements, written in the order that keeps every reader safe, and
//! what could not be written. Called by `Datapath`; `sweep` asks it which backends are current.

mod adopt;
mod apply;
mod blocks;
mod change;
mod commit;
mod delta;
mod grace;
mod ids;
mod prepare;
mod result;
mod state;

pub(crate) use adopt::{adopt, opened};
pub(crate) use apply::Store;
pub(crate) use commit::retract;
pub(crate) use grace::Grace;
pub use result::{ApplyReport, Fill};
pub(crate) use state::{Stored, text};
