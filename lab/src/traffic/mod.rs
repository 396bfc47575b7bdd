// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Servers that report their own address and the client's as they see it, clients that ask them,
//! and packets captured at the uplink.

pub mod capture;
pub mod clients;
pub mod probe;
mod sctp;
pub mod servers;

pub use sctp::crc32c;
