// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Replaces old generations of maps by a new one that has another layout (upgrade and downgrade) or
//! other sizes. In: a pin directory and the wanted shapes of maps. Out: flows, sockets and affinity
//! in the new maps; the old maps are removed. Called by `Datapath`.
//!
//! The old programs go on with their maps while the new maps are filled. Then the new programs are
//! attached behind the old ones, so that they see the packets that the old ones pass on. Then the
//! old programs are *drained*: they translate known connections, begin none and refuse none. From
//! that moment the new programs handle everything new. The contents of the old maps are copied, the
//! old programs are detached, and what they have changed in the meantime is copied last. If the
//! agent ends in between, the next one starts again with the same maps: each step may be repeated.
//!
//! For maps of another layout, the kernel knows which fields their elements have: see
//! `translation`.

mod counted;
mod flows;
mod references;
mod sockets;
mod translation;

use std::{
    collections::{HashMap, HashSet},
    fs, io,
    os::fd::AsFd,
    path::{Path, PathBuf},
};

use linux::{get_pinned, link_info};
use proxy_common::{
    V4, V6,
    maps::{self, generation},
};

use self::references::References;
use super::{
    error::DatapathError,
    maps::{
        Shape, capacities_in, find_difference,
        pins::{GROWN, Generation, generations, links_of},
        tables::Table,
    },
    options::Capacities,
    programs::{detach_filters_of, is_xdp_pin},
};

/// How many entries were copied from old maps to new ones.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Carried {
    /// Entries of the flow tables; a flow has two or three.
    pub flows: usize,
    /// Entries of the socket maps.
    pub sockets: usize,
    /// Entries that did not fit, because the new tables are smaller than what the old ones contain.
    pub lost: usize,
}

/// The old generations of maps that the new one in `home` replaces.
#[derive(Debug)]
pub(super) struct Succession {
    pin_dir: PathBuf,
    home: PathBuf,
    /// The old generations, in the order in which their programs see a packet.
    old: Vec<Generation>,
    /// True if the counters of the old maps must still be added to the new ones. False from the
    /// start if the new maps are not newly created.
    counts: bool,
    /// For each old generation, by its directory: which ids in the new maps its ids correspond to.
    /// Read when first needed. Later changes in the new maps do not matter: a removed backend gets
    /// another generation, and the old maps do not know new backends.
    references: HashMap<PathBuf, References>,
    /// How many entries were copied so far; `None` before the first copy. After the first copy,
    /// programs with the new maps may be attached.
    carried: Option<Carried>,
}

/// Chooses the first generation that has this program's layout and these shapes and is not drained
/// (it may be drained if `adopt_drained` is true), or else a new one. The second value has all
/// other generations, which will be replaced; `None` if there are none.
pub(super) fn choose(
    pin_dir: &Path,
    shapes: &[Shape],
    adopt_drained: bool,
) -> Result<(Generation, Option<Succession>), DatapathError> {
    let mut old = generations(pin_dir).map_err(|source| DatapathError::File {
        attempt: "read",
        path: pin_dir.into(),
        source,
    })?;
    let mut chosen = None;
    for (position, generation) in old.iter().enumerate() {
        let dir = generation.dir(pin_dir);
        let may_serve = adopt_drained || !is_drained(&dir);
        if generation.is_known() && may_serve && find_difference(&dir, shapes)?.is_none() {
            chosen = Some(position);
            break;
        }
    }
    let (generation, is_new) = match chosen {
        Some(position) => (old.remove(position), false),
        None => {
            let number = old.last().map_or(0, |last| last.number + 1);
            let layout = maps::LAYOUT_VERSION;
            (Generation { number, layout }, true)
        }
    };
    let succession = (!old.is_empty()).then(|| Succession {
        pin_dir: pin_dir.into(),
        home: generation.dir(pin_dir),
        old,
        counts: is_new,
        references: HashMap::new(),
        carried: None,
    });
    Ok((generation, succession))
}

