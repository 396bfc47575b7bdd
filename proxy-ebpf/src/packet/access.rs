// SPDX-License-Identifier: (Apache-2.0 OR MIT) AND GPL-2.0-only
//! Bounds-checked reads of a packet, and writes to it by helpers: the only pointer arithmetic of
//! the programs.
//!
//! Nothing writes through a packet pointer. If a program did, the kernel would copy every cloned
//! packet before running it. The store helpers unclone only what they write.

use core::{arch::asm, mem::MaybeUninit};

use aya_ebpf::{
    bindings::{self, __sk_buff},
    helpers::generated as helpers,
};

/// Highest offset of a header; bounds every offset for the verifier.
pub const MAX_OFFSET: u32 = 0x7ff;

/// What ingress tells egress about a packet, in the packet buffer's field `tc_index`. The stack
/// keeps the field, and no queueing discipline of today's kernels reads it.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub struct Tag(u32);

impl Tag {
    /// The field is 0 or has another program's value.
    pub const NONE: Self = Self(0);
    /// Ingress has translated both ends of the packet: egress has nothing left to do.
    pub const TRANSLATED: Self = Self(0x7074);
    /// The packet is from a flow's client to its frontend. If the packet leaves the stack
    /// unchanged, egress records that in the flow's entry.
    pub const ORIGINAL: Self = Self(0x7075);
    /// Like [`Self::ORIGINAL`], for a reply of a flow.
    pub const REPLY: Self = Self(0x7076);
    /// Like [`Self::ORIGINAL`], for a packet between two pods that belongs to no flow.
    pub const BETWEEN_PODS: Self = Self(0x7077);

    /// Whether ingress asks egress to record the packet.
    #[inline(always)]
    pub const fn asks(self) -> bool {
        self.0 > Self::TRANSLATED.0
    }
}

/// A helper refused to write. The packet may be half changed and must be dropped.
pub struct WriteFailed;

/// Returns whether a helper has written, by its result.
#[inline(always)]
fn written(result: i64) -> Result<(), WriteFailed> {
    match result {
        0 => Ok(()),
        _ => Err(WriteFailed),
    }
}

/// linux/if_packet.h: the type of a frame for this node.
const PACKET_HOST: u32 = 0;

/// The receiver of a frame, by its link-layer address.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Addressee {
    /// This node.
    Host,
    /// Another machine.
    Other,
    /// Several machines.
    Many,
}

/// The program's context: a packet in the kernel's packet buffer.
#[derive(Clone, Copy)]
pub struct Skb {
    pub(super) raw: *mut __sk_buff,
}

impl Skb {
    /// The VLAN id in a VLAN tag; the rest of the tag is a priority.
    pub const VLAN_ID: u16 = 0xfff;

