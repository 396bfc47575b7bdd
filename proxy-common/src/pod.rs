// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How redirected packets reach a pod of this node. Written by the agent, read by the kernel
//! programs.

use crate::{Addr, check};

/// Value of the maps `pods_v4` and `pods_v6`, whose key is a pod's address: the host's end of the
/// pod's link, and the link-layer addresses of a frame to the pod.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct LocalPod {
    pub check: u32,
    /// Index of the interface whose other end is the pod's.
    pub interface: u32,
    /// The longest IP packet that the link carries, in bytes. 0: the pod is behind the interface,
    /// but may not be handed packets.
    pub mtu: u32,
    /// On Ethernet: the pod's link-layer address.
    pub destination: [u8; 6],
    /// On Ethernet: the link-layer address that the pod sends to: that of the interface, or of its
    /// bridge.
    pub source: [u8; 6],
}

impl LocalPod {
    /// Whether packets may be handed to the pod past the node's stack.
    #[inline(always)]
    pub const fn is_open(&self) -> bool {
        self.mtu != 0
    }
    /// Returns the check word of this element for the pod's address: the kernel may reuse an
    /// element while it is read.
    #[inline(always)]
    pub fn check_for<A: Addr>(&self, address: A) -> u32 {
        let [a, b, c, d, e, f] = self.destination;
        let [g, h, i, j, k, l] = self.source;
        let sum = address
            .mix(address, 0x243f_6a88)
            .wrapping_add(check::mix(self.interface, self.mtu, 0x85a3_08d3))
            .wrapping_add(check::mix(
                u32::from_ne_bytes([a, b, c, d]),
                u32::from_ne_bytes([e, f, g, h]),
                0x1319_8a2e,
            ))
            .wrapping_add(check::mix(u32::from_ne_bytes([i, j, k, l]), 0, 0x0370_7344));
        check::fold_check(sum)
    }
    /// Returns the element with its check word set for the pod's address.
    #[must_use]
    pub fn sealed<A: Addr>(mut self, address: A) -> Self {
        self.check = self.check_for(address);
        self
    }
    /// Whether this is the element of `address`, neither torn nor reused for another address.
    #[inline(always)]
    pub fn is_whole<A: Addr>(&self, address: A) -> bool {
        self.check == self.check_for(address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::V4;

    #[test]
    fn a_torn_or_reused_pod_element_is_not_whole() {
        let [address, other] = [[10, 40, 1, 2], [10, 40, 1, 3]].map(|octets| V4 { octets });
        let pod = LocalPod {
            check: 0,
            interface: 7,
            mtu: 1500,
            destination: [2, 0, 0, 0, 0, 1],
            source: [2, 0, 0, 0, 0, 2],
        }
        .sealed(address);
        assert!(pod.is_whole(address) && !pod.is_whole(other));
        let tears: [fn(&mut LocalPod); 5] = [
            |pod| pod.check = 0,
            |pod| pod.interface = 8,
            |pod| pod.mtu = 1400,
            |pod| pod.destination[5] = 3,
            |pod| pod.source[5] = 3,
        ];
        for tear in tears {
            let mut torn = pod;
            tear(&mut torn);
            assert!(!torn.is_whole(address), "{torn:?}");
        }
    }
}