/// Returns the capacities of maps that have grown while an agent ran, so that the next agent does
/// not shrink them. `None` if there are no such maps.
pub(super) fn grown_capacities(pin_dir: &Path) -> Option<Capacities> {
    let all = generations(pin_dir).ok()?.into_iter();
    let grown = all
        .map(|generation| generation.dir(pin_dir))
        .filter(|home| fs::symlink_metadata(home.join(GROWN)).is_ok());
    grown
        .filter_map(|home| capacities_in(&home).ok()?)
        .reduce(Capacities::at_least)
}

fn is_drained(dir: &Path) -> bool {
    let map = get_pinned(&dir.join(maps::DRAINED), false).and_then(Table::<u32, u32>::new);
    map.and_then(|map| map.lookup(&0))
        .is_ok_and(|word| word.is_some_and(|word| word & generation::DRAINED != 0))
}

/// Tells the programs that use the maps in `dir` what to do in a succession. `word` has bits of
/// [`generation`]; 0 means to work as usual.
pub(super) fn tell(dir: &Path, word: u32) -> Result<(), DatapathError> {
    let map = match get_pinned(&dir.join(maps::DRAINED), false) {
        // This layout is older than the map `DRAINED`: its programs work as usual until they are
        // detached.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        map => map.and_then(Table::<u32, u32>::new),
    };
    map.and_then(|map| map.update(&0, &word))
        .map_err(DatapathError::of_map("set", maps::DRAINED))
}

impl Succession {
    /// True if the contents of the old maps have been copied at least once.
    pub(super) fn is_carried(&self) -> bool {
        self.carried.is_some()
    }
    /// Returns the names of the old generations, separated by commas.
    pub(super) fn names(&self) -> String {
        let names = self.homes().filter_map(|home| {
            let name = home.file_name()?;
            Some(name.to_string_lossy().into_owned())
        });
        names.collect::<Vec<_>>().join(", ")
    }
    /// Returns the directories of the old generations.
    pub(super) fn homes(&self) -> impl Iterator<Item = PathBuf> {
        self.old
            .iter()
            .map(|generation| generation.dir(&self.pin_dir))
    }
    /// Returns the link behind which a new program must be attached: that of the last old program
    /// at the same hook. `pin` is the name of the link's pin. `None` if there is no such link.
    pub(super) fn link_before(&self, pin: &str) -> Option<std::os::fd::OwnedFd> {
        let homes: Vec<_> = self.homes().collect();
        let mut links = homes.iter().rev().map(|home| links_of(home).join(pin));
        links.find_map(|path| get_pinned(&path, false).ok())
    }
    /// Returns the ids of the old programs that are attached by links.
    pub(super) fn program_ids(&self) -> HashSet<u32> {
        let links = self.homes().flat_map(|home| pins(&links_of(&home)));
        links
            .filter_map(|path| get_pinned(&path, false).ok())
            .filter_map(|link| link_info(link).ok())
            .map(|info| info.program)
            .collect()
    }