    #[inline(always)]
    pub fn new(raw: *mut __sk_buff) -> Self {
        Self { raw }
    }
    #[inline(always)]
    pub fn raw(self) -> *mut __sk_buff {
        self.raw
    }
    #[inline(always)]
    pub fn len(self) -> u32 {
        // SAFETY: the context is valid for the program's run.
        unsafe { (*self.raw).len }
    }
    /// Returns the Ethertype, as on the wire; if the VLAN tag is out of band, the Ethertype of the
    /// tag's payload.
    #[inline(always)]
    pub fn protocol(self) -> u16 {
        // SAFETY: as above.
        unsafe { (*self.raw).protocol as u16 }
    }
    #[inline(always)]
    pub fn mark(self) -> u32 {
        // SAFETY: as above.
        unsafe { (*self.raw).mark }
    }
    #[inline(always)]
    pub fn set_mark(self, mark: u32) {
        // SAFETY: as above; the mark is writable at tc.
        unsafe { (*self.raw).mark = mark }
    }
    #[inline(always)]
    pub fn interface(self) -> u32 {
        // SAFETY: as above.
        unsafe { (*self.raw).ifindex }
    }
    /// Returns the index of the interface that the packet came in by; 0 for a packet that a process
    /// of this node has sent.
    #[inline(always)]
    pub fn incoming(self) -> u32 {
        // SAFETY: as above.
        unsafe { (*self.raw).ingress_ifindex }
    }
    /// Whether a process of this node has sent the packet: it has come in by no interface.
    #[inline(always)]
    pub fn is_own(self) -> bool {
        self.incoming() == 0
    }
    /// Whether the packet has a VLAN tag out of band.
    #[inline(always)]
    pub fn is_tagged(self) -> bool {
        // SAFETY: as above.
        unsafe { (*self.raw).vlan_present != 0 }
    }
    /// Returns the VLAN id in the out-of-band tag; 0 without a tag, or if the tag has only a
    /// priority.
    #[inline(always)]
    pub fn vlan_id(self) -> u32 {
        if !self.is_tagged() {
            return 0;
        }
        // SAFETY: as above.
        unsafe { (*self.raw).vlan_tci & Self::VLAN_ID as u32 }
    }
    #[inline(always)]
    pub fn addressee(self) -> Addressee {
        const PACKET_OTHERHOST: u32 = 3;
        // SAFETY: as above.
        match unsafe { (*self.raw).pkt_type } {
            PACKET_HOST => Addressee::Host,
            PACKET_OTHERHOST => Addressee::Other,
            _ => Addressee::Many,
        }
    }
    /// Makes the kernel treat the frame as one for this node, or for the pod that it is handed to.
    #[inline(always)]
    pub fn address_to_host(self) -> Result<(), WriteFailed> {
        // SAFETY: no pointers.
        written(unsafe { helpers::bpf_skb_change_type(self.raw, PACKET_HOST) })
    }
    #[inline(always)]
    pub fn tag(self) -> Tag {
        // SAFETY: as above.
        match unsafe { (*self.raw).tc_index } {
            ours @ 0x7074..=0x7077 => Tag(ours),
            _ => Tag::NONE,
        }
    }
    #[inline(always)]
    pub fn set_tag(self, tag: Tag) {
        // SAFETY: as above; the field is writable at tc.
        unsafe { (*self.raw).tc_index = tag.0 }
    }
    /// Whether a program before this one at the same hook has stored this number in the packet's
    /// control block, which the kernel does not clear.
    #[inline(always)]
    pub fn has_note(self, note: u32) -> bool {
        // SAFETY: as above.
        unsafe { (*self.raw).cb[0] == note }
    }
    /// Stores a number for the programs after this one at the same hook.
    #[inline(always)]
    pub fn set_note(self, note: u32) {
        // SAFETY: as above; the control block is writable at tc.
        unsafe { (*self.raw).cb[0] = note }
    }
    /// Returns the bytes of transport payload in each segment of a GSO packet; 0 for any other
    /// packet.
    #[inline(always)]
    pub fn segment_payload(self) -> u32 {
        // SAFETY: as above.
        unsafe { (*self.raw).gso_size }
    }
    /// Returns the cookie of the socket that sent the packet; 0 for a packet from elsewhere.
    #[inline(always)]
    pub fn socket(self) -> u64 {
        // SAFETY: the context is valid.
        unsafe { helpers::bpf_get_socket_cookie(self.raw.cast()) }
    }
    #[inline(always)]
    fn data(self) -> usize {
        // SAFETY: as above.
        unsafe { (*self.raw).data as usize }
    }
    #[inline(always)]
    fn data_end(self) -> usize {
        // SAFETY: as above.
        unsafe { (*self.raw).data_end as usize }
    }

