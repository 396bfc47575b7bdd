// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Looks up the names of pods for the addresses that lists show, and the addresses of a named pod.
//! The names come from an API server or a folder of manifests, if one is given. Called by
//! `backends`, `flows`, `affinity` and `trace`.

use std::{
    collections::{HashMap, HashSet},
    fmt::{self, Display, Formatter},
    net::IpAddr,
    str::FromStr,
};

use anyhow::{Result, bail};
use control::causes::chain;

use super::{
    args::Show,
    cell::Name,
    format::Format,
    frame::BadInput,
    names::{NameArgs, Names},
};

/// A client or an endpoint as a user writes it: an address, pod/NAMESPACE/NAME, or pod/NAME where
/// a namespace is given.
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
        let pod = text
            .strip_prefix("pod/")
            .map(|pod| match pod.split_once('/') {
                Some((namespace, name)) => (Some(namespace.to_owned()), name.to_owned()),
                None => (None, pod.to_owned()),
            });
        // Programs that serve both IP families log clients as ::ffff:10.0.0.7.
        let address = text.parse().map(|address: IpAddr| address.to_canonical());
        let is_name = |name: &str| !name.is_empty() && !name.contains('/');
        match (&pod, address) {
            (None, Err(_)) => Err("use an IP address, or pod/NAMESPACE/NAME".to_owned()),
            (Some((namespace, name)), _)
                if !is_name(name) || namespace.as_deref().is_some_and(|one| !is_name(one)) =>
            {
                Err("write a pod as pod/NAMESPACE/NAME".to_owned())
            }
            (_, address) => Ok(Self {
                text: text.to_owned(),
                pod,
                addresses: address.into_iter().collect(),
            }),
        }
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

/// The names of pods that were looked up so far.
#[derive(Default)]
pub(super) struct PodNames {
    /// Where to look up names; None if no names are needed, or after an error.
    names: Option<Names>,
    /// The pod of each address that was looked up; the value is None for an address of no pod.
    known: HashMap<IpAddr, Option<Name>>,
}

impl PodNames {
    /// Begins without names. They are looked up later.
    pub(super) fn of(args: &NameArgs) -> Self {
        Self {
            names: Some(Names::new(args)).filter(Names::can_be_asked),
            known: HashMap::new(),
        }
    }
    /// As [`Self::of`]; names are looked up only if the output that `show` asks for contains them.
    pub(super) fn new(show: &Show, args: &NameArgs) -> Self {
        match is_shown(show) {
            true => Self::of(args),
            false => Self::default(),
        }
    }

    /// Looks up the pods with these addresses, except for addresses that were looked up before. The
    /// first error is printed, and ends all looking up.
    pub(super) fn learn(&mut self, addresses: impl Iterator<Item = IpAddr>) {
        let Some(names) = &self.names else { return };
        let new: HashSet<_> = addresses
            .filter(|address| !self.known.contains_key(address))
            .collect();
        if new.is_empty() {
            return;
        }
        match names.pods_at(&new) {
            Ok(mut found) => {
                let named = new.into_iter().map(|address| {
                    let name = found.remove(&address).map(Name::new);
                    (address, name)
                });
                self.known.extend(named);
            }
            Err(error) => {
                eprintln!("portolan: pods are not named: {}", chain(error.as_ref()));
                self.names = None;
            }
        }
    }

    /// Returns the namespace and name of the pod with this address; None if no pod has it, or if it
    /// was not looked up.
    pub(super) fn at(&self, address: IpAddr) -> Option<Name> {
        self.known.get(&address)?.clone()
    }
}

/// Returns whether the output contains names of pods. A plain table has none, but may be sorted by
/// them.
fn is_shown(show: &Show) -> bool {
    let sorts = show.sort_by.as_ref();
    let by_pod = sorts.is_some_and(|by| by.to_ascii_lowercase().ends_with("pod"));
    let has_them = !matches!(show.look.output, Format::Table | Format::Name);
    !show.count && (has_them || by_pod)
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::*;

    fn names(folder: &Path, output: Format) -> PodNames {
        let mut show: Show = crate::args::tests::parsed("");
        show.look.output = output;
        let args = NameArgs {
            manifests: Some(folder.into()),
            ..NameArgs::default()
        };
        PodNames::new(&show, &args)
    }

    #[test]
    fn pod_names_are_looked_up_only_for_outputs_that_show_them() {
        let folder = tempfile::tempdir().expect("a folder");
        let endpoints = (1..=20).map(|n| {
            format!("- {{addresses: [10.40.1.{n}], targetRef: {{kind: Pod, name: cart-{n}}}}}\n")
        });
        let slice = format!(
            "kind: EndpointSlice\napiVersion: discovery.k8s.io/v1\nmetadata: {{name: cart-1, namespace: shop}}\naddressType: IPv4\nendpoints:\n{}",
            endpoints.collect::<String>()
        );
        fs::write(folder.path().join("cart.yaml"), slice).expect("a file");
        let address = |last: u8| IpAddr::from([10, 40, 1, last]);
        for (few, output) in [(3, Format::Wide), (20, Format::Json)] {
            let mut names = names(folder.path(), output);
            names.learn((1..=few).chain([99]).map(address));
            let named = |last| names.at(address(last)).map(|name| name.to_string());
            assert_eq!(named(2).as_deref(), Some("shop/cart-2"));
            assert_eq!(named(99), None);
        }
        let mut silent = names(folder.path(), Format::Table);
        silent.learn([address(1)].into_iter());
        assert_eq!(
            silent.at(address(1)),
            None,
            "a plain table has no such column"
        );
    }
}
