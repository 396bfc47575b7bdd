// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A real API server on the node. A test fails at the first step that the server refuses.

use std::fmt::Display;

use lab::node::api_server::ApiServer;

use crate::{
    objects::{NAMESPACE, node_object, service},
    world::World,
};

pub(crate) struct Server<'a>(ApiServer<'a>);

/// Starts a server that has the Node object and one service.
pub(crate) fn prepare(world: &World) -> Server<'_> {
    let server = Server(ApiServer::start(world.node(), "10.40.0.1").expect("a server"));
    server.apply(NAMESPACE);
    server.apply(node_object(None));
    server.kubectl(
        r#"patch node node-a --subresource=status --type=merge --patch {"status":{"addresses":[{"type":"InternalIP","address":"10.40.0.1"}]}}"#,
    );
    server.apply(service("cart", "172.30.1.1"));
    server
}

impl Server<'_> {
    /// The path of an administrator's kubeconfig.
    pub(crate) fn kubeconfig(&self) -> String {
        self.0.kubeconfig().display().to_string()
    }

    /// Runs kubectl with words separated by blanks; returns its output.
    pub(crate) fn kubectl(&self, words: &str) -> String {
        self.try_kubectl(words).expect("kubectl")
    }

    pub(crate) fn try_kubectl(&self, words: &str) -> anyhow::Result<String> {
        self.0
            .kubectl(&words.split_whitespace().collect::<Vec<_>>())
    }

    /// Creates or replaces objects.
    pub(crate) fn apply(&self, manifests: impl Display) {
        let applied = self.0.apply(&manifests.to_string());
        applied.expect("kubectl apply");
    }

    /// Has the server check objects without storing them.
    pub(crate) fn try_out(&self, manifests: &str) {
        let checked = self.0.try_out(manifests);
        checked.expect("kubectl apply --dry-run");
    }

    /// Kills the server; etcd goes on.
    pub(crate) fn kill(&mut self) {
        self.0.kill();
    }

    /// Starts the server again.
    pub(crate) fn revive(&mut self) {
        self.0.revive().expect("the server is back");
    }

    /// Makes etcd forget the history up to now.
    pub(crate) fn compact(&self) {
        self.0.compact().expect("compacted");
    }
}
