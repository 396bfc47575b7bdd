// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Measures the real programs and the bare ones on a node, for one IP family.

use std::{
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    time::Instant,
};

use anyhow::{Context, Result, ensure};
use datapath::maps::tables::Table;
use lab::{
    bpf::{PASS, always, load, load_xdp, slot_with},
    load::statistics::median,
};
use linux::{MapKind, Plain, create_map, test_run};
use proxy_common::{FlowEntry, FlowKey, Port, Protocol, masquerade::Marks};

use crate::{
    bare::{Direction, Program, Rotation},
    flow_table::{entries, flow_table},
    node::{self, Ends, Kind, Node, SERVICE_PORT},
};

pub(crate) const RUNS: usize = 10;
pub(crate) const REPETITIONS: u32 = 300_000;
/// Repetitions for first packets of flows and for inserts, fewer because their entries stay.
pub(crate) const FIRST_REPETITIONS: u32 = 20_000;
const PASSED: u32 = PASS.cast_unsigned();

/// Minimum and median of all runs, in nanoseconds per packet.
pub(crate) type Figure = (f64, f64);

/// The maps and programs that all measurements of one IP family share.
pub(crate) struct Bench<'a, A: Ends> {
    node: &'a Node,
    counter: OwnedFd,
    empty: OwnedFd,
    key: FlowKey<A>,
    /// The verdict that the program under test must return for packets.
    verdict: u32,
}

impl<'a, A: Ends> Bench<'a, A> {
    pub(crate) fn new(node: &'a Node) -> Result<Self> {
        let address = A::address(0);
        Ok(Self {
            node,
            counter: create_map(MapKind::Array, 4, 8, 1, 0, None)?,
            empty: load(&always(PASS))?,
            key: FlowKey::new(address, Port::ANY, address, Port::ANY, Protocol::TCP),
            verdict: PASSED,
        })
    }
    /// Returns the same bench for programs that return this verdict.
    pub(crate) fn expecting(self, verdict: u32) -> Self {
        Self { verdict, ..self }
    }

