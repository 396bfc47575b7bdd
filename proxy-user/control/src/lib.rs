// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The control plane of the agent. It computes with plain values only, and uses no kernel, no API
//! server and no async runtime. Its input is changes of objects (`change`). `tracker` notes which
//! services the changes concern, and `planner` plans these services. `syncer` gives the plans to a
//! [`syncer::Kernel`] and retries the plans that the kernel refused (`apply`). `warnings` has the
//! warnings that hold at present.
#![deny(unsafe_code)]

pub mod apply;
pub mod causes;
pub mod change;
pub mod documents;
pub mod gateway;
pub mod model;
pub mod object;
pub mod plan;
pub mod planner;
pub mod syncer;
#[doc(hidden)]
pub mod testing;
pub mod tracker;
pub mod warnings;
