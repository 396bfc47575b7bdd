// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Kubeconfigs and clients for the lab's API server, whose certificate is not verified.

use std::path::Path;

use anyhow::Result;
use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};
use serde_json::json;

/// Returns the text of a kubeconfig with the server's URL and a user's token.
pub fn render(server: &str, token: &str) -> String {
    json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "test",
        "clusters": [{"name": "test", "cluster": {"server": server, "insecure-skip-tls-verify": true}}],
        "users": [{"name": "test", "user": {"token": token}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}]
    })
    .to_string()
}

/// Makes a Kubernetes client with the address and rights of a kubeconfig. Its sockets are created
/// in the network namespace where the client is used.
pub async fn client(kubeconfig: &Path) -> Result<Client> {
    let content = Kubeconfig::read_from(kubeconfig)?;
    let options = KubeConfigOptions::default();
    let config = Config::from_custom_kubeconfig(content, &options).await?;
    Ok(Client::try_from(config)?)
}
