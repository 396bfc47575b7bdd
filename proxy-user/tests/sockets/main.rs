// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The socket hooks with real sockets: what the process sees, whom the backend sees, what the maps hold,
//! and what becomes of it all when endpoints and settings change. Needs root.

mod calls;
mod churn;
mod clients;
mod kinds;
mod pods;
mod service;
mod settings;
mod uring;
mod verdicts;
mod world;
