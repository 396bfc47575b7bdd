// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Flows: keys and values of their table (`entry`), life cycle (`state`), idle times (`idle`).

mod entry;
mod idle;
mod state;

pub use entry::{FlowEntry, FlowKey, FlowKind};
pub use idle::{EXPIRY_BATCH, ExpiryRequest, IdleTimes, REFRESH_INTERVAL};
pub use state::{FlowState, Signals, begins_anew, may_begin, next_state};
