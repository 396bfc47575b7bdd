// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Looks up the names of pods, and the endpoints that Kubernetes lists, which may be more than the
//! maps have. Asks the API server or a folder of manifests, if one is given.

use std::{
    collections::{HashMap, HashSet},
    env,
    net::IpAddr,
    path::PathBuf,
};

use anyhow::{Result, bail};
use control::{gateway::names::is_plan, object::ObjectName};
use source::{SourceError, api_server::Access, named::Directory, service::ServiceObjects};

use crate::frame::runtime;

/// Where objects are asked for.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct NameArgs {
    /// Ask the API server of this kubeconfig for names of pods and for endpoints that are not ready
    /// [default: KUBECONFIG, or the service account of the pod that this runs in].
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Address of the API server; overrides the kubeconfig's.
    #[arg(long, value_name = "ADDRESS")]
    pub master: Option<String>,
    /// Folder of manifests to look into instead.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["kubeconfig", "master"])]
    pub manifests: Option<PathBuf>,
}

/// Where names are looked up: the API server or a folder of manifests; None if neither can be
/// asked.
pub(crate) struct Names(Option<Directory>);

impl Names {
    pub(crate) fn new(args: &NameArgs) -> Self {
        if let Some(folder) = &args.manifests {
            return Self(Some(Directory::Folder(folder.clone())));
        }
        let kubeconfig = args.kubeconfig.clone();
        let of_environment = || env::var_os("KUBECONFIG").map(PathBuf::from);
        let master = args
            .master
            .clone()
            .or_else(|| in_cluster().filter(|_| kubeconfig.is_none()));
        let kubeconfig = kubeconfig.or_else(|| of_environment().filter(|_| master.is_none()));
        Self(Access::new(kubeconfig, master).ok().map(Directory::Server))
    }

    /// Returns the addresses of the pod with this name; an error if there is no such pod.
    pub(crate) fn pod(&self, namespace: &str, name: &str) -> Result<Vec<IpAddr>> {
        let Some(directory) = &self.0 else {
            bail!(
                "the maps do not name pods: give the pod's address instead, or name an API server with --kubeconfig or a folder with --manifests"
            );
        };
        let found = wait(directory.pod(namespace, name))?;
        if found.is_empty() {
            bail!("there is no pod {namespace}/{name} with an address");
        }
        Ok(found)
    }

    /// Returns whether there is an API server or folder to ask.
    pub(crate) fn can_be_asked(&self) -> bool {
        self.0.is_some()
    }

    /// Returns the namespace and name of the pod with each address. Omits addresses of several pods
    /// or of no pod. Empty if there is nowhere to look up names.
    pub(crate) fn pods_at(&self, addresses: &HashSet<IpAddr>) -> Result<HashMap<IpAddr, String>> {
        match &self.0 {
            Some(directory) => wait(directory.pods_at(addresses)),
            None => Ok(HashMap::new()),
        }
    }

    /// Returns what Kubernetes has of a service (NAMESPACE/NAME). None if there is nowhere to ask,
    /// and for a Gateway, which has no slices of its own.
    pub(crate) fn service(&self, service: &str) -> Result<Option<ServiceObjects>> {
        match (&self.0, service.split_once('/')) {
            (Some(directory), Some((namespace, name)))
                if !is_plan(&ObjectName::new(namespace, name)) =>
            {
                wait(directory.service(namespace, name)).map(Some)
            }
            _ => Ok(None),
        }
    }
}

/// Returns the API server's address from the environment of this process; None outside of a pod.
/// KUBE: the kubelet puts it into every pod's environment.
fn in_cluster() -> Option<String> {
    let host = env::var("KUBERNETES_SERVICE_HOST").ok()?;
    let port = env::var("KUBERNETES_SERVICE_PORT").unwrap_or_else(|_| "443".into());
    let host = match host.parse() {
        Ok(IpAddr::V6(v6)) => format!("[{v6}]"),
        _ => host,
    };
    Some(format!("https://{host}:{port}"))
}

fn wait<T>(asked: impl Future<Output = Result<T, SourceError>>) -> Result<T> {
    Ok(runtime()?.block_on(asked)?)
}
