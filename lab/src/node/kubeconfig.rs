// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Kubeconfigs and clients for the lab's API server, whose certificate is not verified.

use std::path::Path;

use anyhow::Result;
use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};
use serde_json::json;

/// The text of a kubeconfig for a server and a token.
pub fn render(server: &str, token: &str) -> String {
    json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "test",
        "clusters": [{"name": "test", "cluster": {"server": server, "insecure-skip-tls-verify": true}}],
        "users": [{"name": "test", "user": {"token": token}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}]
    })
    .to_string()
}

/// Makes a client with the address and rights of a kubeconfig. Its sockets are created where the
/// client is used.
pub async fn client(kubeconfig: &Path) -> Result<Client> {
    let content = Kubeconfig::read_from(kubeconfig)?;
    let options = KubeConfigOptions::default();
    let config = Config::from_custom_kubeconfig(content, &options).await?;
    Ok(Client::try_from(config)?)
}
