// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The keys, certificates and kubeconfigs of the cluster's components, signed by an authority of
//! its own. `build` writes them to the cluster's folder; called by `cluster up`.

use std::{fs::Permissions, os::unix::fs::PermissionsExt};

use anyhow::{Context, Result};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, IsCa, Issuer, KeyPair,
};
use serde_json::{Value, json};

use super::layout::{API_SERVICE, CONTROL, DOMAIN, NODES, pki, server};
use crate::fs;

/// Kubernetes' group of administrators.
const ADMINS: &str = "system:masters";

/// Writes all keys, certificates and kubeconfigs, unless an earlier call has written them.
pub(super) fn build() -> Result<()> {
    // The administrator's files are written last: if they exist, so do all others.
    if pki("admin.kubeconfig").exists() {
        return Ok(());
    }
    fs::create_dir_all(pki(""))?;
    std::fs::set_permissions(pki(""), Permissions::from_mode(0o700)).context("close the folder")?;
    let mut authority = params("portolan-cluster", "", &[])?;
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate()?;
    fs::write(pki("ca.crt"), authority.self_signed(&key)?.pem())?;
    let issuer = Issuer::new(authority, key);
    // The key that signs service accounts' tokens.
    let accounts = KeyPair::generate()?;
    fs::write(pki("sa.key"), accounts.serialize_pem())?;
    fs::write(pki("sa.pub"), accounts.public_key_pem())?;
    let names = format!(
        "kubernetes kubernetes.default kubernetes.default.svc kubernetes.default.svc.{DOMAIN} {} {API_SERVICE} 127.0.0.1",
        CONTROL.address
    );
    let names: Vec<_> = names.split(' ').map(str::to_owned).collect();
    write(&issuer, "apiserver", "kube-apiserver", "", &names)?;
    for node in &NODES {
        let user = format!("system:node:{}", node.place.name);
        write(&issuer, node.place.name, &user, "system:nodes", &[])?;
    }
    for (file, user, group) in [
        ("controller-manager", "system:kube-controller-manager", ""),
        ("scheduler", "system:kube-scheduler", ""),
        ("kubelet-client", "kube-apiserver-kubelet-client", ADMINS),
        ("admin", "admin", ADMINS),
    ] {
        write(&issuer, file, user, group, &[])?;
    }
    Ok(())
}

/// Makes a key and its certificate, which without usages is valid for servers and clients, and a
/// kubeconfig that names both. `names` are the server's DNS names and addresses.
fn write(
    issuer: &Issuer<'_, KeyPair>,
    file: &str,
    user: &str,
    group: &str,
    names: &[String],
) -> Result<()> {
    let params = params(user, group, names)?;
    let key = KeyPair::generate()?;
    let at = |ending| pki(&format!("{file}.{ending}"));
    fs::write(at("crt"), params.signed_by(&key, issuer)?.pem())?;
    fs::write(at("key"), key.serialize_pem())?;
    let cluster = json!({"server": server(), "certificate-authority": pki("ca.crt")});
    let user = json!({"client-certificate": at("crt"), "client-key": at("key")});
    fs::write(at("kubeconfig"), kubeconfig(&cluster, &user))
}

/// Returns a certificate's parameters. Kubernetes takes common name and organization as these two.
fn params(user: &str, group: &str, names: &[String]) -> Result<CertificateParams> {
    let mut params = CertificateParams::new(names)?;
    params.distinguished_name = DistinguishedName::new();
    if !group.is_empty() {
        let kind = DnType::OrganizationName;
        params.distinguished_name.push(kind, group);
    }
    params.distinguished_name.push(DnType::CommonName, user);
    Ok(params)
}

/// Returns a kubeconfig; JSON is YAML, too.
pub(crate) fn kubeconfig(cluster: &Value, user: &Value) -> String {
    json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "it",
        "clusters": [{"name": "it", "cluster": cluster}],
        "users": [{"name": "it", "user": user}],
        "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
    })
    .to_string()
}
