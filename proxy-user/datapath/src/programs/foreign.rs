// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Foreign tc programs at our hooks. A hook's programs form a chain: the kernel runs its tcx
//! programs first, then its clsact filters. Each may end the chain. Read by `Datapath`.

use std::{
    collections::{HashMap, HashSet},
    io,
};

use linux::{
    describe_program, filter_qdiscs, filters, interfaces::Interface, none_if, program_name, tcx,
};

use super::tc::PRIORITIES;

/// A foreign tc program at one of our hooks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ForeignProgram {
    pub egress: bool,
    pub place: ChainPosition,
    /// The name that helps an operator to find it: `program 12 (police)`, or a filter's kind.
    pub name: String,
}

/// The position of a foreign program in relation to ours.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ChainPosition {
    /// Before ours: it may hide packets from our program.
    Before,
    /// Behind ours: it sees every packet that our program passes on.
    Behind,
    /// At the ingress hook of the bridge of which the interface is a port.
    Bridge,
}

/// The programs at one hook of an interface.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct HookState {
    /// True if one of our programs is attached.
    pub ours: bool,
    /// The names of foreign programs before ours, in the order in which the kernel runs them.
    /// `behind` has those behind ours.
    pub before: Vec<String>,
    pub behind: Vec<String>,
}

impl HookState {
    /// Returns the foreign programs, those before ours first.
    fn foreign(self, egress: bool) -> impl Iterator<Item = ForeignProgram> {
        let at = |place, names: Vec<String>| {
            let names = names.into_iter();
            names.map(move |name| ForeignProgram {
                egress,
                place,
                name,
            })
        };
        let before = at(ChainPosition::Before, self.before);
        before.chain(at(ChainPosition::Behind, self.behind))
    }
    /// Does the same as [`Self::foreign`], but returns nothing if ours is not there.
    fn beside(self, egress: bool) -> impl Iterator<Item = ForeignProgram> {
        let foreign = self.ours.then(|| self.foreign(egress));
        foreign.into_iter().flatten()
    }
}

/// A program or filter at a hook.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Member {
    program: Option<u32>,
    name: Option<String>,
    /// The kind of a filter; `None` for a tcx program.
    kind: Option<String>,
    /// The priority of a filter; 0 for a tcx program.
    priority: u16,
}

impl Member {
    fn describe(self) -> String {
        let Some(id) = self.program else {
            return format!("filter {}", self.kind.unwrap_or_default());
        };
        match program_name(id).or(self.name) {
            Some(name) => format!("program {id} ({name})"),
            None => format!("program {id}"),
        }
    }
    /// Returns the text for a list of the chain, with priority and kind of a filter.
    pub(super) fn in_chain(&self) -> String {
        let program = self.program.map(describe_program).unwrap_or_default();
        match &self.kind {
            Some(kind) => format!("filter {} {kind} {program}", self.priority),
            None => program,
        }
    }
}

/// Reads the programs at tc hooks. The list of qdiscs is read only once.
pub(crate) struct Hooks<'a> {
    ours: &'a HashSet<u32>,
    qdiscs: HashMap<u32, bool>,
    /// The names of the programs at bridges.
    bridges: HashMap<u32, Vec<String>>,
}

impl<'a> Hooks<'a> {
    /// Reads the list of qdiscs. `ours` are the ids of our programs.
    pub(crate) fn read(ours: &'a HashSet<u32>) -> io::Result<Self> {
        Ok(Self {
            ours,
            qdiscs: filter_qdiscs()?,
            bridges: HashMap::new(),
        })
    }

    /// Returns the foreign programs at an interface's hooks and at its bridge. Leaves out a hook of
    /// the interface at which there is no program of ours.
    pub(crate) fn at(&mut self, interface: &Interface) -> io::Result<Vec<ForeignProgram>> {
        let mut found = Vec::new();
        for egress in [false, true] {
            found.extend(self.state(interface.index, egress)?.beside(egress));
        }
        let Some(bridge) = interface.bridge else {
            return Ok(found);
        };
        if !self.bridges.contains_key(&bridge) {
            let chain = self.chain(bridge, false)?.into_iter();
            let names = chain.map(Member::describe).collect();
            self.bridges.insert(bridge, names);
        }
        let names = self.bridges.get(&bridge).into_iter().flatten().cloned();
        found.extend(names.map(|name| ForeignProgram {
            egress: false,
            place: ChainPosition::Bridge,
            name,
        }));
        Ok(found)
    }

