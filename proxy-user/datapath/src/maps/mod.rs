// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The pinned maps as typed tables and arrays. In: a pin directory and capacities. Out: maps whose
//! shape has been checked and whose elements are plain values. Used by every other module here.

pub mod arrays;
pub(super) mod counted;
pub mod family;
mod flows;
mod memory;
mod pinned;
pub mod pins;
pub mod ranges;
pub mod shapes;

use std::{io, path::Path};

use control::object::ObjectName;
use linux::{Plain, get_pinned, tables::Table};
use proxy_common::{Port, Protocol, service::ServiceName};

pub(super) use arrays::PortFilter;
pub use flows::{Added, FlowTable};
pub use linux::tables;
pub use memory::{memory_of, sizes_for};
pub(super) use pinned::{PinnedMaps, TRACE, TRACE_OUT};
pub(super) use pins::Lock;
pub use pins::holder_of;
pub use shapes::pinned_capacities;
pub use shapes::{Shape, shapes};
pub(super) use shapes::{capacities_in, have_shapes};

/// Opens a pinned map, for both reading and writing.
pub(crate) fn open_table<K: Plain, V: Plain>(home: &Path, map: &str) -> io::Result<Table<K, V>> {
    get_pinned(&home.join(map), false).and_then(Table::new)
}

/// Returns the value for a service port in the map `names`.
pub(crate) fn service_name(
    service: &ObjectName,
    port_name: &str,
    port: Port,
    protocol: Protocol,
) -> ServiceName {
    ServiceName {
        namespace: field(&service.namespace),
        name: field(&service.name),
        port_name: field(port_name),
        port,
        protocol,
        _pad: 0,
    }
}

fn field(text: &str) -> [u8; 64] {
    let mut bytes = [0; 64];
    for (to, from) in bytes.iter_mut().zip(text.bytes()) {
        *to = from;
    }
    bytes
}
