// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Measures the real programs and the bare ones on a node, for one IP family.

use std::{
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    time::Instant,
};

use anyhow::{Context, Result, ensure};
use datapath::maps::pins::map_path;
use lab::{
    bpf::{Instruction, PASS, always, load, load_xdp, slot_with},
    load::statistics::median,
};
use linux::{MapKind, Plain, create_map, get_pinned, test_run};
use proxy_common::{FlowEntry, FlowKey, Port, Protocol, masquerade::Marks};

use crate::{
    bare::{Program, Rotation},
    node::{self, Ends, Kind, Node, SERVICE_PORT},
};

pub(crate) const RUNS: usize = 10;
pub(crate) const REPETITIONS: u32 = 300_000;
/// Repetitions for first packets of flows and for inserts, fewer because their entries stay in the
/// maps.
pub(crate) const FIRST_REPETITIONS: u32 = 20_000;

/// Minimum and median of all runs, in nanoseconds per packet.
pub(crate) type Figure = (f64, f64);

/// The maps and programs that all measurements of one IP family share.
pub(crate) struct Bench<'a, A: Ends> {
    node: &'a Node,
    counter: OwnedFd,
    flows: OwnedFd,
    empty: OwnedFd,
    key: FlowKey<A>,
    /// The verdict that the program under test must return for packets.
    verdict: u32,
}

