// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Sockets that the socket hooks have sent to a backend: the frontend that each asked for and the
//! backend that it got, so that answers and peer names show the service's address.
//!
//! A connected socket has one entry. A socket that sends single datagrams has two entries per
//! service: one under the frontend for what it sends, one under the backend for the answers. A list
//! joins them, so that they can be removed with the socket.
//!
//! A socket's first entry, CONNECTED or LIST, lies in the array `sock_buckets`, in the bucket that
//! the low bits of the cookie select. If another socket uses the bucket, the entry overflows to the
//! hash `sockets`, where all further entries are. The kernel counts cookies up, so an overflow is
//! rare, and a short connection changes no hash.

use crate::{Addr, BackendId, Port, Protocol, ServiceId, check};

/// The kernel's cookie of a socket, never used again; stored in halves, which need no padding.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(C)]
pub struct SocketCookie {
    pub low: u32,
    pub high: u32,
}

impl SocketCookie {
    #[inline(always)]
    pub const fn new(cookie: u64) -> Self {
        Self {
            low: cookie as u32,
            high: (cookie >> 32) as u32,
        }
    }
    /// Returns the index of the socket's element in `sock_buckets`.
    #[inline(always)]
    pub const fn bucket_index(self) -> u32 {
        self.low % SOCKET_BUCKETS
    }
    /// Returns the cookie as the 64-bit number that the kernel shows.
    #[inline(always)]
    pub const fn number(self) -> u64 {
        (self.high as u64) << 32 | self.low as u64
    }
}

/// Number of elements of `sock_buckets`.
pub const SOCKET_BUCKETS: u32 = 16_384;

/// What an entry of the socket maps is for.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct SocketRole(pub u8);

impl SocketRole {
    /// A connected socket. Address and port of the key are zero.
    pub const CONNECTED: Self = Self(1);
    /// Datagrams to a frontend, whose address and port are in the key.
    pub const FORWARD: Self = Self(2);
    /// Datagrams from a backend, whose address and port are in the key.
    pub const REVERSE: Self = Self(3);
    /// The head of the list of the socket's forward entries. Address and port of the key are zero.
    pub const LIST: Self = Self(4);

    pub const fn name(self) -> &'static str {
        match self {
            Self::CONNECTED => "connected",
            Self::FORWARD => "forward",
            Self::REVERSE => "reverse",
            Self::LIST => "list",
            _ => "?",
        }
    }
}

/// Key of the maps `sockets_v4` and `sockets_v6`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(C)]
pub struct SocketKey<A> {
    pub cookie: SocketCookie,
    pub address: A,
    pub port: Port,
    pub role: SocketRole,
    pub _pad: u8,
}

impl<A: Addr> SocketKey<A> {
    #[inline(always)]
    pub const fn new(cookie: SocketCookie, role: SocketRole, address: A, port: Port) -> Self {
        Self {
            cookie,
            address,
            port,
            role,
            _pad: 0,
        }
    }
    #[inline(always)]
    pub const fn connected(cookie: SocketCookie) -> Self {
        Self::new(cookie, SocketRole::CONNECTED, A::UNSPECIFIED, Port::ANY)
    }
    #[inline(always)]
    pub const fn list(cookie: SocketCookie) -> Self {
        Self::new(cookie, SocketRole::LIST, A::UNSPECIFIED, Port::ANY)
    }
    /// Whether the key's entry is its socket's first one, which may be in `sock_buckets`.
    #[inline(always)]
    pub const fn is_first(&self) -> bool {
        matches!(self.role, SocketRole::CONNECTED | SocketRole::LIST)
    }
}

/// Element of the arrays `sock_buckets_v4` and `sock_buckets_v6`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct SocketBucket<A: Addr> {
    /// The socket that uses the bucket: its cookie, with the role in the uppermost byte; 0 if the
    /// bucket is free. Claimed and released by compare and exchange.
    pub owner: u64,
    /// How many first entries of sockets with the same low bits are in `sockets`.
    pub overflow: u32,
    pub _pad: u32,
    pub entry: SocketEntry<A>,
}

