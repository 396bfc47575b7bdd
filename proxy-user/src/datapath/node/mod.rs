// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the programs know about the node. In: settings, addresses, interfaces, excepted cgroups. Out: map elements, of which
//! only those that differ are written. Called by `Datapath`; `store` changes some fields of the settings.

mod addresses;
mod exceptions;
mod masquerade;
mod settings;

pub use addresses::NodeAddress;
pub(super) use addresses::NodeAddresses;
pub(super) use exceptions::SocketExceptions;
pub(super) use masquerade::MasqueradeSources;
pub(super) use settings::{NewAddresses, SettingsCell};