    /// Returns the real program with this name.
    fn loaded(&self, name: &'static str) -> Result<BorrowedFd<'_>> {
        self.node.datapath.program(name).context(name)
    }

    /// Makes a program for tc, or for XDP, that changes the packet for each repetition and then
    /// calls `next`, which must return this verdict.
    fn wrapper(
        &self,
        is_xdp: bool,
        rotation: Rotation,
        direction: Direction,
        (next, verdict): (BorrowedFd<'_>, u32),
    ) -> Result<Timed> {
        let slot = slot_with(next)?;
        let program = Program::new(&self.counter, rotation, is_xdp);
        let program = program.hand_over(&slot, direction, A::OFFSETS);
        let load = if is_xdp { load_xdp } else { load };
        Ok(Timed {
            program: load(&program)?,
            _slot: Some(slot),
            verdict,
        })
    }

    /// Sends the first packet of a flow to each of `count` services through the ingress program.
    pub(crate) fn run_once(&self, rotation: Rotation, kind: Kind, count: u32) -> Result<()> {
        let next = (self.loaded("ingress")?, self.verdict);
        let program = self.wrapper(false, rotation, Direction::To(SERVICE_PORT), next)?;
        program.time(&A::packet(kind), &context(0), count).map(drop)
    }

    /// Sends a packet with the masquerade mark to each of `count` backends through the egress
    /// program, so that its flow gets a masquerade port.
    pub(crate) fn masquerade(&self, rotation: Rotation, port: u16, count: u32) -> Result<()> {
        let next = (self.loaded("egress")?, PASSED);
        let program = self.wrapper(false, rotation, Direction::To(port), next)?;
        let context = context(Marks::DEFAULT.masquerade);
        let packet = A::packet(Kind::Syn);
        // One run for each packet: the program removes the mark, which a repetition would lack.
        for _ in 0..count {
            program.time(&packet, &context, 1)?;
        }
        Ok(())
    }

    /// Measures the real program `name`, without the time of the wrapper in front of it.
    pub(crate) fn real(
        &self,
        name: &'static str,
        rotation: Rotation,
        direction: Direction,
        kind: Kind,
        repetitions: u32,
    ) -> Result<Figure> {
        let wrapper = |next| self.wrapper(false, rotation, direction, next);
        let harness = wrapper((self.empty.as_fd(), PASSED))?;
        let real = wrapper((self.loaded(name)?, self.verdict))?;
        difference(&[harness, real], &A::packet(kind), &context(0), repetitions)
    }

    /// Measures the XDP program on packets of known flows, without the time of the wrapper.
    pub(crate) fn xdp(&self, rotation: Rotation) -> Result<Figure> {
        const XDP_PASS: i32 = 2;
        const XDP_REDIRECT: u32 = 4;
        let empty = load_xdp(&always(XDP_PASS))?;
        let direction = Direction::To(SERVICE_PORT);
        let wrapper = |next| self.wrapper(true, rotation, direction, next);
        let harness = wrapper((empty.as_fd(), XDP_PASS.cast_unsigned()))?;
        let real = wrapper((self.loaded("uplink")?, XDP_REDIRECT))?;
        difference(&[harness, real], &A::packet(Kind::Ack), &[], REPETITIONS)
    }

    /// Measures a look-up in a hash map that has the node's flows.
    pub(crate) fn bare_lookup(&self, rotation: Rotation) -> Result<Figure> {
        let map = Self::hash_map()?;
        let copy = Table::<FlowKey<A>, FlowEntry<A>>::new(map.try_clone()?)?;
        for (key, entry) in entries(&flow_table::<A>(self.node.pins.path())?)? {
            copy.update(&key, &entry)?;
        }
        self.bare(rotation, REPETITIONS, |program, key, looks| {
            if looks {
                program.lookup(&map, key);
            }
        })
    }

    /// Makes an empty hash map of flows.
    fn hash_map() -> Result<OwnedFd> {
        let sizes = [size_of::<FlowKey<A>>(), size_of::<FlowEntry<A>>()];
        let [key, value] = sizes.map(|size| size as u32);
        Ok(create_map(MapKind::Hash, key, value, node::FLOWS, 0, None)?)
    }

    pub(crate) fn bare_inserts(&self, rotation: Rotation) -> Result<Figure> {
        let (key_size, value_size) = (size_of::<FlowKey<A>>(), size_of::<FlowEntry<A>>());
        let map = Self::hash_map()?;
        self.bare(rotation, FIRST_REPETITIONS, |program, key, inserts| {
            let value = program.value(value_size, key);
            if inserts {
                program.insert(&map, key, value);
                // The last four bytes of the key have the protocol; others make another key.
                program.store_word(key + key_size as i16 - 4, 1);
                program.insert(&map, key, value);
            }
        })
    }

    /// Measures what `write` adds to a program: it gets the stack offset of a flow's key, and
    /// whether this is the program to be measured or the one without what is measured.
    fn bare(
        &self,
        rotation: Rotation,
        repetitions: u32,
        write: impl Fn(&mut Program, i16, bool),
    ) -> Result<Figure> {
        let [harness, measured] = [false, true].map(|is_measured| {
            let mut program = Program::new(&self.counter, rotation, false);
            let key = program.key(self.key.bytes(), SERVICE_PORT, A::OFFSETS);
            write(&mut program, key, is_measured);
            let program = load(&program.finish(PASS));
            program.map(|program| Timed {
                program,
                _slot: None,
                verdict: PASSED,
            })
        });
        let (packet, context) = (A::packet(Kind::Ack), context(0));
        difference(&[harness?, measured?], &packet, &context, repetitions)
    }
}

/// A bare program to be timed, and the verdict that it must return.
struct Timed {
    program: OwnedFd,
    /// The map with the program that this one calls. While it is open, that program is loaded.
    _slot: Option<OwnedFd>,
    verdict: u32,
}

impl Timed {
    /// Returns the nanoseconds per packet of a test run.
    fn time(&self, packet: &[u8], context: &[u8], repetitions: u32) -> Result<f64> {
        let begin = Instant::now();
        let run = test_run(self.program.as_fd(), packet, context, repetitions)?;
        let time = begin.elapsed();
        let (seen, wanted) = (run.result, self.verdict);
        ensure!(seen == wanted, "the last verdict is {seen}, not {wanted}");
        Ok(time.as_nanos() as f64 / f64::from(repetitions))
    }
}

/// Times a harness and a program in turn. Returns by how much the program's figures are more.
fn difference(
    harness_and_program: &[Timed; 2],
    packet: &[u8],
    context: &[u8],
    repetitions: u32,
) -> Result<Figure> {
    let mut times = [Vec::new(), Vec::new()];
    for _ in 0..RUNS {
        for (times, one) in times.iter_mut().zip(harness_and_program) {
            times.push(one.time(packet, context, repetitions)?);
        }
    }
    let [harness, program] = times.map(|times| summary(&times));
    Ok((program.0 - harness.0, program.1 - harness.1))
}

fn summary(times: &[f64]) -> Figure {
    let minimum = times.iter().copied().fold(f64::INFINITY, f64::min);
    (minimum, median(times))
}

/// Returns a `__sk_buff` with this mark, as long as any kernel's: test runs return all of it.
fn context(mark: u32) -> Vec<u8> {
    const FIELDS: usize = 64;
    const MARK_FIELD: usize = 2;
    let mut context = [[0; 4]; FIELDS];
    context[MARK_FIELD] = mark.to_ne_bytes();
    context.concat()
}