impl<A: Addr> SocketBucket<A> {
    const ROLE_SHIFT: u32 = 56;

    /// Returns the word `owner` of a bucket with the first entry under this key. No kernel lives
    /// long enough to count 2^56 cookies.
    #[inline(always)]
    pub const fn owner_of(key: &SocketKey<A>) -> u64 {
        key.cookie.number() | (key.role.0 as u64) << Self::ROLE_SHIFT
    }
    /// Whether the socket with this cookie may have an entry; `owner` and `overflow` are those of
    /// its bucket.
    #[inline(always)]
    pub const fn may_know(owner: u64, overflow: u32, cookie: SocketCookie) -> bool {
        owner << (64 - Self::ROLE_SHIFT) == cookie.number() << (64 - Self::ROLE_SHIFT)
            || overflow != 0
    }
    /// Returns the key of the bucket's entry; None if the bucket is free.
    pub const fn key(&self) -> Option<SocketKey<A>> {
        if self.owner == 0 {
            return None;
        }
        let cookie = SocketCookie::new(self.owner & ((1 << Self::ROLE_SHIFT) - 1));
        let role = SocketRole((self.owner >> Self::ROLE_SHIFT) as u8);
        Some(SocketKey::new(cookie, role, A::UNSPECIFIED, Port::ANY))
    }
}

/// Value of the maps `sockets_v4` and `sockets_v6`. The check word `check` covers all fields but
/// `last_used`, because the kernel may reuse an element while it is read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct SocketEntry<A: Addr> {
    #[cfg(feature = "next-layout")]
    pub last_used: u64,
    pub check: u32,
    pub service: ServiceId,
    pub backend: BackendId,
    pub generation: u32,
    pub frontend: A,
    pub backend_address: A,
    /// List and forward entries: the frontend of the next forward entry in the socket's list.
    pub next: A,
    pub frontend_port: Port,
    pub backend_port: Port,
    /// Port of the frontend in `next`; [`Port::ANY`] ends the list.
    pub next_port: Port,
    pub protocol: Protocol,
    pub flags: u8,
    pub _pad: A::RecordPad,
    /// When the socket last used the entry.
    #[cfg(not(feature = "next-layout"))]
    pub last_used: u64,
}

impl<A: Addr> SocketEntry<A> {
    /// Flag: the socket is a node process's, not a pod's.
    pub const HOST: u8 = 1;
    /// Flag of a list entry: the packet path serves this socket, also after the setting has
    /// changed, so that its conversations keep their backends.
    pub const LEFT: u8 = 2;
    /// Flag of a connected entry: the policy drops what the node's socket sends. The packet mark
    /// alone does not say so, because processes set marks of their own.
    pub const DROPPED: u8 = 4;
    /// Flag next to [`Self::DROPPED`]: the process itself had set the drop bit in its socket's
    /// mark.
    pub const OWN_MARK: u8 = 8;
    /// Flag of forward and reverse entries: no service's, but a process's that has sent to the
    /// socket from a frontend's address and port, which are those of frontend and backend here.
    pub const PEER: u8 = 16;

