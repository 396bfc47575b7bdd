// SPDX-License-Identifier: (Apache-2.0 OR MIT) AND GPL-2.0-only
//! Whether a process of the node already uses a port. Called by `masquerade`.

use aya_ebpf::{bindings::bpf_sock, helpers::generated as helpers};
use proxy_common::{FlowKey, Protocol};

use crate::{family::Family, packet::Skb};

/// Whether a socket of this node receives packets with this tuple: the socket of a TCP connection,
/// or a UDP socket with the port.
#[inline(always)]
pub fn has_socket<F: Family>(skb: Skb, tuple: &FlowKey<F::Addr>) -> bool {
    // linux/bpf.h: BPF_F_CURRENT_NETNS, BPF_TCP_LISTEN
    const THIS_NETWORK: u64 = -1_i32 as u32 as u64;
    const LISTENS: u32 = 10;
    const { assert!(core::mem::offset_of!(FlowKey<F::Addr>, protocol) == 4 + 2 * size_of::<F::Addr>()) };
    let context = skb.raw().cast();
    // Addresses and ports come first, as in `struct bpf_sock_tuple`.
    let (start, length) = (
        core::ptr::from_ref(tuple).cast_mut().cast(),
        core::mem::offset_of!(FlowKey<F::Addr>, protocol) as u32,
    );
    match tuple.protocol {
        Protocol::TCP => {
            // SAFETY: the tuple is valid for its length, and only read.
            let socket =
                unsafe { helpers::bpf_skc_lookup_tcp(context, start, length, THIS_NETWORK, 0) };
            if socket.is_null() {
                return false;
            }
            // The look-up finds a connection before a listener. A listener gets none of a backend's
            // answers.
            // SAFETY: not null, and held until it is released.
            let state = unsafe { (&raw const (*socket).state).read_volatile() };
            release(socket);
            state != LISTENS
        }
        Protocol::UDP => {
            // SAFETY: as above.
            let socket =
                unsafe { helpers::bpf_sk_lookup_udp(context, start, length, THIS_NETWORK, 0) };
            if socket.is_null() {
                return false;
            }
            release(socket);
            true
        }
        _ => false,
    }
}

#[inline(always)]
fn release(socket: *mut bpf_sock) {
    // SAFETY: the look-up holds a reference to the socket, and no code uses it any more.
    unsafe { helpers::bpf_sk_release(socket.cast()) };
}
