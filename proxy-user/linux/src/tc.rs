// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Lists the clsact qdiscs of this network namespace and their filters, by rtnetlink. Used by
//! `datapath::programs` and `portolan check`.

use std::{collections::HashMap, io};

use netlink_packet_core::NLM_F_ACK;
use netlink_sys::protocols::NETLINK_ROUTE;

use super::{
    answers::{text, word},
    netlink::{Connection, attribute, encode, number},
};

const DELETE_QDISC: u16 = 37;
const GET_QDISC: u16 = 38;
const GET_FILTER: u16 = 46;

/// Length of `struct tcmsg`, with which every message begins: family, interface, handle, parent,
/// info.
const HEADER: usize = 20;

const KIND: u16 = 1;

/// A filter of tc at an interface's clsact qdisc.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Filter {
    /// The kernel runs filters in the order of their priorities.
    pub priority: u16,
    /// Unique among the filters of one priority.
    pub handle: u32,
    /// The filter's kind as tc spells it: `bpf`, `flower`.
    pub kind: String,
    /// The id of the filter's BPF program; None for a filter without one.
    pub program: Option<u32>,
    /// The name that the filter's creator gave it, usually file and section.
    pub name: Option<String>,
}

/// Returns the interfaces that have a qdisc for filters. Key: interface index. Value: true if the
/// qdisc filters at egress as well (`clsact`), false if only at ingress.
pub fn filter_qdiscs() -> io::Result<HashMap<u32, bool>> {
    let mut found = HashMap::new();
    Connection::open(NETLINK_ROUTE)?.list(GET_QDISC, &[0; HEADER], |answer| {
        let attributes = answer.get(HEADER..).unwrap_or_default();
        let kind = attribute(attributes, KIND).map(text);
        match (word(answer, 4), kind.as_deref()) {
            (Some(index), Some("clsact")) => _ = found.insert(index, true),
            (Some(index), Some("ingress")) => _ = found.insert(index, false),
            _ => {}
        }
    })?;
    Ok(found)
}

/// Returns the filters at an interface, at egress or ingress, in the order in which the kernel runs
/// them; none if the interface has no qdisc for them.
pub fn filters(index: u32, egress: bool) -> io::Result<Vec<Filter>> {
    let mut found = Vec::new();
    each_filter(index, egress, |answer| found.extend(filter(answer)))?;
    Ok(found)
}

/// True if an interface has filters in any chain of its clsact qdisc.
pub fn has_filters(index: u32) -> io::Result<bool> {
    let mut found = false;
    for egress in [false, true] {
        each_filter(index, egress, |_| found = true)?;
    }
    Ok(found)
}

fn each_filter(index: u32, egress: bool, visit: impl FnMut(&[u8])) -> io::Result<()> {
    const INGRESS: u32 = 0xffff_fff2;
    const EGRESS: u32 = 0xffff_fff3;
    let parent = if egress { EGRESS } else { INGRESS };
    let header = [0, index, 0, parent, 0].map(u32::to_ne_bytes);
    let request = header.as_flattened();
    Connection::open(NETLINK_ROUTE)?.list(GET_FILTER, request, visit)
}

/// Removes the clsact qdisc of an interface, and with it its filters.
pub fn remove_clsact(index: u32) -> io::Result<()> {
    const HANDLE: u32 = 0xffff_0000;
    const PARENT: u32 = 0xffff_fff1;
    let header = [0, index, HANDLE, PARENT, 0].map(u32::to_ne_bytes);
    let request = [header.as_flattened(), &encode(KIND, b"clsact\0")].concat();
    Connection::open(NETLINK_ROUTE)?.ask(DELETE_QDISC, NLM_F_ACK, &request, |_| {})
}

/// Reads a filter of the first chain; None for others. Other chains run only if a filter of the
/// first says so. The kernel also lists each priority itself, as a filter without a handle, which
/// is left out, too.
fn filter(message: &[u8]) -> Option<Filter> {
    const OPTIONS: u16 = 2;
    const CHAIN: u16 = 11;
    const BPF_NAME: u16 = 7;
    const BPF_ID: u16 = 11;
    let (handle, info) = (word(message, 8)?, word(message, 16)?);
    let attributes = message.get(HEADER..)?;
    let is_later = attribute(attributes, CHAIN).is_some_and(|chain| chain != [0; 4]);
    if handle == 0 || is_later {
        return None;
    }
    let kind = text(attribute(attributes, KIND)?);
    let options = attribute(attributes, OPTIONS)
        .filter(|_| kind == "bpf")
        .unwrap_or_default();
    Some(Filter {
        priority: (info >> 16) as u16,
        handle,
        program: number(options, BPF_ID),
        name: attribute(options, BPF_NAME).map(text),
        kind,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::tests::cut_off_anywhere;

    fn message(handle: u32, info: u32, attributes: &[Vec<u8>]) -> Vec<u8> {
        let header = [0, 7, handle, 0, info].map(u32::to_ne_bytes);
        [header.as_flattened(), &attributes.concat()].concat()
    }

    #[test]
    fn a_tc_filter_is_parsed_with_its_program_and_a_bare_priority_is_skipped() {
        let kind = encode(1, b"bpf\0");
        let options = [encode(7, b"a.o:[tc]\0"), encode(11, &9_u32.to_ne_bytes())];
        let options = encode(2, &options.concat());
        let whole = message(3, 5 << 16 | 0x300, &[kind.clone(), options]);
        let read = filter(&whole).expect("a filter");
        assert_eq!((read.priority, read.handle, read.program), (5, 3, Some(9)));
        let named = (read.kind.as_str(), read.name.as_deref());
        assert_eq!(named, ("bpf", Some("a.o:[tc]")));
        let bare = message(0, 5 << 16, std::slice::from_ref(&kind));
        assert_eq!(filter(&bare), None);
        let later = encode(11, &1_u32.to_ne_bytes());
        assert_eq!(filter(&message(3, 5 << 16, &[kind, later])), None);
        cut_off_anywhere(&whole, |bytes| _ = filter(bytes));
    }
}
