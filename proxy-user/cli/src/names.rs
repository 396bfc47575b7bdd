// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Looks up the names of pods, the addresses of a named pod, and the endpoints that Kubernetes
//! lists, which may be more than the maps have: in the API server, or in a folder of manifests.

use std::{
    collections::{HashMap, HashSet},
    env,
    fmt::{self, Display, Formatter},
    net::IpAddr,
    path::PathBuf,
    str::FromStr,
};

use anyhow::{Result, bail};
use control::{causes::chain, gateway::names::is_plan, object::ObjectName};
use source::{SourceError, api_server::Access, named::Directory, service::ServiceObjects};

use super::{
    args::{ListArgs, Show},
    cell::Name,
    format::Format,
    frame::{BadInput, runtime},
};

/// Where objects are asked for.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct NameArgs {
    /// Ask the API server of this kubeconfig for names of pods and for endpoints that are not ready
    /// [default: KUBECONFIG, or the service account of the pod that this runs in].
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Addresses of the API servers, with commas between them; override the kubeconfig's.
    #[arg(long, value_name = "ADDRESS", value_delimiter = ',')]
    pub master: Vec<String>,
    /// Folder of manifests to look into instead.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["kubeconfig", "master"])]
    pub manifests: Option<PathBuf>,
}

/// Arguments of a list whose rows have names of pods.
#[derive(clap::Args, Clone, Debug)]
pub struct NamedListArgs {
    #[command(flatten)]
    pub list: ListArgs,
    #[command(flatten)]
    pub names: NameArgs,
}

/// A client or an endpoint: an address, pod/NAMESPACE/NAME, or pod/NAME beside a namespace.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EndArg {
    text: String,
    /// The pod's namespace, if it is given, and name; None for an address.
    pod: Option<(Option<String>, String)>,
    /// The address, or those of the pod once it was looked up.
    addresses: Vec<IpAddr>,
}

impl Display for EndArg {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FromStr for EndArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // Programs that serve both IP families log clients as ::ffff:10.0.0.7.
        let address = text.parse().map(|address: IpAddr| address.to_canonical());
        let words = text.strip_prefix("pod/").map(|pod| pod.split('/'));
        let words = words.map(|words| words.map(str::to_owned).collect::<Vec<_>>());
        let pod = match words.as_deref() {
            None if address.is_err() => {
                return Err("use an IP address, or pod/NAMESPACE/NAME".to_owned());
            }
            None => None,
            Some([name]) if !name.is_empty() => Some((None, name.clone())),
            Some([namespace, name]) if !namespace.is_empty() && !name.is_empty() => {
                Some((Some(namespace.clone()), name.clone()))
            }
            Some(_) => return Err("write a pod as pod/NAMESPACE/NAME".to_owned()),
        };
        Ok(Self {
            text: text.to_owned(),
            pod,
            addresses: address.into_iter().collect(),
        })
    }
}

impl EndArg {
    /// Looks up the addresses of a pod. `namespace`: of a pod that is written without one.
    pub(super) fn look_up(&mut self, namespace: Option<&str>, names: &NameArgs) -> Result<()> {
        if self.pod.is_some() {
            let Some((namespace, name)) = self.pod(namespace) else {
                let advice = "write a pod as pod/NAMESPACE/NAME, or give its --namespace";
                bail!(BadInput(format!("{self}: {advice}")));
            };
            self.addresses = Names::new(names).pod(&namespace, &name)?;
        }
        Ok(())
    }
    /// Returns the namespace and name of a pod; None for an address, or without a namespace.
    pub(super) fn pod(&self, namespace: Option<&str>) -> Option<(String, String)> {
        let (own, name) = self.pod.as_ref()?;
        let namespace = own.as_deref().or(namespace)?;
        Some((namespace.to_owned(), name.clone()))
    }

    pub(super) fn has(&self, address: IpAddr) -> bool {
        self.addresses.contains(&address)
    }
    pub(super) fn addresses(&self) -> &[IpAddr] {
        &self.addresses
    }
}

/// Where names are looked up, and the names of pods that were looked up so far.
#[derive(Default)]
pub(super) struct Names {
    /// None if neither can be asked or no names are needed, or after an error.
    directory: Option<Directory>,
    /// The pod of each address that was looked up; the value is None for an address of no pod.
    known: HashMap<IpAddr, Option<Name>>,
}

impl Names {
    pub(super) fn new(args: &NameArgs) -> Self {
        let server = || {
            let kubeconfig = args.kubeconfig.clone();
            let mut masters = args.master.clone();
            if masters.is_empty() && kubeconfig.is_none() {
                masters.extend(in_cluster());
            }
            let of_environment = || env::var_os("KUBECONFIG").map(PathBuf::from);
            let kubeconfig = kubeconfig.or_else(|| of_environment().filter(|_| masters.is_empty()));
            Access::new(kubeconfig, masters).ok().map(Directory::Server)
        };
        let folder = args.manifests.clone().map(Directory::Folder);
        Self {
            directory: folder.or_else(server),
            ..Self::default()
        }
    }
    /// As [`Self::new`]; names are looked up only if the output that `show` asks for contains them.
    pub(super) fn of_list(show: &Show, args: &NameArgs) -> Self {
        match is_shown(show) {
            true => Self::new(args),
            false => Self::default(),
        }
    }

