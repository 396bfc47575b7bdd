// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Servers that say who they are and whom they see, clients that ask them, and packets seen on their way.

pub mod capture;
pub mod clients;
pub mod probe;
mod sctp;
pub mod servers;
