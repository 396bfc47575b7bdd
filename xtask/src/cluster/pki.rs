// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The cluster's own authority, a certificate for each of its parts, and a kubeconfig for each client.

use std::{fs, path::PathBuf, process::Command};

use anyhow::{Context, Result};
use serde_json::json;

use super::{
    daemon::run,
    layout::{CONTROL, DOMAIN, NODES, pki, server},
};

/// Makes everything that is not there yet.
pub(super) fn build() -> Result<()> {
    let folder = pki("");
    fs::create_dir_all(&folder).with_context(|| format!("make {}", folder.display()))?;
    if pki("admin.kubeconfig").exists() {
        return Ok(());
    }
    openssl(&format!(
        "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 365 -subj /CN=portolan-cluster -keyout {} -out {}",
        file("ca.key"),
        file("ca.crt"),
    ))?;
    openssl(&format!("genrsa -out {} 2048", file("sa.key")))?;
    openssl(&format!(
        "rsa -in {} -pubout -out {}",
        file("sa.key"),
        file("sa.pub")
    ))?;
    let names = format!(
        "DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc,DNS:kubernetes.default.svc.{DOMAIN},IP:{},IP:10.96.0.1,IP:127.0.0.1",
        CONTROL.address
    );
    certificate("apiserver", "/CN=kube-apiserver", &names)?;
    certificate(
        "kubelet-client",
        "/O=system:masters/CN=kube-apiserver-kubelet-client",
        "",
    )?;
    for (name, subject) in [
        ("controller-manager", "/CN=system:kube-controller-manager"),
        ("scheduler", "/CN=system:kube-scheduler"),
        ("kube-proxy", "/CN=system:kube-proxy"),
        ("admin", "/O=system:masters/CN=admin"),
    ] {
        client(name, subject)?;
    }
    for node in &NODES {
        let name = node.place.name;
        client(name, &format!("/O=system:nodes/CN=system:node:{name}"))?;
    }
    Ok(())
}

fn client(name: &str, subject: &str) -> Result<()> {
    certificate(name, subject, "")?;
    let content = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "cluster",
        "clusters": [{"name": "cluster", "cluster": {"server": server(), "certificate-authority": pki("ca.crt")}}],
        "users": [{"name": name, "user": {
            "client-certificate": pki(&format!("{name}.crt")), "client-key": pki(&format!("{name}.key")),
        }}],
        "contexts": [{"name": "cluster", "context": {"cluster": "cluster", "user": name}}],
    });
    let kubeconfig = pki(&format!("{name}.kubeconfig"));
    fs::write(&kubeconfig, content.to_string())
        .with_context(|| format!("write {}", kubeconfig.display()))
}

fn certificate(name: &str, subject: &str, names: &str) -> Result<()> {
    let [key, request, certificate, extensions] =
        ["key", "csr", "crt", "ext"].map(|kind| file(&format!("{name}.{kind}")));
    let mut text = "extendedKeyUsage=serverAuth,clientAuth\n".to_owned();
    if !names.is_empty() {
        text += &format!("subjectAltName={names}\n");
    }
    fs::write(&extensions, text).with_context(|| format!("write {extensions}"))?;
    openssl(&format!(
        "req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj {subject} -keyout {key} -out {request}"
    ))?;
    openssl(&format!(
        "x509 -req -in {request} -CA {} -CAkey {} -CAcreateserial -days 365 -extfile {extensions} -out {certificate}",
        file("ca.crt"),
        file("ca.key"),
    ))
}

fn file(name: &str) -> String {
    let path: PathBuf = pki(name);
    path.display().to_string()
}

fn openssl(arguments: &str) -> Result<()> {
    run(Command::new("openssl").args(arguments.split(' ')))
        .map(drop)
        .context("make keys and certificates")
}