    /// Returns the addresses of the pod with this name; an error if there is no such pod.
    pub(super) fn pod(&self, namespace: &str, name: &str) -> Result<Vec<IpAddr>> {
        let Some(directory) = &self.directory else {
            bail!(
                "the maps do not name pods: give the pod's address instead, or name an API server with --kubeconfig or a folder with --manifests"
            );
        };
        let found = wait(directory.pod(namespace, name))?;
        if found.is_empty() {
            bail!(
                "no EndpointSlice names the pod {namespace}/{name}: give its address instead, as `kubectl portolan` does"
            );
        }
        Ok(found)
    }

    /// Looks up the pods with these addresses. The first error is printed, and ends all looking up.
    pub(super) fn learn(&mut self, addresses: impl Iterator<Item = IpAddr>) {
        let Some(directory) = &self.directory else {
            return;
        };
        let new = addresses.filter(|address| !self.known.contains_key(address));
        let new: HashSet<_> = new.collect();
        if new.is_empty() {
            return;
        }
        match wait(directory.pods_at(&new)) {
            Ok(mut found) => {
                let mut name = |address| found.remove(&address).map(Name::new);
                let named = new.into_iter().map(|address| (address, name(address)));
                self.known.extend(named);
            }
            Err(error) => {
                eprintln!("portolan: pods are not named: {}", chain(error.as_ref()));
                self.directory = None;
            }
        }
    }

    /// Returns the pod that was looked up for this address; None if none has it, or several have.
    pub(super) fn at(&self, address: IpAddr) -> Option<Name> {
        self.known.get(&address)?.clone()
    }

    /// Returns what Kubernetes has of a service (NAMESPACE/NAME). None if there is nowhere to ask,
    /// and for a Gateway, which has no slices of its own.
    pub(super) fn service(&self, service: &str) -> Result<Option<ServiceObjects>> {
        match (&self.directory, service.split_once('/')) {
            (Some(directory), Some((namespace, name)))
                if !is_plan(&ObjectName::new(namespace, name)) =>
            {
                wait(directory.service(namespace, name)).map(Some)
            }
            _ => Ok(None),
        }
    }
}

/// Returns whether the output has names of pods. A plain table may only be sorted by them.
fn is_shown(show: &Show) -> bool {
    let sorts = show.sort_by.as_ref();
    let by_pod = sorts.is_some_and(|by| by.to_ascii_lowercase().ends_with("pod"));
    let has_them = !matches!(show.look.output, Format::Table | Format::Name);
    !show.count && (has_them || by_pod)
}

/// Returns the API server's address from the environment of this process; None outside of a pod.
/// KUBE: the kubelet puts it into every pod's environment.
pub(super) fn in_cluster() -> Option<String> {
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a folder with a slice of one pod, shop/cart-2, and the arguments that name it.
    fn folder() -> (tempfile::TempDir, NameArgs) {
        let folder = tempfile::tempdir().expect("a folder");
        let slice = "kind: EndpointSlice\napiVersion: discovery.k8s.io/v1\nmetadata: {name: cart-1, namespace: shop}\n\
                     addressType: IPv4\nendpoints: [{addresses: [10.40.1.2], targetRef: {kind: Pod, name: cart-2}}]\n";
        std::fs::write(folder.path().join("cart.yaml"), slice).expect("a file");
        let args = NameArgs {
            manifests: Some(folder.path().into()),
            ..NameArgs::default()
        };
        (folder, args)
    }

    #[test]
    fn pod_names_are_looked_up_only_for_outputs_that_show_them() {
        let (_folder, args) = folder();
        let [pod, other] = [2, 99].map(|last| IpAddr::from([10, 40, 1, last]));
        for (flags, named) in [
            ("-o wide", Some("shop/cart-2")),
            ("-o json", Some("shop/cart-2")),
            ("--sort-by client-pod", Some("shop/cart-2")),
            ("", None),
            ("-o json --count", None),
        ] {
            let mut names = Names::of_list(&crate::args::tests::parsed(flags), &args);
            names.learn([pod, other].into_iter());
            let name = names.at(pod).map(|name| name.to_string());
            assert_eq!((name.as_deref(), names.at(other)), (named, None), "{flags}");
        }
    }

    #[test]
    fn a_pod_is_known_by_its_addresses() {
        let (_folder, args) = folder();
        let found = |pod: &str, namespace| {
            let mut end: EndArg = pod.parse().expect("a pod");
            end.look_up(namespace, &args).map(|()| end.addresses)
        };
        for (pod, namespace) in [("pod/shop/cart-2", None), ("pod/cart-2", Some("shop"))] {
            let found = found(pod, namespace).expect("it is there");
            assert_eq!(found, [IpAddr::from([10, 40, 1, 2])]);
        }
        let said = found("pod/cart-2", None).expect_err("no namespace");
        assert!(said.to_string().contains("pod/NAMESPACE/NAME"), "{said}");
    }
}
