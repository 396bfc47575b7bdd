// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The dry run: runs the kernel's own programs on the client's packet, on the translated packet and
//! on the answer, and compares the results with the decision that `explain` has made from the maps.
//! Returns a row for each run, and a finding at the first difference.

use std::time::Instant;

use anyhow::Result;
use datapath::read::{Asked, DryRun, Explained, Hook, Kind, Packet, Reader, Step};
use proxy_common::{Counter, Settings};

use super::{
    host::Host,
    report::Pointed,
    rows::{DryRunRow, StepRow},
};
use crate::check::finding::Finding;

/// Runs the programs on the packet that `asked` describes. The finding, if any, is the first
/// difference from `explained`.
pub(super) fn run(
    reader: &Reader,
    asked: &Asked,
    explained: &Explained,
    host: &Host,
) -> Result<(DryRunRow, Option<Pointed>)> {
    let begun = Instant::now();
    let incoming = host.incoming.as_ref().map_or(0, |place| place.index);
    let mut trial = Trial {
        run: DryRun::open(reader, asked, explained, incoming)?,
        rows: Vec::new(),
    };
    let difference = trial.walk(asked, explained, host, incoming)?;
    let row = DryRunRow {
        steps: trial.rows,
        left_out: None,
        milliseconds: begun.elapsed().as_millis(),
    };
    let finding = difference.map(|found| {
        let finding = Finding::differs(
            "dry run",
            format!("the kernel's programs do something else than the maps say: {found}"),
            "ask again, because the maps may have changed between; if it stays, please report it with this report",
        );
        Pointed::new(finding, "docs/explain.md#dry-run")
    });
    Ok((row, finding))
}

struct Trial {
    run: DryRun,
    rows: Vec<StepRow>,
}

impl Trial {
    fn walk(
        &mut self,
        asked: &Asked,
        explained: &Explained,
        host: &Host,
        incoming: u32,
    ) -> Result<Option<String>> {
        let mut packet = Packet::first(asked);
        let is_known = matches!(
            explained.counter,
            Counter::ForwardedHit | Counter::ReplyPassed | Counter::ReplyUnmasqueraded
        );
        if is_known {
            packet.kind = Kind::Later;
        }
        self.run.load(Hook::Ingress)?;
        let first = self.step(Hook::Ingress, incoming, packet, 0)?;
        if first.counter != explained.counter {
            return Ok(differs(explained.counter, &first));
        }
        let is_forwarded = matches!(
            explained.counter,
            Counter::ForwardedNew | Counter::ForwardedHit
        );
        let Some(translated) = first.after.filter(|_| is_forwarded) else {
            return Ok(None);
        };
        if !explained.to.contains(&translated.dst) {
            return Ok(Some(format!("it goes to {}", translated.dst)));
        }
        let way = host
            .endpoints
            .iter()
            .find(|one| one.address == translated.dst);
        let Some(outgoing) = way.and_then(|way| way.outgoing.as_ref()) else {
            // The packet goes to a process of this node, or cannot be sent: no egress program sees
            // it.
            return Ok(None);
        };
        self.run.load(Hook::Egress)?;
        let left = self.step(Hook::Egress, outgoing.index, translated, first.mark)?;
        let masqueraded =
            way.is_some_and(|way| way.masqueraded) && !explained.settings.has(Settings::MARK_ONLY);
        // If ingress redirects a packet of a known flow past the stack, it has already set source
        // and destination.
        let is_done = translated.src != packet.src;
        let expected = if masqueraded && !is_done {
            Counter::Masqueraded
        } else {
            Counter::Untouched
        };
        let Some(sent) = left.after.filter(|_| left.counter == expected) else {
            return Ok(differs(expected, &left));
        };
        self.answer(
            asked,
            sent.answer(),
            packet,
            masqueraded,
            [outgoing.index, incoming],
        )
    }

    /// Runs the programs on the answer: it comes in at the interface where the packet left, and
    /// goes back to the client. Returns the first difference, if any.
    fn answer(
        &mut self,
        asked: &Asked,
        answer: Packet,
        first: Packet,
        masqueraded: bool,
        [outgoing, incoming]: [u32; 2],
    ) -> Result<Option<String>> {
        let is_as_asked = |packet: Packet| packet.src == asked.to && packet.dst == first.src;
        let came = self.step(Hook::Ingress, outgoing, answer, 0)?;
        if came.counter == Counter::ReplyTranslated && came.after.is_some_and(is_as_asked) {
            return Ok(None);
        }
        let (expected, is_it) = if masqueraded {
            let expected = Counter::ReplyUnmasqueraded;
            (expected, came.counter == expected)
        } else {
            // The ingress program passes the answer as untouched if only the egress program has to
            // change it.
            let expected = Counter::ReplyPassed;
            (
                expected,
                [expected, Counter::Untouched].contains(&came.counter),
            )
        };
        let Some(inside) = came.after.filter(|_| is_it) else {
            return Ok(differs(expected, &came));
        };
        let back = self.step(Hook::Egress, incoming, inside, 0)?;
        match back.after {
            Some(packet) if back.counter == Counter::ReplyTranslated && is_as_asked(packet) => {
                Ok(None)
            }
            _ => Ok(differs(Counter::ReplyTranslated, &back)),
        }
    }

    fn step(&mut self, hook: Hook, interface: u32, packet: Packet, mark: u32) -> Result<Step> {
        let step = self.run.step(hook, interface, &packet, mark)?;
        let name = linux::link(interface.max(1)).map(|link| link.name);
        self.rows.push(StepRow {
            hook: hook.name(),
            interface: name.unwrap_or_default(),
            outcome: step.counter.name(),
            packet: tuple(&packet),
            becomes: match step.after {
                Some(after) if after != packet => Some(becomes(&step, &after)),
                _ => None,
            },
        });
        Ok(step)
    }
}

fn tuple(packet: &Packet) -> String {
    format!("{} -> {}", packet.src, packet.dst)
}

fn becomes(step: &Step, after: &Packet) -> String {
    match after.kind {
        Kind::Reset if step.redirected => format!("the answer {}: a reset", tuple(after)),
        Kind::Error => format!(
            "the answer {} -> {}: port unreachable",
            after.src.ip(),
            after.dst.ip()
        ),
        _ => tuple(after),
    }
}

fn differs(expected: Counter, step: &Step) -> Option<String> {
    Some(format!(
        "{} says {} where {} is expected",
        step.hook.name(),
        step.counter.name(),
        expected.name()
    ))
}
