// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Runs a sequence through the programs and through the model, and compares the results.

use std::collections::HashMap;

use proxy_common::Counter;

use crate::{
    context::NEXT,
    kept::Sequence,
    kernel::{compare, evicted},
    model::{
        Given, Model, Seen,
        wire::{self, Tuple},
    },
    operations::Operation,
    packets::{Packet, SENDER_MAC},
    services::{Interface, NodeSettings, is_node},
    shorten::Difference,
    subject::{IDLE, Subject, Subjects, TIGHT_FLOWS},
};

/// The seconds in one step of time. No idle time is a multiple, so real time does not matter.
pub(crate) const STEP: u64 = 9;

/// A packet that has left the node: its tuple and frame, and (`inside`) the frame before egress.
#[derive(Clone)]
pub(crate) struct Left {
    pub(crate) tuple: Tuple,
    pub(crate) frame: Vec<u8>,
    pub(crate) inside: Vec<u8>,
    /// The backend's last answer to it as the client got it; None before the first.
    pub(crate) answer: Option<Vec<u8>>,
}

impl Left {
    /// Returns None if the frame has no IP packet.
    fn new(frame: Vec<u8>, inside: Vec<u8>) -> Option<Self> {
        Some(Self {
            tuple: tuple_of(&frame)?,
            frame,
            inside,
            answer: None,
        })
    }
}

fn tuple_of(frame: &[u8]) -> Option<Tuple> {
    wire::read(frame).map(|headers| headers.tuple)
}

/// A sequence that is being run by the programs and by the model.
pub(crate) struct Run<'a> {
    subject: &'a mut Subject,
    model: Model,
    /// True if frames at the uplink pass the XDP program first.
    has_xdp: bool,
    /// The counters that packets have moved, and how many of them before the last operation.
    counted: Vec<Counter>,
    before: usize,
    /// The client's last packet of each conversation. Key: the client's interface and tuple.
    pub(crate) left: HashMap<(u32, Tuple), Left>,
}

/// Runs a sequence on an empty node; returns the counters that have moved. `thorough`: compares
/// tables after each operation (slow).
pub(crate) fn run(
    subjects: &mut Subjects,
    sequence: &Sequence<Operation>,
    thorough: bool,
) -> Result<Vec<Counter>, Difference> {
    let subject = subjects.of(sequence);
    prepare(subject, sequence);
    let mut model = Model::new(subject.options.capacities.flows as usize);
    model.backend_ports.clone_from(&subject.backend_ports);
    model.is_past = subject.options.redirects;
    let mut run = Run {
        subject,
        model,
        has_xdp: sequence.0.first() == Some(&Operation::Past(true)),
        counted: Vec::new(),
        before: 0,
        left: HashMap::new(),
    };
    for (operation, step) in sequence.0.iter().enumerate() {
        let failed = |text| Difference { operation, text };
        let stepped = run.step(step);
        if run.model.is_lost {
            break;
        }
        stepped.map_err(failed)?;
        if thorough || operation + 1 == sequence.0.len() {
            compare(&run.model, run.subject).map_err(failed)?;
        }
    }
    Ok(run.counted)
}

/// Empties the node's maps, and makes the services that the sequence begins with.
fn prepare(subject: &mut Subject, sequence: &Sequence<Operation>) {
    let mut services = Vec::new();
    for step in &sequence.0 {
        match step {
            Operation::Tight | Operation::Past(_) => {}
            Operation::Apply(service) => services.push(service),
            _ => break,
        }
    }
    subject.begin_with(&services);
    subject.configure(NodeSettings::default());
    subject.reset();
}

