// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A real etcd in a node's network namespace, accessed by its HTTP gateway. Used by `api_server`.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    path::Path,
    process::{Child, Command},
};

use anyhow::{Context, Result, ensure};
use k8s_openapi::ByteString;
use serde_json::{Value, json};

use super::{api_server::spawn, netns::NetNs};

const CLIENTS: &str = "127.0.0.1:2379";
const PEERS: &str = "127.0.0.1:2380";
/// Most operations in one transaction: as many as etcd accepts.
const AT_ONCE: usize = 128;

/// A running etcd; dropping it kills it.
pub(super) struct Etcd(Child);

/// A key and value to write into etcd, or a key to remove.
pub struct Record {
    pub key: String,
    /// The value to write; None removes the key.
    pub value: Option<Value>,
}

impl Etcd {
    pub(super) const URL: &'static str = "http://127.0.0.1:2379";

    pub(super) fn start(node: &NetNs, program: &Path, folder: &Path) -> Result<Self> {
        let peers = format!("http://{PEERS}");
        let mut command = Command::new(program);
        command
            .args(["--unsafe-no-fsync", "--log-level", "error", "--data-dir"])
            .arg(folder.join("etcd"))
            .args(["--listen-client-urls", Self::URL])
            .args(["--advertise-client-urls", Self::URL])
            .args(["--listen-peer-urls", &peers]);
        let child = spawn(node, &mut command, &folder.join("etcd.log"))?;
        Ok(Self(child))
    }
}

/// Writes or removes records in the etcd of a node, many in one transaction.
pub fn store<'r>(node: &NetNs, records: impl IntoIterator<Item = &'r Record>) -> Result<()> {
    let mut records = records.into_iter().peekable();
    while records.peek().is_some() {
        let steps: Vec<_> = records.by_ref().take(AT_ONCE).map(Record::step).collect();
        let answer = ask(node, &json!({"success": steps}).to_string())?;
        ensure!(answer["succeeded"] == true, "etcd refuses: {answer}");
    }
    Ok(())
}

fn ask(node: &NetNs, body: &str) -> Result<Value> {
    let address: SocketAddr = CLIENTS.parse()?;
    let stream = node.enter(|| TcpStream::connect(address))?;
    let mut stream = stream.context("connect to etcd")?;
    let length = body.len();
    write!(
        stream,
        "POST /v3/kv/txn HTTP/1.0\r\nHost: etcd\r\nContent-Length: {length}\r\n\r\n{body}"
    )?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let body = answer.split_once("\r\n\r\n").map(|(_, body)| body);
    let body = body.with_context(|| format!("etcd answers {answer:?}"))?;
    serde_json::from_str(body).with_context(|| format!("etcd answers {answer:?}"))
}

impl Drop for Etcd {
    fn drop(&mut self) {
        _ = self.0.kill();
        _ = self.0.wait();
    }
}

impl Record {
    /// Returns the operation of an etcd transaction for this record. etcd's gateway takes keys and
    /// values in base64.
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
