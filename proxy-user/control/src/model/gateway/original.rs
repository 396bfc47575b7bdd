// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The Gateway API's objects as the API server sends them. They are custom resources, so they come
//! as JSON. Spec and status are read by `read`, so that a part of another form is a warning and not
//! the end of a list.

use k8s_openapi::{
    ClusterResourceScope, NamespaceResourceScope, apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use serde::Deserialize;
use serde_json::Value;

/// A custom resource.
pub trait Custom {
    /// Returns its metadata, spec and status.
    fn parts(&self) -> (&ObjectMeta, &Value, &Value);
}

macro_rules! originals {
    ($($name:ident, $segment:literal, $scope:ty;)*) => {
        $(
            #[doc = concat!("`gateway.networking.k8s.io/v1.", stringify!($name), "`.")]
            #[derive(Clone, Debug, Default, Deserialize)]
            #[serde(default)]
            pub struct $name {
                pub metadata: ObjectMeta,
                pub spec: Value,
                pub status: Value,
            }

            impl Custom for $name {
                fn parts(&self) -> (&ObjectMeta, &Value, &Value) {
                    (&self.metadata, &self.spec, &self.status)
                }
            }

            impl k8s_openapi::Resource for $name {
                const API_VERSION: &'static str = "gateway.networking.k8s.io/v1";
                const GROUP: &'static str = super::GROUP;
                const KIND: &'static str = stringify!($name);
                const VERSION: &'static str = "v1";
                const URL_PATH_SEGMENT: &'static str = $segment;
                type Scope = $scope;
            }

            impl k8s_openapi::Metadata for $name {
                type Ty = ObjectMeta;
                fn metadata(&self) -> &ObjectMeta {
                    &self.metadata
                }
                fn metadata_mut(&mut self) -> &mut ObjectMeta {
                    &mut self.metadata
                }
            }
        )*
    };
}
originals! {
    GatewayClass, "gatewayclasses", ClusterResourceScope;
    Gateway, "gateways", NamespaceResourceScope;
    TCPRoute, "tcproutes", NamespaceResourceScope;
    UDPRoute, "udproutes", NamespaceResourceScope;
    ReferenceGrant, "referencegrants", NamespaceResourceScope;
}
