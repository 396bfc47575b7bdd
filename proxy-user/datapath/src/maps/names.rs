// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The elements of the map `names`: key is the id of a service port, value is its name. Used by
//! `store` and `read`.

use control::object::ObjectName;
use proxy_common::{Port, Protocol, service::ServiceName};

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

/// Returns the text in a field of [`ServiceName`].
pub(crate) fn text(field: &[u8; 64]) -> String {
    let length = field.iter().position(|byte| *byte == 0).unwrap_or(64);
    String::from_utf8_lossy(&field[..length]).into_owned()
}
