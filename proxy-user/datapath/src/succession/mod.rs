// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Replaces old generations of maps by a new one that has another layout (upgrade and downgrade) or
//! other sizes. In: a pin directory and the wanted shapes of maps. Out: flows, sockets and affinity
//! in the new maps; the old maps are removed. Called by `Datapath`.
//!
//! The old programs go on with their maps while the new maps are filled. Then the new programs are
//! attached behind the old ones, so that they see the packets that the old ones pass on. Then the
//! old programs are *drained*: they translate known connections, begin none and refuse none. From
//! that moment the new programs handle everything new. The contents of the old maps are copied;
//! then each flow is removed from the old maps, so that the new programs handle it at all hooks at
//! once. The old programs are detached, and what their socket hooks have changed meanwhile is
//! copied last. If the agent ends in between, the next one starts again: each step may be repeated.
//!
//! To attach or detach at an interface waits for grace periods of the kernel. So both are done in
//! turns, and the caller does other work in between.
//!
//! Each generation says which fields the elements of its maps have: see `translation`.

mod copying;
mod flows;
mod hints;
mod references;
mod sockets;
mod translation;

use std::{
    collections::HashSet,
    fs, io,
    os::fd::AsFd,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use linux::get_pinned;
use proxy_common::maps::{self, generation};

pub use self::copying::Carried;
use self::copying::Copying;
pub(super) use self::translation::{TYPES, create as create_types};
use super::{
    Datapath,
    error::DatapathError,
    maps::{
        Shape, capacities_in, have_shapes, open_table,
        pins::{GROWN, Generation, files, generations, if_there, links_of},
    },
    options::Capacities,
    programs::{detach_filters_of, is_xdp_pin, linked_programs},
};

/// What a succession sets in the word that [`generation`] explains; the rest is a time.
const BITS: u32 = generation::DRAINED | generation::BEHIND;

/// The old generations of maps that the new one in `home` replaces.
#[derive(Debug)]
pub(super) struct Succession {
    pin_dir: PathBuf,
    home: PathBuf,
    /// The old generations, in the order in which their programs see a packet.
    old: Vec<Generation>,
    /// How many of them have programs in front of those in `home`; the others' are behind.
    in_front: usize,
    stage: Stage,
    copying: Copying,
    /// True if the contents of the old maps have been copied at least once. Then programs with the
    /// new maps may be attached.
    is_carried: bool,
}

/// What the old programs do.
#[derive(Debug)]
enum Stage {
    Serving,
    /// They begin no more flows.
    Drained,
    /// Their flows are being taken from them.
    Taken,
    /// They are being detached; these are the pins of the links that are left.
    Detaching(Vec<PathBuf>),
    Detached,
}

/// Chooses the first generation that has this program's layout and these shapes and is not drained
/// (it may be drained if `adopt_drained` is true), or else a new one. The second value has all
/// other generations, which will be replaced; `None` if there are none.
pub(super) fn choose(
    pin_dir: &Path,
    shapes: &[Shape],
    adopt_drained: bool,
) -> Result<(Generation, Option<Succession>), DatapathError> {
    let mut old = generations(pin_dir).map_err(DatapathError::of_file("read", pin_dir))?;
    let mut chosen = None;
    for (position, generation) in old.iter().enumerate() {
        let dir = generation.dir(pin_dir);
        let may_serve = adopt_drained || !is_drained(&dir);
        if generation.is_known() && may_serve && have_shapes(&dir, shapes)? {
            chosen = Some(position);
            break;
        }
    }
    let in_front = chosen.unwrap_or(old.len());
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
        in_front,
        stage: Stage::Serving,
        copying: Copying::new(is_new, in_front),
        is_carried: false,
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
    word(dir) & generation::DRAINED != 0
}

/// Returns what [`tell`] has told the programs that use the maps in `dir`.
fn word(dir: &Path) -> u32 {
    let map = open_table::<u32, u32>(dir, maps::DRAINED);
    let word = map.and_then(|map| map.lookup(&0));
    word.ok().flatten().unwrap_or_default()
}

/// Returns the part of [`word`] that is the time until when the programs serve without an agent; 0
/// if there is none.
fn time(dir: &Path) -> u32 {
    word(dir) & !BITS
}

/// Tells the programs that use the maps in `dir` what to do in a succession. `word` has bits of
/// [`generation`], and a time; 0 means to work as usual.
fn tell(dir: &Path, word: u32) -> Result<(), DatapathError> {
    match open_table(dir, maps::DRAINED) {
        // This layout is older than the map `DRAINED`: its programs work as usual until they are
        // detached.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        map => map.and_then(|map| map.update(&0_u32, &word)),
    }
    .map_err(DatapathError::of_map("set", maps::DRAINED))
}

impl Succession {
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
        linked_programs(self.homes().flat_map(|home| files(&links_of(&home))))
    }

    /// Has the old programs that have a time serve until `until`, in nanoseconds of the monotonic
    /// clock; without one, for ever. Those that have given way to others do not begin again.
    pub(super) fn serve_until(&self, until: Option<u64>) -> Result<(), DatapathError> {
        self.homes().try_for_each(|home| match word(&home) {
            word if word & !BITS == 0 || generation::is_abandoned(word, linux::now) => Ok(()),
            word => tell(&home, generation::serving_until(word, until)),
        })
    }

    /// Copies everything that the new maps lack from the old ones, part by part until `deadline`;
    /// true if all is copied. The new maps must contain the services already.
    pub(super) fn carry(&mut self, deadline: Option<Instant>) -> Result<bool, DatapathError> {
        if self.in_front > 0 {
            tell(&self.home, generation::BEHIND | time(&self.home))?;
        }
        let homes: Vec<_> = self.homes().collect();
        let is_complete = self.copying.go_on(&homes, &self.home, deadline)?;
        self.is_carried |= is_complete;
        Ok(is_complete)
    }
    /// Makes the old programs begin no more flows, so that the new ones handle all new connections;
    /// then copies what they have begun until then, and takes their flows from them. Stops at
    /// `deadline`; true if all is done.
    pub(super) fn drain(&mut self, deadline: Option<Instant>) -> Result<bool, DatapathError> {
        if let Stage::Serving = self.stage {
            // While programs were attached, flows have ended, and their tuples may be others' now.
            // Begin with what there is at this moment: the new programs have no flows of their own.
            if self.in_front == self.old.len() && !self.homes().any(|home| is_drained(&home)) {
                self.copying.forgets = true;
                if !self.carry(deadline)? {
                    return Ok(false);
                }
            }
            self.homes()
                .try_for_each(|home| tell(&home, generation::DRAINED | word(&home)))?;
            // A program that was creating a flow must end first.
            linux::wait_for_programs();
            // While programs were attached, services may have changed in the new maps, and in the
            // old ones. Drained programs choose no new backends.
            (self.copying.next, self.copying.reads) = (0, true);
            self.stage = Stage::Drained;
        }
        if let Stage::Drained = self.stage {
            if !self.carry(deadline)? {
                return Ok(false);
            }
            self.copying.takes = true;
            self.stage = Stage::Taken;
        }
        if let Stage::Taken = self.stage {
            if !self.carry(deadline)? {
                return Ok(false);
            }
            let links = self.homes().flat_map(|home| files(&links_of(&home)));
            // XDP programs stay attached, because some devices reset when theirs is removed.
            self.stage = Stage::Detaching(links.filter(|path| !is_xdp_pin(path)).collect());
        }
        Ok(true)
    }

    /// Detaches the old tc programs and socket hooks, one after another until `deadline`, but one
    /// at least; true if all are detached.
    pub(super) fn detach(&mut self, deadline: Option<Instant>) -> bool {
        let Stage::Detaching(attached) = &mut self.stage else {
            return true;
        };
        while let Some(path) = attached.pop() {
            if let Ok(link) = get_pinned(&path, false) {
                // The link's interface or cgroup may be gone.
                let _ = linux::detach(link.as_fd());
            }
            if is_over(deadline) {
                return false;
            }
        }
        for generation in &self.old {
            detach_filters_of(generation.number);
        }
        linux::wait_for_programs();
        self.stage = Stage::Detached;
        true
    }

    /// Removes the pins of the old generations, whose programs must be detached. Moves the marks of
    /// qdiscs that we created to the new generation.
    pub(super) fn remove(self) -> Result<(), DatapathError> {
        tell(&self.home, time(&self.home))?;
        for home in self.homes() {
            let links = links_of(&home);
            let removed = files(&links).into_iter().try_for_each(|path| {
                match (path.file_name(), fs::symlink_metadata(&path)) {
                    (Some(name), Ok(metadata)) if metadata.is_symlink() => {
                        fs::rename(&path, links_of(&self.home).join(name))
                    }
                    _ => fs::remove_file(&path),
                }
            });
            let removed = removed
                .and_then(|()| if_there(fs::remove_dir(&links)))
                .and_then(|()| files(&home).into_iter().try_for_each(fs::remove_file))
                .and_then(|()| if_there(fs::remove_dir(&home)));
            removed.map_err(DatapathError::of_file("remove", &home))?;
        }
        Ok(())
    }
}

