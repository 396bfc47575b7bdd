// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The control plane of the agent, as plain values: it has no kernel, no API server and no runtime.
//! In: changes of objects (`change`). `tracker` notes which services they concern, `planner` plans
//! these, `syncer` hands the plans to a [`syncer::Kernel`] and tries again what that could not take
//! (`apply`). `warnings` are those that hold.
#![deny(unsafe_code)]

pub mod apply;
pub mod causes;
pub mod change;
pub mod documents;
pub mod model;
pub mod object;
pub mod plan;
pub mod planner;
pub mod syncer;
#[doc(hidden)]
pub mod testing;
pub mod tracker;
pub mod warnings;