    /// Brings the headers into the linear part of the buffer, where [`Self::read`] finds them,
    /// unless they are there already. Pulling copies the data that a sender keeps for a
    /// retransmission.
    #[inline(always)]
    pub fn pull_headers(self) {
        const HEADERS: u32 = 192;
        let linear = (self.data_end() - self.data()) as u32;
        if linear < HEADERS && linear < self.len() {
            let wanted = if self.len() < HEADERS {
                self.len()
            } else {
                HEADERS
            };
            // SAFETY: the context is valid; no packet pointer is alive.
            unsafe { helpers::bpf_skb_pull_data(self.raw, wanted) };
        }
    }

    /// Reads a value; None unless it lies completely in the linear part of the buffer.
    #[inline(always)]
    pub fn read<T: Copy>(self, offset: u32) -> Option<T> {
        // SAFETY: read at once.
        unsafe { self.peek(offset) }.copied()
    }

    /// Returns a reference to a header; None unless the header lies completely in the linear part
    /// of the buffer. If a complete header is copied, the compiler may copy it byte by byte.
    ///
    /// # Safety
    /// No helper that may move the packet is called while the reference is alive.
    #[inline(always)]
    pub unsafe fn peek<'a, T>(self, offset: u32) -> Option<&'a T> {
        let mut start = self.data();
        let mut bounded = (offset & MAX_OFFSET) as u64;
        // VERIFIER: the register that is bounds-checked must be the one that is read through.
        // Otherwise the compiler adds offset and length first, checks one register and reads
        // another (every kernel).
        // SAFETY: plain arithmetic on registers.
        unsafe {
            asm!(
                "{bounded} &= 0x7ff",
                "{start} += {bounded}",
                start = inout(reg) start,
                bounded = inout(reg) bounded,
            );
        }
        let _ = bounded;
        if start + size_of::<T>() > self.data_end() {
            return None;
        }
        // SAFETY: in bounds, checked above. Alignment is a formal promise: BPF programs may read
        // packets at any address on the architectures we run on, and an unaligned read would be
        // done byte by byte.
        Some(unsafe { &*(start as *const T) })
    }

    /// Reads a value from anywhere in the packet; None if it does not lie completely in the packet.
    #[inline(always)]
    pub fn load<T: Copy>(self, offset: u32) -> Option<T> {
        let mut value = MaybeUninit::<T>::uninit();
        // SAFETY: the helper writes all of `value` or fails.
        unsafe {
            let to = value.as_mut_ptr().cast();
            (helpers::bpf_skb_load_bytes(self.raw.cast(), offset, to, size_of::<T>() as u32) == 0)
                .then(|| value.assume_init())
        }
    }

    /// Writes a value. With `recompute` the device's sum over the packet is updated: needed where
    /// no checksum field inside the packet compensates the change.
    #[inline(always)]
    pub fn store<T: Copy>(
        self,
        offset: u32,
        value: &T,
        recompute: bool,
    ) -> Result<(), WriteFailed> {
        let flags = if recompute {
            aya_ebpf::bindings::BPF_F_RECOMPUTE_CSUM as u64
        } else {
            0
        };
        let from = core::ptr::from_ref(value).cast();
        // SAFETY: `value` is readable for its size.
        written(unsafe {
            helpers::bpf_skb_store_bytes(self.raw, offset, from, size_of::<T>() as u32, flags)
        })
    }