impl Datapath {
    /// Returns the names of the older generations of maps that the maps of this datapath will
    /// replace; `None` if there are none (any more).
    pub fn predecessors(&self) -> Option<String> {
        let old = self.succession.as_ref()?.old.iter();
        Some(old.map(|one| one.name()).collect::<Vec<_>>().join(", "))
    }
    /// True if the programs may be attached: there are no older maps, or their flows have been
    /// copied into the new ones.
    pub fn may_attach(&self) -> bool {
        self.succession.as_ref().is_none_or(|old| old.is_carried)
    }
    /// Copies flows and other contents of the older maps into the new ones, in parts until `budget`
    /// is over, and returns how many entries were copied so far; `None` if it must be called again.
    /// The new maps must contain the services, settings and addresses already. Until
    /// [`Self::take_over`] the older programs stay in use.
    pub fn carry_over(&mut self, budget: Duration) -> Result<Option<Carried>, DatapathError> {
        let deadline = Instant::now().checked_add(budget);
        let Some(succession) = &mut self.succession else {
            return Ok(Some(Carried::default()));
        };
        let is_complete = succession.carry(deadline)?;
        Ok(is_complete.then_some(succession.copying.carried))
    }
    /// True once [`Self::take_over`] has begun: the older programs begin no more flows.
    pub fn is_drained(&self) -> bool {
        let old = self.succession.as_ref();
        old.is_some_and(|old| !matches!(old.stage, Stage::Serving))
    }
    /// Changes over from the older maps to the new ones, and removes the older programs and maps.
    /// The new programs must already be attached wherever the older ones are, so that every packet
    /// and socket meets one of the two. Returns how many entries were copied over all; `None` if
    /// `budget` is over before all is done: then it must be called again. May also be called again
    /// after an error.
    pub fn take_over(&mut self, budget: Duration) -> Result<Option<Carried>, DatapathError> {
        let deadline = Instant::now().checked_add(budget);
        let Some(succession) = &mut self.succession else {
            return Ok(Some(Carried::default()));
        };
        let is_carried = succession.drain(deadline)?
            && succession.detach(deadline)
            && succession.carry(deadline)?;
        if !is_carried {
            return Ok(None);
        }
        let carried = succession.copying.carried;
        // Nothing is lost, because what XDP programs handle in the meantime changes no flow's
        // state. And no device is reset.
        for home in succession.homes() {
            self.xdp
                .take_from(&home, &self.programs)
                .map_err(DatapathError::of_file("take over the links in", &home))?;
        }
        match self.succession.take() {
            Some(succession) => succession.remove().map(|()| Some(carried)),
            None => Ok(Some(carried)),
        }
    }
    /// Makes the programs leave new connections to another proxy. Cannot be undone: the next agent
    /// creates new maps, which take over from these. Existing flows and sockets are not affected.
    pub fn drain(&self) -> Result<(), DatapathError> {
        tell(&self.home, generation::DRAINED)
    }
}

/// True if a deadline has passed.
fn is_over(deadline: Option<Instant>) -> bool {
    deadline.is_some_and(|deadline| Instant::now() >= deadline)
}