    /// Returns an entry without a frontend or backend.
    #[inline(always)]
    pub fn empty(protocol: Protocol, flags: u8, now: u64) -> Self {
        Self {
            check: 0,
            service: ServiceId(0),
            backend: BackendId(0),
            generation: 0,
            frontend: A::UNSPECIFIED,
            backend_address: A::UNSPECIFIED,
            next: A::UNSPECIFIED,
            frontend_port: Port::ANY,
            backend_port: Port::ANY,
            next_port: Port::ANY,
            protocol,
            flags,
            _pad: A::RecordPad::default(),
            last_used: now,
        }
    }
    /// Whether this address and port are the frontend that the socket asked for.
    #[inline(always)]
    pub fn is_frontend(&self, address: A, port: Port) -> bool {
        self.frontend == address && self.frontend_port == port
    }
    /// Whether the socket answers a process that has a frontend's address and port.
    #[inline(always)]
    pub const fn is_peers(&self) -> bool {
        self.flags & Self::PEER != 0
    }
    /// Whether the backend is at this address and port.
    #[inline(always)]
    pub fn is_backend(&self, address: A, port: Port) -> bool {
        self.backend_address == address && self.backend_port == port
    }
    /// Returns the check word that this entry must have under `key`.
    #[inline(always)]
    pub fn check_for(&self, key: &SocketKey<A>) -> u32 {
        let ports = |high: Port, low: Port| (high.0 as u32) << 16 | low.0 as u32;
        let kinds = (key.role.0 as u32) << 16 | (self.protocol.0 as u32) << 8 | self.flags as u32;
        check::fold_check(
            self.frontend
                .mix(self.backend_address, 0x2b99_1d07)
                .wrapping_add(key.address.mix(self.next, 0x7a14_5c3f))
                .wrapping_add(check::mix(key.cookie.low, key.cookie.high, 0x4be9_80d1))
                .wrapping_add(check::mix(
                    ports(self.frontend_port, self.backend_port),
                    ports(key.port, self.next_port),
                    0x0f6b_22c5,
                ))
                .wrapping_add(check::mix(self.service.0, self.backend.0, 0x63d0_a4e9))
                .wrapping_add(check::mix(kinds, self.generation, 0x1c80_f7b3)),
        )
    }
    /// Sets the check word for `key`.
    #[inline(always)]
    pub fn seal(&mut self, key: &SocketKey<A>) {
        self.check = self.check_for(key);
    }
    #[inline(always)]
    pub fn is_whole(&self, key: &SocketKey<A>) -> bool {
        self.check == self.check_for(key)
    }
}

/// Maximum number of forward entries that are removed with their socket; further entries idle out.
pub const MAX_SERVICES_PER_SOCKET: u32 = 4096;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::V4;

    #[test]
    fn a_bucket_has_the_key_of_its_owner() {
        let cookie = SocketCookie::new(0x12_0000_0007);
        let key = SocketKey::<V4>::list(cookie);
        let mut bucket = SocketBucket {
            owner: 0,
            overflow: 0,
            _pad: 0,
            entry: SocketEntry::<V4>::empty(Protocol::UDP, 0, 5),
        };
        assert_eq!(bucket.key(), None);
        bucket.owner = SocketBucket::owner_of(&key);
        assert_eq!(bucket.key(), Some(key));
        let may_know =
            |cookie, overflow| SocketBucket::<V4>::may_know(bucket.owner, overflow, cookie);
        assert!(may_know(cookie, 0));
        let same_place = SocketCookie::new(cookie.number() + u64::from(SOCKET_BUCKETS));
        assert_eq!(same_place.bucket_index(), cookie.bucket_index());
        assert!(!may_know(same_place, 0));
        assert!(may_know(same_place, 1));
    }

    #[test]
    fn a_socket_entry_is_whole_only_under_its_own_key() {
        let cookie = SocketCookie::new(0x1_0000_0007);
        let key = SocketKey::<V4>::connected(cookie);
        let mut entry = SocketEntry::empty(Protocol::UDP, SocketEntry::<V4>::HOST, 5);
        assert!(!entry.is_whole(&key));
        entry.seal(&key);
        assert!(entry.is_whole(&key));
        let other = SocketKey::connected(SocketCookie::new(0x1_0000_0008));
        assert!(!entry.is_whole(&other));
        let mut later = entry;
        later.last_used = 6;
        assert!(later.is_whole(&key), "last_used is stored in place");
        later.generation = 1;
        assert!(!later.is_whole(&key));
    }
}