impl Run<'_> {
    fn step(&mut self, step: &Operation) -> Result<(), String> {
        if let Operation::Counted(wanted) = step {
            let names = |all: &[Counter]| all.iter().map(|one| one.name()).collect::<Vec<_>>();
            let counted = &self.counted[self.before..];
            return match counted.starts_with(wanted) {
                true => Ok(()),
                false => Err(format!("counted {:?}", names(counted))),
            };
        }
        self.before = self.counted.len();
        match step {
            Operation::Apply(service) => {
                self.subject.change([(service.name.clone(), Some(service))]);
                self.model.apply(service);
            }
            Operation::Remove(name) => {
                self.subject.change([(name.clone(), None)]);
                self.model.services.remove(name);
            }
            Operation::Settings(settings) => {
                self.subject.configure(*settings);
                self.model.settings = *settings;
            }
            Operation::Send(interface, packet) => self.send(*interface, packet)?,
            Operation::Answer(interface, packet) => self.answer(*interface, packet)?,
            Operation::Complain(interface, complaint) => self.complain(*interface, complaint)?,
            Operation::Out(is_own, packet) => {
                let frame = packet.frame(SENDER_MAC, true);
                let interface = Interface::towards(packet.tuple.dst.ip());
                self.hook(false, interface, &frame, 0, *is_own)?;
            }
            Operation::Wait(steps) => {
                self.subject.pass_time(steps * STEP);
                self.model.now += steps * STEP;
            }
            Operation::Sweep => {
                self.subject.sweep();
                self.model.expire(&IDLE);
            }
            Operation::Restart => self.subject.restart(),
            Operation::Tight | Operation::Past(_) | Operation::Counted(_) => {}
        }
        Ok(())
    }

    /// Makes a client's packet arrive at its interface and leave by the node's routes.
    fn send(&mut self, interface: Interface, packet: &Packet) -> Result<(), String> {
        let frame = packet.frame(interface.mac(), true);
        if packet.shape.fragment.is_none() {
            self.subject.note_direct(packet.tuple);
        }
        if let Some(left) = self.through(interface, &frame)? {
            let key = (interface.index(), packet.tuple);
            let answer = self.left.remove(&key).and_then(|left| left.answer);
            self.left.insert(key, Left { answer, ..left });
        }
        Ok(())
    }
    /// Sends a packet back from where the last packet of the conversation went.
    fn answer(&mut self, interface: Interface, packet: &Packet) -> Result<(), String> {
        let key = (interface.index(), packet.tuple);
        let Some(left) = self.left.get(&key).map(|left| left.tuple) else {
            return Ok(());
        };
        let answer = Packet {
            tuple: left.reversed(),
            ..*packet
        };
        let by = Interface::towards(answer.tuple.src.ip());
        let frame = answer.frame(by.mac(), false);
        // While the flow exists, replies must come from the frontend that was called.
        let is_alive = interface == Interface::towards(packet.tuple.src.ip())
            && !is_node(packet.tuple.src.ip())
            && packet.shape.fragment.is_none()
            && packet.shape.cut <= packet.shape.payload
            && self.model.leaves_as(interface, packet.tuple, left);
        let back = self.through(by, &frame)?;
        let tuple = back.as_ref().map(|back| back.tuple);
        if is_alive && tuple != Some(packet.tuple.reversed()) {
            fail!("the answer of a living flow leaves as {tuple:?}");
        }
        if let (Some(left), Some(back)) = (self.left.get_mut(&key), back) {
            left.answer = Some(back.frame);
        }
        Ok(())
    }
    /// Passes a frame through ingress and egress (or XDP); returns it if it leaves the node.
    pub(crate) fn through(&mut self, at: Interface, frame: &[u8]) -> Result<Option<Left>, String> {
        // A test run cannot show the tag by which egress knows that the stack lets packets pass.
        if self.model.is_past
            && let Some(tuple) = self.model.tuple_at(at, frame)
            && let Some((_, to)) = self.model.passed(at, tuple)
        {
            self.subject.record(at, tuple, to);
        }
        if self.has_xdp
            && at == Interface::Uplink
            && let Some(frame) = self.at_xdp(frame)?
        {
            return Ok(Left::new(frame.clone(), frame));
        }
        let (inside, is_past) = self.hook(true, at, frame, 0, false)?;
        if is_past {
            return Ok(Left::new(inside.frame.clone(), inside.frame));
        }
        if inside.verdict != NEXT {
            return Ok(None);
        }
        let tuple = tuple_of(&inside.frame).filter(|tuple| !is_node(tuple.dst.ip()));
        let Some(tuple) = tuple else {
            return Ok(None);
        };
        self.subject.note_direct(tuple);
        let by = Interface::towards(tuple.dst.ip());
        let (outside, _) = self.hook(false, by, &inside.frame, inside.mark, false)?;
        if outside.verdict != NEXT {
            return Ok(None);
        }
        Ok(Left::new(outside.frame, inside.frame))
    }
    /// Runs XDP at the uplink; returns the frame that XDP sends, None for a frame left to tc.
    fn at_xdp(&mut self, frame: &[u8]) -> Result<Option<Vec<u8>>, String> {
        let given = Given {
            interface: Interface::Uplink,
            frame,
            mark: 0,
            is_own: false,
        };
        let judged = self.subject.run_at_xdp(frame).and_then(|did| {
            let Some(seen) = did else {
                return Ok(None);
            };
            self.model.at_xdp(&given, &seen)?;
            self.counted.push(seen.counter);
            Ok(Some(seen.frame))
        });
        judged.map_err(|fault| format!("XDP at the uplink {:?}: {fault}", tuple_of(frame)))
    }
    /// Runs the ingress or the egress program on a frame, and lets the model judge the result. Also
    /// returns true if the frame has left past the stack.
    pub(crate) fn hook(
        &mut self,
        ingress: bool,
        interface: Interface,
        frame: &[u8],
        mark: u32,
        is_own: bool,
    ) -> Result<(Seen, bool), String> {
        let given = Given {
            interface,
            frame,
            mark,
            is_own,
        };
        let program = if ingress { "ingress" } else { "egress" };
        let judged = self.subject.run(program, &given).and_then(|seen| {
            if self.subject.options.capacities.flows == TIGHT_FLOWS {
                self.model.evicted = evicted(&self.model, self.subject);
            }
            let mut is_past = false;
            match ingress {
                true if self.model.is_past => is_past = self.model.ingress_past(&given, &seen)?,
                true => self.model.ingress(&given, &seen)?,
                false => self.model.egress(&given, &seen)?,
            }
            // A packet with correct checksums still has correct checksums.
            if wire::fault(frame).is_none()
                && let Some(fault) = wire::fault(&seen.frame)
            {
                return Err(fault.into());
            }
            self.counted.push(seen.counter);
            Ok((seen, is_past))
        });
        judged.map_err(|fault| {
            let (name, tuple) = (interface.name(), tuple_of(frame));
            format!("{program} of {name} {tuple:?}, mark {mark:#x}: {fault}")
        })
    }
}
