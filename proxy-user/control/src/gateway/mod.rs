// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The Gateway API, layer 4: what Gateways, TCPRoutes and UDPRoutes mean for the maps, and the
//! status of each object. The tracker keeps one [`Gateways`] and tells it of changes; only what a
//! change concerns is translated again. The planner plans a Gateway as a service whose backends are
//! those of its routes.

mod addresses;
mod attach;
mod build;
mod index;
mod made;
pub mod names;
mod owned;
mod report;
mod resolve;
mod slices;
mod state;
#[cfg(test)]
mod tests;
pub mod weights;

pub use build::{PortBackends, Served};
pub use resolve::Share;
pub use state::{Gateways, News};

use serde_json::Value;

/// Something to write to the API server.
#[derive(Clone, PartialEq, Debug)]
pub enum Write {
    /// Our part of the object's status.
    Status(Value),
    /// The Service or EndpointSlice to apply.
    Apply(Value),
    /// The Service or EndpointSlice is not wanted any more.
    Delete,
}
