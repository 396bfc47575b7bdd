// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The lab: simulated nodes and what probes them. Included by the conformance runner, the demo and
//! the tests of both, each of which uses a part.
#![allow(
    dead_code,
    reason = "each program that includes the lab uses a part of it"
)]

pub(crate) mod agent;
pub(crate) mod api_server;
pub(crate) mod capture;
pub(crate) mod cases;
pub(crate) mod cgroup;
pub(crate) mod clients;
pub(crate) mod cluster;
pub(crate) mod cluster_api;
pub(crate) mod flows;
pub(crate) mod foreign;
pub(crate) mod interrupt;
pub(crate) mod judge;
pub(crate) mod layout;
pub(crate) mod netns;
pub(crate) mod probe;
pub(crate) mod sctp;
pub(crate) mod servers;
pub(crate) mod topology;