    /// Returns the foreign programs at an interface's hooks, with the positions they would have if
    /// ours were attached. As a tcx link, ours would be the first program. As a filter (`by_filter`
    /// is true), it would come behind filters of its own priority, which is the lowest possible.
    pub(crate) fn foreseen(
        &self,
        interface: &Interface,
        by_filter: bool,
    ) -> io::Result<Vec<ForeignProgram>> {
        let up_to = by_filter.then_some(*PRIORITIES.start());
        let mut found = Vec::new();
        for egress in [false, true] {
            let chain = self.chain(interface.index, egress)?;
            found.extend(state(self.ours, chain, up_to).foreign(egress));
        }
        Ok(found)
    }

    /// Returns the programs at one hook of an interface, whether or not ours is there.
    pub(super) fn state(&self, index: u32, egress: bool) -> io::Result<HookState> {
        Ok(state(self.ours, self.chain(index, egress)?, Some(u16::MAX)))
    }

    /// Returns the programs at one hook of an interface, in the order in which the kernel runs
    /// them.
    pub(super) fn chain(&self, index: u32, egress: bool) -> io::Result<Vec<Member>> {
        // This kernel has no tcx, or the interface is gone.
        let without = [libc::EINVAL, libc::EOPNOTSUPP, libc::ENODEV];
        let by_tcx = none_if(&without, tcx(index, egress))?.unwrap_or_default();
        let by_tcx = by_tcx.into_iter().map(|(program, _)| Member {
            program: Some(program),
            ..Member::default()
        });
        let mut chain: Vec<_> = by_tcx.collect();
        let has_filters = self.qdiscs.get(&index).is_some_and(|both| *both || !egress);
        if has_filters {
            chain.extend(filters(index, egress)?.into_iter().map(|filter| Member {
                program: filter.program,
                name: filter.name,
                kind: Some(filter.kind),
                priority: filter.priority,
            }));
        }
        Ok(chain)
    }
}

/// Returns the members of a chain by their positions. Where ours is not attached, those up to the
/// priority `up_to` come before ours; none without it.
fn state(ours: &HashSet<u32>, chain: Vec<Member>, up_to: Option<u16>) -> HookState {
    let precedes = |member: &Member| up_to.is_some_and(|up_to| member.priority <= up_to);
    let is_ours = |member: &Member| member.program.is_some_and(|id| ours.contains(&id));
    let first = chain.iter().position(is_ours);
    let mut state = HookState {
        ours: first.is_some(),
        ..HookState::default()
    };
    for (place, member) in chain.into_iter().enumerate() {
        if is_ours(&member) {
            continue;
        }
        let is_before = first.map_or_else(|| precedes(&member), |first| place < first);
        let names = if is_before {
            &mut state.before
        } else {
            &mut state.behind
        };
        names.push(member.describe());
    }
    state
}

#[cfg(test)]
mod tests {
    use super::*;

    /// No program has this id, so the kernel knows no name for it.
    const NOBODY: u32 = u32::MAX;

    fn program(id: u32) -> Member {
        Member {
            program: Some(id),
            name: Some("a.o:[tc]".into()),
            ..Member::default()
        }
    }

    #[test]
    fn foreign_filters_run_before_ours_only_if_ours_is_a_later_filter() {
        let filter = |priority| Member {
            priority,
            ..program(NOBODY)
        };
        let [before, behind] = [ChainPosition::Before, ChainPosition::Behind];
        for (ours, expected) in [(None, [behind; 2]), (Some(1), [before, behind])] {
            let found = state(&HashSet::new(), vec![filter(1), filter(2)], ours);
            let places = found.foreign(false).map(|one| one.place);
            assert_eq!(Vec::from_iter(places), expected);
        }
    }

    #[test]
    fn foreign_programs_are_listed_as_before_or_behind_ours() {
        let flower = Member {
            kind: Some("flower".into()),
            ..Member::default()
        };
        let chain = vec![program(NOBODY), program(2), flower];
        let expected = [
            (ChainPosition::Before, "program 4294967295 (a.o:[tc])"),
            (ChainPosition::Behind, "filter flower"),
        ];
        let expected = expected.map(|(place, name)| ForeignProgram {
            egress: true,
            place,
            name: name.into(),
        });
        // Where ours is not in the chain, none is listed.
        for (ours, expected) in [(vec![1, 2], &expected[..]), (vec![], &[])] {
            let state = state(&ours.into_iter().collect(), chain.clone(), Some(u16::MAX));
            assert_eq!(Vec::from_iter(state.beside(true)), expected);
        }
    }
}
