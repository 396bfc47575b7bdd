// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What loads nodes and looks at what that takes: clients and servers, an API server's objects, medians with their
//! intervals, processes. Included by `connect`, `control_plane` and `lab`, each of which uses a part.
#![allow(
    dead_code,
    reason = "each benchmark that includes this uses a part of it"
)]

pub(crate) mod client;
pub(crate) mod objects;
pub(crate) mod process;
pub(crate) mod records;
pub(crate) mod rounds;
pub(crate) mod server;
pub(crate) mod setup;
pub(crate) mod statistics;
