// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The keys, certificates and kubeconfigs of the cluster's components, signed by an authority of
//! its own. `build` writes them to the cluster's folder; called by `cluster up`.

use std::{
    fs::OpenOptions,
    io::Write,
    os::unix::fs::OpenOptionsExt,
    path::Path,
    time::{Duration, SystemTime},
};

use anyhow::{Context, Result};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose,
};
use serde_json::json;

use super::layout::{API_SERVICE, CONTROL, DOMAIN, NODES, pki, server};
use crate::fs;

/// Validity of the certificates: a year.
const VALIDITY: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// Kubernetes' group of administrators.
const ADMINISTRATORS: &str = "system:masters";

/// The file that is written last. If it exists, `build` has written all other files.
const LAST: &str = "admin.kubeconfig";

/// Writes all keys, certificates and kubeconfigs, unless an earlier call has written them.
pub(super) fn build() -> Result<()> {
    fs::create_dir_all(pki(""))?;
    if pki(LAST).exists() {
        return Ok(());
    }
    for (name, content) in files().context("make keys and certificates")? {
        write(&pki(&name), &content)?;
    }
    Ok(())
}

/// Returns names and contents of all files that `build` writes, in this order.
fn files() -> Result<Vec<(String, String)>> {
    let authority = Authority::new()?;
    let mut files = vec![("ca.crt".to_owned(), authority.certificate.clone())];
    // The key that signs service accounts' tokens.
    let accounts = KeyPair::generate()?;
    files.push(("sa.key".to_owned(), accounts.serialize_pem()));
    files.push(("sa.pub".to_owned(), accounts.public_key_pem()));
    let names = [
        "kubernetes".to_owned(),
        "kubernetes.default".to_owned(),
        "kubernetes.default.svc".to_owned(),
        format!("kubernetes.default.svc.{DOMAIN}"),
        CONTROL.address.to_owned(),
        API_SERVICE.to_owned(),
        "127.0.0.1".to_owned(),
    ];
    files.extend(authority.pair("apiserver", "kube-apiserver", None, &names)?);
    files.extend(authority.pair(
        "kubelet-client",
        "kube-apiserver-kubelet-client",
        Some(ADMINISTRATORS),
        &[],
    )?);
    for node in &NODES {
        let name = node.place.name;
        let user = format!("system:node:{name}");
        files.extend(authority.client(name, &user, Some("system:nodes"))?);
    }
    for (name, user, group) in [
        ("controller-manager", "system:kube-controller-manager", None),
        ("scheduler", "system:kube-scheduler", None),
        ("kube-proxy", "system:kube-proxy", None),
        ("admin", "admin", Some(ADMINISTRATORS)),
    ] {
        files.extend(authority.client(name, user, group)?);
    }
    Ok(files)
}

/// The cluster's certificate authority, which signs all certificates.
struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: String,
}

impl Authority {
    fn new() -> Result<Self> {
        let mut params = params("portolan-cluster", None, &[])?;
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate()?;
        let certificate = params.self_signed(&key)?.pem();
        Ok(Self {
            issuer: Issuer::new(params, key),
            certificate,
        })
    }

    /// Makes a key and its certificate, valid for servers and clients. Returns the files' names and
    /// contents. `names` are the server's DNS names and addresses.
    fn pair(
        &self,
        file: &str,
        user: &str,
        group: Option<&str>,
        names: &[String],
    ) -> Result<[(String, String); 2]> {
        let mut params = params(user, group, names)?;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        params.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &self.issuer)?;
        Ok([
            (format!("{file}.key"), key.serialize_pem()),
            (format!("{file}.crt"), certificate.pem()),
        ])
    }

    /// Does the same as `pair`, and adds a kubeconfig that names both files.
    fn client(
        &self,
        file: &str,
        user: &str,
        group: Option<&str>,
    ) -> Result<impl Iterator<Item = (String, String)>> {
        let pair = self.pair(file, user, group, &[])?;
        let kubeconfig = (format!("{file}.kubeconfig"), kubeconfig(file));
        Ok(pair.into_iter().chain([kubeconfig]))
    }
}

/// Returns what all certificates have in common. Kubernetes takes a certificate's common name as
/// the user and its organization as the group.
fn params(user: &str, group: Option<&str>, names: &[String]) -> Result<CertificateParams> {
    let mut params = CertificateParams::new(names)?;
    params.distinguished_name = DistinguishedName::new();
    if let Some(group) = group {
        let kind = DnType::OrganizationName;
        params.distinguished_name.push(kind, group);
    }
    params.distinguished_name.push(DnType::CommonName, user);
    let now = SystemTime::now();
    params.not_before = now.into();
    params.not_after = (now + VALIDITY).into();
    Ok(params)
}

fn kubeconfig(name: &str) -> String {
    json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "cluster",
        "clusters": [{"name": "cluster", "cluster": {"server": server(), "certificate-authority": pki("ca.crt")}}],
        "users": [{"name": name, "user": {
            "client-certificate": pki(&format!("{name}.crt")), "client-key": pki(&format!("{name}.key")),
        }}],
        "contexts": [{"name": "cluster", "context": {"cluster": "cluster", "user": name}}],
    })
    .to_string()
}

/// Writes a file that only its owner may read.
fn write(path: &Path, content: &str) -> Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    options
        .open(path)
        .and_then(|mut file| file.write_all(content.as_bytes()))
        .with_context(|| format!("write {}", path.display()))
}