impl<'a, A: Ends> Bench<'a, A> {
    pub(crate) fn new(node: &'a Node) -> Result<Self> {
        Ok(Self {
            node,
            counter: create_map(MapKind::Array, 4, 8, 1, 0, None)?,
            flows: get_pinned(&map_path(&node.pin_dir, A::FLOWS), false)?,
            empty: load(&always(PASS))?,
            key: FlowKey::new(
                A::address(0),
                Port::ANY,
                A::address(0),
                Port::ANY,
                Protocol::TCP,
            ),
            verdict: PASS.cast_unsigned(),
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

    fn begin(&self, rotation: Rotation) -> Program {
        Program::new(&self.counter, rotation)
    }

    /// Makes a program that changes the packet for each repetition and then calls `next`.
    fn wrapper(&self, rotation: Rotation, port: u16, next: BorrowedFd<'_>) -> Result<Wrapper> {
        Wrapper::new(next, |slot| {
            let program = self.begin(rotation);
            program.hand_over(slot, port, A::FIRST_OCTET, A::OFFSETS)
        })
    }

    /// Sends the first packet of a flow to each of `count` services through the ingress program.
    pub(crate) fn run_once(&self, rotation: Rotation, kind: Kind, count: u32) -> Result<()> {
        let program = self.wrapper(rotation, SERVICE_PORT, self.loaded("ingress")?)?;
        time(&program.program, &A::packet(kind), count, 0, self.verdict).map(drop)
    }

    /// Sends a packet with the masquerade mark to each of `count` backends through the egress
    /// program, so that its flow gets a masquerade port.
    pub(crate) fn masquerade(&self, rotation: Rotation, port: u16, count: u32) -> Result<()> {
        let program = self.wrapper(rotation, port, self.loaded("egress")?)?;
        let mark = Marks::DEFAULT.masquerade;
        let packet = A::packet(Kind::Syn);
        // One run for each packet: the program removes the mark, and the next repetition would have
        // none.
        for _ in 0..count {
            time(&program.program, &packet, 1, mark, PASS.cast_unsigned())?;
        }
        Ok(())
    }

    /// Measures the real program `name`, without the time of the wrapper in front of it.
    pub(crate) fn real(
        &self,
        name: &'static str,
        rotation: Rotation,
        port: u16,
        kind: Kind,
        repetitions: u32,
    ) -> Result<Figure> {
        let packet = A::packet(kind);
        let harness = self.wrapper(rotation, port, self.empty.as_fd())?;
        let wrapped = self.wrapper(rotation, port, self.loaded(name)?)?;
        difference(
            (&wrapped.program, self.verdict),
            &harness.program,
            &packet,
            repetitions,
        )
    }

    /// Measures the XDP program on packets of known flows, without the time of the wrapper.
    pub(crate) fn xdp(&self, rotation: Rotation) -> Result<Figure> {
        const XDP_PASS: i32 = 2;
        const XDP_REDIRECT: u32 = 4;
        let empty = load_xdp(&always(XDP_PASS))?;
        let wrapper = |next: BorrowedFd<'_>| -> Result<Wrapper> {
            let slot = slot_with(next)?;
            let program = self.begin(rotation).at_xdp();
            let program = program.hand_over(&slot, SERVICE_PORT, A::FIRST_OCTET, A::OFFSETS);
            Ok(Wrapper {
                program: load_xdp(&program)?,
                _slot: slot,
            })
        };
        let passed = (wrapper(empty.as_fd())?, XDP_PASS.cast_unsigned());
        let wrapped = (wrapper(self.loaded("uplink")?)?, XDP_REDIRECT);
        let packet = A::packet(Kind::Ack);
        rounds([&passed, &wrapped], |(wrapper, verdict)| {
            time_with(&wrapper.program, &packet, REPETITIONS, &[], *verdict)
        })
    }

    /// Measures replies from the backends at egress, without the time of the wrapper.
    pub(crate) fn reply(&self, count: u32) -> Result<Figure> {
        let rotation = Rotation {
            base: 0,
            count,
            clients: false,
        };
        let turned = |next| {
            Wrapper::new(next, |slot| {
                let backends = (node::BACKENDS, node::BACKEND_PORT);
                let program = self.begin(rotation);
                program.hand_over_reply(slot, backends, A::FIRST_OCTET, A::OFFSETS)
            })
        };
        let (harness, wrapped) = (turned(self.empty.as_fd())?, turned(self.loaded("egress")?)?);
        difference(
            (&wrapped.program, PASS.cast_unsigned()),
            &harness.program,
            &A::packet(Kind::Ack),
            REPETITIONS,
        )
    }

    pub(crate) fn bare_lookup(&self, rotation: Rotation) -> Result<Figure> {
        let build = |looks: bool| {
            let mut program = self.begin(rotation);
            let key = program.key(self.key.bytes(), SERVICE_PORT, A::FIRST_OCTET, A::OFFSETS);
            if looks {
                program.lookup(&self.flows, key);
            }
            load(&program.finish())
        };
        difference(
            (&build(true)?, PASS.cast_unsigned()),
            &build(false)?,
            &A::packet(Kind::Ack),
            REPETITIONS,
        )
    }

    pub(crate) fn bare_inserts(&self, rotation: Rotation) -> Result<Figure> {
        let (key_size, value_size) = (size_of::<FlowKey<A>>(), size_of::<FlowEntry<A>>());
        let capacity = node::FLOWS;
        let map = create_map(
            MapKind::Hash,
            key_size as u32,
            value_size as u32,
            capacity,
            0,
            None,
        )?;
        let build = |inserts: bool| {
            let mut program = self.begin(rotation);
            let key = program.key(self.key.bytes(), SERVICE_PORT, A::FIRST_OCTET, A::OFFSETS);
            let value = program.value(value_size, key);
            if inserts {
                program.insert(&map, key, value);
                // The last four bytes of the key have the protocol; changing them makes another
                // key.
                program.store_word(key + key_size as i16 - 4, 1);
                program.insert(&map, key, value);
            }
            load(&program.finish())
        };
        difference(
            (&build(true)?, PASS.cast_unsigned()),
            &build(false)?,
            &A::packet(Kind::Ack),
            FIRST_REPETITIONS,
        )
    }
}

/// A bare program that changes the packet and then calls the program under test.
struct Wrapper {
    program: OwnedFd,
    /// The map with the program under test. It stays open, because it keeps that program loaded.
    _slot: OwnedFd,
}

impl Wrapper {
    /// Loads the program that `write` makes. `write` gets a program map with `next` in slot 0.
    fn new(next: BorrowedFd<'_>, write: impl FnOnce(&OwnedFd) -> Vec<Instruction>) -> Result<Self> {
        let slot = slot_with(next)?;
        Ok(Self {
            program: load(&write(&slot))?,
            _slot: slot,
        })
    }
}

/// Returns the minimum and the median of the time that `program` takes longer than `harness`, which
/// runs before it each time. `verdict`: what `program` must return.
fn difference(
    (program, verdict): (&OwnedFd, u32),
    harness: &OwnedFd,
    packet: &[u8],
    repetitions: u32,
) -> Result<Figure> {
    let passed = PASS.cast_unsigned();
    rounds(
        [(harness, passed), (program, verdict)],
        |(program, verdict)| time(program, packet, repetitions, 0, verdict),
    )
}

/// Times the harness and the program in turn; returns what the program takes longer.
fn rounds<T: Copy>(both: [T; 2], run: impl Fn(T) -> Result<f64>) -> Result<Figure> {
    let mut times = [Vec::new(), Vec::new()];
    for _ in 0..RUNS {
        for (times, one) in times.iter_mut().zip(both) {
            times.push(run(one)?);
        }
    }
    let [harness, program] = times.map(|times| summary(&times));
    Ok((program.0 - harness.0, program.1 - harness.1))
}

fn summary(times: &[f64]) -> Figure {
    let minimum = times.iter().copied().fold(f64::INFINITY, f64::min);
    (minimum, median(times))
}

fn time(
    program: &OwnedFd,
    packet: &[u8],
    repetitions: u32,
    mark: u32,
    verdict: u32,
) -> Result<f64> {
    // As long as the longest __sk_buff of any kernel: test runs return all of it.
    const FIELDS: usize = 64;
    const MARK_FIELD: usize = 2;
    let mut context = [[0; 4]; FIELDS];
    context[MARK_FIELD] = mark.to_ne_bytes();
    time_with(
        program,
        packet,
        repetitions,
        context.as_flattened(),
        verdict,
    )
}

fn time_with(
    program: &OwnedFd,
    packet: &[u8],
    repetitions: u32,
    context: &[u8],
    verdict: u32,
) -> Result<f64> {
    let begin = Instant::now();
    let run = test_run(program.as_fd(), packet, context, repetitions)?;
    let time = begin.elapsed();
    ensure!(
        run.result == verdict,
        "the last packet's verdict is {}, not {verdict}",
        run.result
    );
    Ok(time.as_nanos() as f64 / f64::from(repetitions))
}