    /// Updates a checksum at `offset` for a change of what it covers from `old` to `new`.
    #[inline(always)]
    fn replace_checksum(
        self,
        offset: u32,
        old: u32,
        new: u32,
        flags: u64,
    ) -> Result<(), WriteFailed> {
        // SAFETY: no pointers.
        written(unsafe {
            helpers::bpf_l4_csum_replace(self.raw, offset, old as u64, new as u64, flags)
        })
    }
    /// Updates a TCP or UDP checksum at `offset` for a change of addresses. `difference` is the
    /// ones' complement sum of the new addresses minus the old ones.
    #[inline(always)]
    pub fn replace_checksum_address(
        self,
        offset: u32,
        difference: u32,
        flags: u64,
    ) -> Result<(), WriteFailed> {
        let flags = flags | aya_ebpf::bindings::BPF_F_PSEUDO_HDR as u64;
        self.replace_checksum(offset, 0, difference, flags)
    }
    /// Updates a TCP, UDP or ICMP checksum at `offset` for a change of a 32-bit word that it
    /// covers.
    #[inline(always)]
    pub fn replace_checksum_word(
        self,
        offset: u32,
        old: u32,
        new: u32,
        flags: u64,
    ) -> Result<(), WriteFailed> {
        self.replace_checksum(offset, old, new, flags | 4)
    }
    /// Updates a checksum at `offset` for changes whose sum is `difference`, see
    /// [`Self::replace_checksum_address`]; none of them is in a pseudo header.
    #[inline(always)]
    pub fn replace_checksum_sum(self, offset: u32, difference: u32) -> Result<(), WriteFailed> {
        self.replace_checksum(offset, 0, difference, 0)
    }

    /// Shortens or extends the packet to `len` bytes.
    #[inline(always)]
    pub fn set_len(self, len: u32) -> Result<(), WriteFailed> {
        // SAFETY: no pointers; no packet pointer is alive.
        written(unsafe { helpers::bpf_skb_change_tail(self.raw, len, 0) })
    }
    /// Inserts zeroed bytes between the link-layer header and the IP header.
    #[inline(always)]
    pub fn insert_before_ip(self, len: u32) -> Result<(), WriteFailed> {
        self.adjust(len as i32, 0)
    }
    /// Inserts zeroed bytes for an outer header, of which `own` follow UDP's. So the device does
    /// not take that for the header whose checksum it fills in.
    #[inline(always)]
    pub fn insert_outer(self, len: u32, own: u32, is_v4: bool) -> Result<(), WriteFailed> {
        let network = if is_v4 {
            bindings::BPF_F_ADJ_ROOM_ENCAP_L3_IPV4
        } else {
            bindings::BPF_F_ADJ_ROOM_ENCAP_L3_IPV6
        };
        // The kernel takes the own bytes for a link-layer header of the inner packet.
        let flags = (network | bindings::BPF_F_ADJ_ROOM_ENCAP_L4_UDP) as u64
            | (own as u64) << bindings::BPF_ADJ_ROOM_ENCAP_L2_SHIFT;
        self.adjust(len as i32, flags)
    }
    /// Removes so many bytes behind the link-layer header.
    #[inline(always)]
    pub fn remove_before_ip(self, len: u32) -> Result<(), WriteFailed> {
        self.adjust(-(len as i32), 0)
    }
    /// Puts so many zeroed bytes in front of a packet that has no link-layer header, as one.
    #[inline(always)]
    pub fn insert_link_layer(self, len: u32) -> Result<(), WriteFailed> {
        // SAFETY: no pointers; no packet pointer is alive.
        written(unsafe { helpers::bpf_skb_change_head(self.raw, len, 0) })
    }
    #[inline(always)]
    fn adjust(self, difference: i32, flags: u64) -> Result<(), WriteFailed> {
        const MAC: u32 = bindings::bpf_adj_room_mode::BPF_ADJ_ROOM_MAC;
        // SAFETY: no pointers; no packet pointer is alive.
        written(unsafe { helpers::bpf_skb_adjust_room(self.raw, difference, MAC, flags) })
    }
    /// Has the interface that the packet leaves by receive it; returns the action for the kernel.
    #[inline(always)]
    pub fn receive(self) -> i32 {
        let flags = bindings::BPF_F_INGRESS as u64;
        // SAFETY: no pointers.
        unsafe { helpers::bpf_redirect(self.interface(), flags) as i32 }
    }
    /// Sends the packet back out of the interface that it came in by; returns the action for the
    /// kernel.
    #[inline(always)]
    pub fn send_back(self) -> i32 {
        // SAFETY: no pointers.
        unsafe { helpers::bpf_redirect(self.interface(), 0) as i32 }
    }
}