    /// Copies everything that the new maps lack from the old ones. The new maps must contain the
    /// services already. Returns how many entries were copied so far, over all calls.
    pub(super) fn carry(&mut self) -> Result<Carried, DatapathError> {
        tell(&self.home, generation::BEHIND)?;
        let mut carried = self.carried.unwrap_or_default();
        // Entries that do not fit are tried again each time.
        let mut lost = 0;
        for home in self.homes().collect::<Vec<_>>() {
            if !self.references.contains_key(&home) {
                let references = References::read(&home, &self.home)?;
                self.references.insert(home.clone(), references);
            }
            if let Some(references) = self.references.get(&home) {
                lost += self.carry_from(&home, references, &mut carried)?;
            }
        }
        carried.lost = carried.lost.max(lost);
        self.counts = false;
        self.carried = Some(carried);
        Ok(carried)
    }
    /// Like [`Self::carry`], for one old generation, whose directory is `source`. Returns how many
    /// entries did not fit.
    fn carry_from(
        &self,
        source: &Path,
        references: &References,
        carried: &mut Carried,
    ) -> Result<usize, DatapathError> {
        let target = &self.home;
        let References { services, v4, v6 } = references;
        if self.counts {
            carry_counters(source, target)?;
            counted::carry(source, target, references)?;
        }
        // The hints must come before the flows that need them.
        flows::carry_hints(source, target)?;
        let flows = [
            flows::carry::<V4>(source, target, services, v4)?,
            flows::carry::<V6>(source, target, services, v6)?,
        ];
        let sockets = [
            sockets::carry::<V4>(source, target, services, v4)?,
            sockets::carry::<V6>(source, target, services, v6)?,
        ];
        sockets::carry_affinity::<V4>(source, target, services, v4)?;
        sockets::carry_affinity::<V6>(source, target, services, v6)?;
        sockets::carry_pods(source, target, services, [v4, v6])?;
        carried.flows += flows.iter().map(|(new, _)| new).sum::<usize>();
        carried.sockets += sockets.iter().map(|(new, _)| new).sum::<usize>();
        Ok(flows.iter().chain(&sockets).map(|(_, lost)| lost).sum())
    }

    /// Makes the old programs begin no more flows, so that the new ones handle all new connections.
    pub(super) fn drain(&self) -> Result<(), DatapathError> {
        self.homes()
            .try_for_each(|home| tell(&home, generation::DRAINED))
    }

    /// Detaches the old tc programs and socket hooks. XDP programs stay attached, because some
    /// devices reset when theirs is removed.
    pub(super) fn detach(&self) -> Result<(), DatapathError> {
        for (home, generation) in self.homes().zip(&self.old) {
            for path in pins(&links_of(&home)) {
                if is_xdp_pin(&path) {
                    continue;
                }
                if let Ok(link) = get_pinned(&path, false) {
                    // The link's interface or cgroup may be gone.
                    let _ = linux::detach(link.as_fd());
                }
            }
            detach_filters_of(generation.number);
        }
        Ok(())
    }

    /// Removes the pins of the old generations, whose programs must be detached. Moves the marks of
    /// qdiscs that we created to the new generation.
    pub(super) fn remove(self) -> Result<(), DatapathError> {
        tell(&self.home, 0)?;
        for home in self.homes() {
            let links = links_of(&home);
            let removed = pins(&links).into_iter().try_for_each(|path| {
                match (path.file_name(), fs::symlink_metadata(&path)) {
                    (Some(name), Ok(metadata)) if metadata.is_symlink() => {
                        fs::rename(&path, links_of(&self.home).join(name))
                    }
                    _ => fs::remove_file(&path),
                }
            });
            let removed = removed
                .and_then(|()| if_there(fs::remove_dir(&links)))
                .and_then(|()| pins(&home).into_iter().try_for_each(fs::remove_file))
                .and_then(|()| if_there(fs::remove_dir(&home)));
            removed.map_err(|source| DatapathError::File {
                attempt: "remove",
                path: home,
                source,
            })?;
        }
        Ok(())
    }
}

/// Returns the paths in a directory; none if the directory is missing.
fn pins(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten();
    entries.flatten().map(|entry| entry.path()).collect()
}

fn if_there(removed: io::Result<()>) -> io::Result<()> {
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Adds the values of the old counters to the new ones. What the old programs count afterwards is
/// lost.
fn carry_counters(source: &Path, target: &Path) -> Result<(), DatapathError> {
    let failed = DatapathError::of_map("carry over", maps::COUNTERS);
    let old = match get_pinned(&source.join(maps::COUNTERS), false) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        old => old.and_then(linux::per_cpu_sums).map_err(failed)?,
    };
    get_pinned(&target.join(maps::COUNTERS), false)
        .and_then(|new| linux::per_cpu_add(new, &old))
        .map_err(failed)
}
