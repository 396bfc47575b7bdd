// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Flows: keys and values of the flow tables (`entry`), where the tables keep them (`places`), the
//! new addresses of a flow's packets (`ends`), life cycle (`state`, by `signals` of packets), and
//! idle times (`idle`). `offload` records which flows may leave past the
//! node's stack, `between_pods` which conversations between pods that are not flows may do so.

pub mod between_pods;
mod ends;
mod entry;
mod idle;
pub mod offload;
pub mod places;
mod signals;
mod state;

pub use entry::{ClientInterface, FlowEntry, FlowKey, FlowKind, SPARE, Spare};
pub use idle::{EXPIRY_BATCH, ExpiryRequest, IdleTimes, REFRESH_INTERVAL, coarse, frontend_is_due};
pub use offload::Offload;
pub use signals::{Signals, is_near, is_routine, proves_answer};
pub use state::{
    Anew, Change, FlowState, Phase, begins_anew, change_by_backend, change_by_client, may_begin,
    takes_answer,
};
