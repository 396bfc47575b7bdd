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

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use rustls_pki_types::{CertificateDer, ServerName, UnixTime, pem::PemObject};
    use webpki::{
        EndEntityCert, ExtendedKeyUsageValidator, KeyUsage, anchor_from_trusted_cert,
        ring::ECDSA_P256_SHA256,
    };

    use super::*;

    fn made() -> BTreeMap<String, String> {
        files()
            .expect("keys and certificates")
            .into_iter()
            .collect()
    }

    fn certificate(files: &BTreeMap<String, String>, name: &str) -> CertificateDer<'static> {
        CertificateDer::from_pem_slice(files[name].as_bytes()).expect("a certificate in PEM")
    }

    fn verify(
        files: &BTreeMap<String, String>,
        certificate: &EndEntityCert<'_>,
        usage: impl ExtendedKeyUsageValidator,
    ) {
        let authority = self::certificate(files, "ca.crt");
        let anchor = anchor_from_trusted_cert(&authority).expect("an authority");
        let now = UnixTime::now();
        certificate
            .verify_for_usage(&[ECDSA_P256_SHA256], &[anchor], &[], now, usage, None, None)
            .map(drop)
            .expect("signed by the authority");
    }

    #[test]
    fn every_certificate_is_signed_by_the_authority_and_fits_its_key() {
        let files = made();
        let names = files.keys().filter_map(|name| name.strip_suffix(".crt"));
        let mut count = 0;
        for name in names.filter(|name| *name != "ca") {
            let der = certificate(&files, &format!("{name}.crt"));
            let parsed = EndEntityCert::try_from(&der).expect("a certificate");
            verify(&files, &parsed, KeyUsage::server_auth());
            verify(&files, &parsed, KeyUsage::client_auth());
            let key = KeyPair::from_pem(&files[&format!("{name}.key")]).expect("a key in PEM");
            let public = rcgen::PublicKeyData::subject_public_key_info(&key);
            assert_eq!(parsed.subject_public_key_info().as_ref(), public, "{name}");
            count += 1;
        }
        assert_eq!(count, 6 + NODES.len());
    }

    #[test]
    fn the_servers_certificate_is_good_for_each_of_its_names() {
        let files = made();
        let der = certificate(&files, "apiserver.crt");
        let parsed = EndEntityCert::try_from(&der).expect("a certificate");
        for name in [
            "kubernetes.default.svc",
            CONTROL.address,
            API_SERVICE,
            "127.0.0.1",
        ] {
            let name = ServerName::try_from(name).expect("a name or an address");
            parsed
                .verify_is_valid_for_subject_name(&name)
                .unwrap_or_else(|error| panic!("{name:?}: {error}"));
        }
    }

    #[test]
    fn a_nodes_certificate_has_its_user_and_the_group_system_nodes() {
        let files = made();
        let der = certificate(&files, "node-a.crt");
        for name in ["system:nodes", "system:node:node-a"] {
            let mut windows = der.windows(name.len());
            assert!(windows.any(|window| window == name.as_bytes()), "{name}");
        }
    }

    #[test]
    fn the_key_of_service_accounts_has_its_public_half_in_a_file() {
        let files = made();
        let key = KeyPair::from_pem(&files["sa.key"]).expect("a key in PEM");
        assert_eq!(key.public_key_pem(), files["sa.pub"]);
        assert!(files["sa.pub"].starts_with("-----BEGIN PUBLIC KEY-----"));
    }

    #[test]
    fn the_key_file_that_marks_completion_is_written_last() {
        let files = files().expect("keys and certificates");
        assert_eq!(files.last().map(|(name, _)| name.as_str()), Some(LAST));
    }
}
