// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A real etcd in a node's network namespace, accessed by its HTTP gateway. Used by `api_server`.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::Path,
    process::Command,
};

use anyhow::{Context, Result, ensure};
use k8s_openapi::ByteString;
use serde_json::{Value, json};

use super::{
    http,
    netns::NetNs,
    process::{Killed, spawn_logged},
};

const CLIENTS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 2379);
const PEERS: &str = "127.0.0.1:2380";
/// Most operations in one transaction: as many as etcd accepts.
const AT_ONCE: usize = 128;

/// A key and value to write into etcd, or a key to remove.
pub struct Record {
    pub key: String,
    /// The value to write; None removes the key.
    pub value: Option<Value>,
}

pub(super) const URL: &str = "http://127.0.0.1:2379";

/// Starts etcd on a node; `folder` is for its files.
pub(super) fn start(node: &NetNs, program: &Path, folder: &Path) -> Result<Killed> {
    let peers = format!("http://{PEERS}");
    let mut command = Command::new(program);
    command
        .args(["--unsafe-no-fsync", "--log-level", "error", "--data-dir"])
        .arg(folder.join("etcd"))
        .args(["--listen-client-urls", URL])
        .args(["--advertise-client-urls", URL])
        .args(["--listen-peer-urls", &peers]);
    spawn_logged(node, &mut command, &folder.join("etcd.log")).map(Killed)
}

/// Writes or removes records in the etcd of a node, many in one transaction.
pub fn store<'r>(node: &NetNs, records: impl IntoIterator<Item = &'r Record>) -> Result<()> {
    let mut records = records.into_iter().peekable();
    while records.peek().is_some() {
        let steps: Vec<_> = records.by_ref().take(AT_ONCE).map(Record::step).collect();
        let body = json!({"success": steps}).to_string();
        let length = body.len();
        let request = format!(
            "POST /v3/kv/txn HTTP/1.0\r\nHost: etcd\r\nContent-Length: {length}\r\n\r\n{body}"
        );
        let (_, answer) = http::ask(node, CLIENTS.ip(), CLIENTS, &request, None).context("etcd")?;
        let parsed: Value = serde_json::from_str(&answer).unwrap_or_default();
        ensure!(parsed["succeeded"] == true, "etcd refuses: {answer}");
    }
    Ok(())
}

impl Record {
    /// Returns the operation of an etcd transaction for this record, keys and values in base64.
    fn step(&self) -> Value {
        let bytes = |text: String| ByteString(text.into_bytes());
        let key = bytes(self.key.clone());
        match &self.value {
            Some(value) => {
                json!({"requestPut": {"key": key, "value": bytes(value.to_string())}})
            }
            None => json!({"requestDeleteRange": {"key": key}}),
        }
    }
}
