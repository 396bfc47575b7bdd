// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `portolan check --drift`: compares the maps in use with the cluster's objects. To do so, it
//! compares the rows of the maps in use with those of trial maps that were filled from the objects.
//! Returns a finding for each service that differs.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use datapath::{DatapathError, read::Reader};

use super::finding::Finding;

/// How many services that differ are reported one by one.
const NAMED: usize = 8;

/// What a set of maps serves. Key: the service; value: a line for each frontend and endpoint. Ids
/// are left out, because they differ between sets of maps.
type Served = BTreeMap<String, BTreeSet<String>>;

/// Compares the maps in two directories of pins, and returns the differences. `served`: the maps in
/// use; `wanted`: those filled from the objects.
pub(super) fn findings(served: &Path, wanted: &Path) -> Result<Vec<Finding>, DatapathError> {
    Ok(compare(&read(served)?, &read(wanted)?))
}

fn read(pin_dir: &Path) -> Result<Served, DatapathError> {
    let reader = Reader::open(pin_dir)?;
    let mut served = Served::new();
    for one in reader.frontends()? {
        let address = one
            .address
            .map_or("node port".to_owned(), |ip| ip.to_string());
        let line = format!(
            "{} {address} {}/{} of {} ({} endpoints for pods, {} for others{}{})",
            one.kind,
            one.port,
            one.protocol,
            one.ip_family,
            one.internal_endpoints,
            one.external_endpoints,
            if one.policies.is_empty() { "" } else { "; " },
            one.policies.join(", ")
        );
        served.entry(one.service).or_default().insert(line);
    }
    for one in reader.backends()? {
        let port = match one.port_name.as_str() {
            "" => one.service_port.to_string(),
            name => name.to_owned(),
        };
        let sets = one.sets.join(", ");
        let line = format!(
            "endpoint {} of the port {port} (in the sets: {sets})",
            one.address
        );
        served.entry(one.service).or_default().insert(line);
    }
    Ok(served)
}

fn compare(served: &Served, wanted: &Served) -> Vec<Finding> {
    const REMEDY: &str =
        "an agent that works applies changes within milliseconds: see docs/runbooks.md#sync-late";
    let names: BTreeSet<_> = served.keys().chain(wanted.keys()).collect();
    let nothing = BTreeSet::new();
    let of = |all: &'_ Served, name: &String| all.get(name).unwrap_or(&nothing).clone();
    let mut found = Vec::new();
    let mut more = 0;
    for name in names {
        let (served, wanted) = (of(served, name), of(wanted, name));
        if served == wanted {
            continue;
        }
        if found.len() == NAMED {
            more += 1;
            continue;
        }
        let missing = differing(&wanted, &served, "not served");
        let surplus = differing(&served, &wanted, "served, and not asked for");
        let said: Vec<_> = missing.into_iter().chain(surplus).collect();
        found.push(Finding::differs(
            format!("Service {name}"),
            said.join("; "),
            REMEDY,
        ));
    }
    if more > 0 {
        let said = format!("{more} more differ from the objects");
        found.push(Finding::differs("services", said, ""));
    }
    if found.is_empty() {
        let said = format!("{} are served as the objects say", wanted.len());
        found.push(Finding::note("services", said));
    }
    found
}

/// Returns, after `word`, the first line that only `of` has, and how many more there are; `None` if
/// `of` has no such line.
fn differing(of: &BTreeSet<String>, other: &BTreeSet<String>, word: &str) -> Option<String> {
    let mut lines = of.difference(other);
    let first = lines.next()?;
    Some(match lines.count() {
        0 => format!("{word}: {first}"),
        more => format!("{word}: {first} and {more} more"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::finding::Level;

    fn served(of: &[(&str, &[&str])]) -> Served {
        let line = |line: &&str| (*line).to_owned();
        let one = |(name, lines): &(&str, &[&str])| {
            ((*name).to_owned(), lines.iter().map(line).collect())
        };
        of.iter().map(one).collect()
    }

    #[test]
    fn maps_that_agree_with_the_api_objects_give_only_a_note() {
        let all = served(&[("shop/cart", &["a", "b"]), ("shop/search", &["c"])]);
        let found = compare(&all, &all);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].level, Level::Note);
        assert_eq!(found[0].found, "2 are served as the objects say");
    }

    #[test]
    fn each_service_whose_maps_differ_is_named_with_the_difference() {
        let wanted = served(&[("shop/cart", &["a", "b", "c"]), ("shop/new", &["d"])]);
        let served = served(&[("shop/cart", &["a", "x"]), ("shop/old", &["e"])]);
        let said: Vec<_> = compare(&served, &wanted)
            .into_iter()
            .map(|one| format!("{}: {}", one.about, one.found))
            .collect();
        assert_eq!(
            said,
            [
                "Service shop/cart: not served: b and 1 more; served, and not asked for: x",
                "Service shop/new: not served: d",
                "Service shop/old: served, and not asked for: e",
            ]
        );
    }

    #[test]
    fn only_the_first_services_that_differ_are_named() {
        let names: Vec<_> = (0..NAMED + 3).map(|at| format!("shop/{at}")).collect();
        let wanted = names
            .iter()
            .map(|name| (name.clone(), ["a".to_owned()].into()));
        let found = compare(&Served::new(), &wanted.collect());
        assert_eq!(found.len(), NAMED + 1);
        assert_eq!(found[NAMED].found, "3 more differ from the objects");
    }
}
