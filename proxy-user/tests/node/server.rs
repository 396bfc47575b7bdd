// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A real API server on the node. A test fails at the first step that the server refuses.

use std::{fmt::Display, fs};

use lab::node::{
    api_server::{ApiServer, URL},
    kubeconfig,
};

use serde_json::Value;

use crate::{
    objects::{NAMESPACE, Service},
    world::World,
};

/// The node's address, by which agents reach the server.
const ADDRESS: &str = "10.40.0.1";

pub(crate) struct Server<'a>(pub(crate) ApiServer<'a>);

/// Starts a server that has the Node object and one service.
pub(crate) fn prepare(world: &World) -> Server<'_> {
    let started = ApiServer::start(world.node(), ADDRESS);
    let server = Server(started.expect("a server"));
    server.apply(NAMESPACE);
    server.0.make_node(ADDRESS).expect("the Node object");
    server.apply(Service::new("cart", "172.30.1.1"));
    server
}

impl Server<'_> {
    /// The path of an administrator's kubeconfig.
    pub(crate) fn kubeconfig(&self) -> String {
        self.0.kubeconfig().display().to_string()
    }

    /// Writes a kubeconfig of an account of `deploy`, which the server has; returns its path.
    pub(crate) fn kubeconfig_of(&self, world: &World, account: &str) -> String {
        let token = self.kubectl(&format!("create token {account} --namespace kube-system"));
        let path = world.path(account);
        fs::write(&path, kubeconfig::render(URL, token.trim())).expect("a kubeconfig");
        path
    }

    /// The server's minor version, such as 36.
    pub(crate) fn minor(&self) -> u32 {
        let version = self.kubectl("get --raw /version");
        let version: Value = serde_json::from_str(&version).expect("its version");
        let minor = version["minor"].as_str().expect("a minor version");
        minor.trim_end_matches('+').parse().expect("a number")
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

    /// Has the server check objects without storing them; returns why it refuses them.
    pub(crate) fn refusal(&self, manifests: &str) -> Option<String> {
        let checked = self.0.try_out(manifests);
        checked.err().map(|error| format!("{error:#}"))
    }
}
