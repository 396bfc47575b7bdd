// SPDX-License-Identifier: Apache-2.0 OR MIT
//! With `xdp: native` or `generic`: keeps the state of uplinks between two checks, and makes the
//! texts of warnings about them. Used by `xdp_uplinks`.

use std::collections::BTreeMap;

use control::{causes::chain, object::Warning};
use datapath::{Repair, XdpMode, XdpRefusal};
use linux::interfaces::Interface;
use tokio::time::Instant;

/// The state of uplinks, kept between two checks.
#[derive(Debug, Default)]
pub(super) struct Uplinks {
    /// Uplinks that this run has attached XDP to, as they were then. Key: interface index.
    pub(super) attached: BTreeMap<u32, Interface>,
    /// Uplinks where the driver or another program prevented attaching XDP. Key: interface index.
    /// Value: when that was, the interface as it was then, and the warning.
    pub(super) refused: BTreeMap<u32, (Instant, Interface, Warning)>,
    /// Detached or replaced XDP programs that were put back, and that the next repair will report.
    pub(super) repaired: Vec<Repair>,
}

pub(super) fn explain(refusal: &XdpRefusal, mode: XdpMode) -> String {
    match refusal {
        XdpRefusal::Taken(other) => {
            format!("{other} is at its XDP hook, which takes one program; it is left alone")
        }
        XdpRefusal::Refused(error) if mode == XdpMode::Native => format!(
            "its driver does not take a native XDP program: {}; it may lack it, or want a smaller MTU, fewer queues or other \
             offloads (the kernel's log may say which), or use `xdp: generic`",
            chain(error)
        ),
        XdpRefusal::Refused(error) => {
            format!("the kernel does not take the program: {}", chain(error))
        }
    }
}

pub(super) fn warning(object: &str, reason: &str) -> Warning {
    Warning {
        object: object.to_owned(),
        reason: format!("packets take tc, XDP does not take them: {reason}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_xdp_refusal_names_a_remedy_or_the_program_attached_there() {
        let refused = XdpRefusal::Refused(std::io::Error::from_raw_os_error(libc::EOPNOTSUPP));
        assert!(explain(&refused, XdpMode::Native).contains("xdp: generic"));
        assert!(!explain(&refused, XdpMode::Generic).contains("xdp: generic"));
        let taken = XdpRefusal::Taken("program 7 (katran)".into());
        assert!(explain(&taken, XdpMode::Native).contains("program 7 (katran)"));
    }
}
