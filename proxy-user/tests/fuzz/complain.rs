// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Sends ICMP errors about conversations, from a router, the client or the node itself.

use crate::{
    errors::{self, About, Complaint},
    packets::SENDER_MAC,
    run::Run,
    services::{self, Interface},
};

impl Run<'_> {
    /// Sends an ICMP error about a conversation's last packet, if there was a packet.
    pub(crate) fn complain(
        &mut self,
        interface: Interface,
        complaint: &Complaint,
    ) -> Result<(), String> {
        let Complaint {
            error,
            about,
            quote,
            tuple,
        } = *complaint;
        let Some(left) = self.left.get(&(interface.index(), tuple)).cloned() else {
            return Ok(());
        };
        let v6 = tuple.src.is_ipv6();
        let quoting = |ends, mac, frame: &[u8]| errors::frame(error, quote, ends, mac, frame);
        match about {
            About::Request => {
                let ends = (services::outsider(200, v6), left.tuple.src.ip());
                let by = Interface::towards(left.tuple.dst.ip());
                if let Some(frame) = quoting(ends, by.mac(), &left.frame) {
                    self.through(by, &frame)?;
                }
            }
            About::Answer => {
                let ends = (tuple.src.ip(), tuple.dst.ip());
                let frame = left
                    .answer
                    .and_then(|frame| quoting(ends, interface.mac(), &frame));
                if let Some(frame) = frame {
                    self.through(interface, &frame)?;
                }
            }
            About::Inside => {
                let ends = (services::node(v6), tuple.src.ip());
                if let Some(frame) = quoting(ends, SENDER_MAC, &left.inside) {
                    let interface = Interface::towards(tuple.src.ip());
                    self.hook(false, interface, &frame, 0, true)?;
                }
            }
        }
        Ok(())
    }
}
