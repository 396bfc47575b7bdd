// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Names of Kubernetes objects, and warnings about them. Plain values, used everywhere.

use std::{
    fmt,
    hash::{BuildHasher, BuildHasherDefault, DefaultHasher, Hash},
    sync::Arc,
};

/// Namespace and name of a Kubernetes object. An object of a kind without namespaces has an empty
/// one.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct ObjectName {
    pub namespace: Arc<str>,
    pub name: Arc<str>,
}

impl ObjectName {
    pub fn new(namespace: &str, name: &str) -> Self {
        Self {
            namespace: namespace.into(),
            name: name.into(),
        }
    }
    /// Returns the name of another object in the same namespace.
    #[must_use]
    pub fn beside(&self, name: impl Into<Arc<str>>) -> Self {
        Self {
            namespace: Arc::clone(&self.namespace),
            name: name.into(),
        }
    }
    /// True for an object that the cluster itself needs: the API server's Service and everything in
    /// kube-system, such as DNS.
    pub fn is_essential(&self) -> bool {
        &*self.namespace == "kube-system"
            || (&*self.namespace == "default" && &*self.name == "kubernetes")
    }
}

impl fmt::Display for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// Returns a hash of an object's uid; 0 without a uid. It differs from that of an earlier object
/// with the same name, and is the same on every node.
pub fn uid_hash(uid: Option<&str>) -> u64 {
    uid.map_or(0, hash)
}

/// Returns a hash that is the same in every process.
pub fn hash(value: impl Hash) -> u64 {
    BuildHasherDefault::<DefaultHasher>::default().hash_one(value)
}

/// A problem of an object that an operator should know about; the rest of the object still works.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Warning {
    /// What the warning is about, such as kind and name (`Service shop/cart`), or file and line.
    pub object: String,
    /// What is wrong, where, and what to do.
    pub reason: String,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.object, self.reason)
    }
}
