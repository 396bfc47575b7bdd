// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whether modules use only what lies below them. Takes the sources and the order that `rules` gives, returns
//! complaints. Called by `lint`.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    File,
    direction::{module_of, resolve},
    source::{self, NamedPath},
};

/// The modules of a folder in layers.
pub(super) struct Layers {
    /// The folder, from the clone's top.
    pub(super) within: &'static str,
    /// One text per layer, the lowest first; the names of its modules, separated by spaces. Modules use lower layers
    /// only: neither their own nor higher ones. Modules that are not listed, and the folder's mod.rs, lib.rs and
    /// main.rs, are above all layers. An empty order checks nothing.
    pub(super) order: &'static [&'static str],
    /// Modules that every layer may use, and whose items it may name as the folder's own (re-exports).
    pub(super) open: &'static [&'static str],
}

/// One complaint per path that leads up or sideways, and per circle among the modules of a layer's folder.
pub(super) fn check(files: &[File], all: &[Layers]) -> Vec<String> {
    all.iter()
        .filter(|layers| !layers.order.is_empty())
        .flat_map(|layers| Folder::read(files, layers).check(files))
        .collect()
}

/// A folder with layers, and what its sources say about it.
struct Folder<'a> {
    layers: &'a Layers,
    /// The folder's own path from the crate's root.
    module: Vec<String>,
    /// The modules in it.
    modules: BTreeSet<String>,
    /// Items that the folder's own module re-exports, and the module of each.
    exports: BTreeMap<String, String>,
}

impl<'a> Folder<'a> {
    fn read(files: &[File], layers: &'a Layers) -> Self {
        let module = module_of(&format!("{}/mod.rs", layers.within));
        let mut folder = Self {
            layers,
            modules: BTreeSet::new(),
            exports: BTreeMap::new(),
            module,
        };
        let inner = |file: &File| folder.child(&module_of(&file.path));
        folder.modules = folder.files(files).filter_map(inner).collect();
        for file in folder.files(files) {
            let own = module_of(&file.path);
            if own.len() == folder.module.len() {
                let paths = source::paths(&file.text);
                let exports = paths.iter().filter_map(|path| folder.export(path, &own));
                let exports: Vec<_> = exports.collect();
                folder.exports.extend(exports);
            }
        }
        folder
    }

    fn files<'b>(&self, files: &'b [File]) -> impl Iterator<Item = &'b File> + use<'b, 'a> {
        let within = self.layers.within;
        files.iter().filter(move |file| {
            file.is_rust()
                && file
                    .path
                    .strip_prefix(within)
                    .is_some_and(|rest| rest.starts_with('/'))
        })
    }

    /// The module of this folder that a path leads into.
    fn child(&self, path: &[String]) -> Option<String> {
        path.strip_prefix(self.module.as_slice())?.first().cloned()
    }

    /// The item that a path in the folder's own module brings there from one of its modules.
    fn export(&self, path: &NamedPath, own: &[String]) -> Option<(String, String)> {
        let used = resolve(path, own);
        let inner = used.strip_prefix(self.module.as_slice()).unwrap_or(&used);
        let (module, item) = (inner.first()?, inner.last()?);
        (inner.len() > 1 && self.modules.contains(module)).then(|| (item.clone(), module.clone()))
    }

    fn layer(&self, module: &str) -> Option<usize> {
        let holds = |layer: &&str| layer.split(' ').any(|name| name == module);
        self.layers.order.iter().position(holds)
    }

    fn is_open(&self, module: &str) -> bool {
        self.layers.open.contains(&module)
    }

    fn check(&self, files: &[File]) -> Vec<String> {
        let mut found = Vec::new();
        for name in self.layers.order.iter().flat_map(|layer| layer.split(' ')) {
            if !self.modules.contains(name) {
                found.push(format!(
                    "xtask/src/lint/rules.rs: {} has no module `{name}`; correct the order",
                    self.layers.within
                ));
            }
            found.extend(self.circle(files, name));
        }
        for file in self.files(files) {
            let own = module_of(&file.path);
            let Some(module) = self.child(&own).filter(|module| !self.is_open(module)) else {
                continue;
            };
            let Some(layer) = self.layer(&module) else {
                continue;
            };
            for path in source::paths(&file.text) {
                if let Some(complaint) = self.complaint(&module, layer, &resolve(&path, &own)) {
                    let written = path.segments.join("::");
                    let place = format!("{}:{}", file.path, path.line);
                    found.push(format!("{place}: uses {written}, but {complaint}"));
                }
            }
        }
        found
    }

    /// Why a module of this layer may not use this path.
    fn complaint(&self, module: &str, layer: usize, used: &[String]) -> Option<String> {
        let within = self.layers.within;
        let inner = used.strip_prefix(self.module.as_slice())?;
        let Some(target) = inner.first().filter(|name| *name != "self") else {
            return Some(format!("{within} as a whole is above `{module}`"));
        };
        if target == module || self.is_open(target) {
            return None;
        }
        if self.modules.contains(target) {
            return match self.layer(target) {
                Some(other) if other < layer => None,
                Some(other) if other == layer => Some(format!(
                    "`{target}` and `{module}` are in one layer of {within}"
                )),
                _ => Some(format!("`{target}` is above `{module}` in {within}")),
            };
        }
        match self.exports.get(target) {
            Some(origin) if self.is_open(origin) => None,
            Some(origin) => Some(format!(
                "`{module}` must name the module that `{target}` comes from: {}::{origin}",
                self.module.join("::")
            )),
            None => Some(format!(
                "{within} itself defines `{target}`, above `{module}`"
            )),
        }
    }

    /// A circle among the modules in a layer's folder. Tests may use what they like.
    fn circle(&self, files: &[File], name: &str) -> Option<String> {
        let within = format!("{}/{name}", self.layers.within);
        let mut module = self.module.clone();
        module.push(name.to_owned());
        let child = |path: &[String]| path.strip_prefix(module.as_slice())?.first().cloned();
        let mut uses: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for file in self.files(files) {
            let own = module_of(&file.path);
            let Some(from) = child(&own).filter(|from| from != "tests") else {
                continue;
            };
            let paths = source::paths(&file.text);
            let targets = paths
                .iter()
                .filter(|path| !path.inside.iter().any(|module| module == "tests"))
                .filter_map(|path| child(&resolve(path, &own)))
                .filter(|to| *to != from);
            uses.entry(from.clone()).or_default().extend(targets);
        }
        let circle = first_circle(&uses)?;
        Some(format!("{within}: a circle: {}", circle.join(" -> ")))
    }
}

/// The first circle that a walk along the arrows finds, with its start at both ends.
fn first_circle(uses: &BTreeMap<String, BTreeSet<String>>) -> Option<Vec<String>> {
    let mut done = BTreeSet::new();
    uses.keys()
        .find_map(|start| walk(start, uses, &mut Vec::new(), &mut done))
}

fn walk(
    at: &str,
    uses: &BTreeMap<String, BTreeSet<String>>,
    way: &mut Vec<String>,
    done: &mut BTreeSet<String>,
) -> Option<Vec<String>> {
    if let Some(start) = way.iter().position(|module| module == at) {
        let mut circle = way[start..].to_vec();
        circle.push(at.to_owned());
        return Some(circle);
    }
    if !done.insert(at.to_owned()) {
        return None;
    }
    way.push(at.to_owned());
    let found = uses
        .get(at)
        .into_iter()
        .flatten()
        .find_map(|next| walk(next, uses, way, done));
    way.pop();
    found
}

#[cfg(test)]
#[path = "layers_tests.rs"]
mod tests;
