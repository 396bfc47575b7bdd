// SPDX-License-Identifier: (Apache-2.0 OR MIT) AND GPL-2.0-only
//! The maps `sockets` and `sock_buckets`: finds, enters and removes entries of sockets. Hooks run
//! in process context and are interrupted by the packet path, so nothing here uses a per-CPU
//! workspace.

use core::{
    arch::asm,
    mem::MaybeUninit,
    ptr::{addr_of, addr_of_mut},
};

use aya_ebpf::bindings::{BPF_ANY, BPF_EXIST, BPF_NOEXIST};
use proxy_common::{
    Addr, Port, SocketBucket, SocketCookie, SocketEntry, SocketKey, SocketRole,
    flow::REFRESH_INTERVAL, socket::MAX_SERVICES_PER_SOCKET,
};

use crate::{family::Family, helpers};

/// A buffer for a copy of one socket entry.
pub type EntryBuffer<A> = MaybeUninit<SocketEntry<A>>;

/// A copy of a socket entry, and the entry's element in the map.
pub struct Found<'a, A: Addr> {
    pub entry: &'a SocketEntry<A>,
    element: *mut SocketEntry<A>,
}

impl<A: Addr> Found<'_, A> {
    /// Notes in the entry that it is used, at most once a second.
    #[inline(always)]
    pub fn touch(&self, now: u64) {
        if now.wrapping_sub(self.entry.last_used) >= REFRESH_INTERVAL {
            // SAFETY: an aligned word of an element whose memory the kernel keeps; a single store.
            unsafe { addr_of_mut!((*self.element).last_used).write_volatile(now) };
        }
    }
}

/// Looks an entry up and copies it to `buffer`. None if no entry has this key, or if the kernel
/// reused the element during the copy.
#[inline(always)]
pub fn find<'a, F: Family>(
    key: &SocketKey<F::Addr>,
    buffer: &'a mut EntryBuffer<F::Addr>,
) -> Option<Found<'a, F::Addr>> {
    let element = locate::<F>(key)?;
    // SAFETY: the kernel keeps the element's memory; every bit pattern is valid.
    let (entry, element) = unsafe { helpers::copy(element, buffer) };
    F::socket_check(key, entry)
        .eq(&entry.check)
        .then_some(Found { entry, element })
}

/// Returns the element that has the entry with this key; None if there is no entry.
#[inline(always)]
pub fn locate<F: Family>(key: &SocketKey<F::Addr>) -> Option<*mut SocketEntry<F::Addr>> {
    if key.is_first() {
        let bucket = Bucket::of::<F>(key.cookie)?;
        if bucket.owner() == SocketBucket::owner_of(key) {
            return Some(bucket.entry());
        }
        if bucket.overflow() == 0 {
            return None;
        }
    }
    F::sockets().get_ptr_mut(key)
}

/// Enters an entry into the map `sockets`, or replaces the entry with the same key; `false` if the
/// map is full.
#[inline(always)]
pub fn enter<F: Family>(key: &SocketKey<F::Addr>, entry: &mut SocketEntry<F::Addr>) -> bool {
    entry.check = F::socket_check(key, entry);
    F::sockets().insert(key, &*entry, BPF_ANY as u64).is_ok()
}

/// Enters a socket's first entry, CONNECTED or LIST, or replaces it; `false` if the map `sockets`
/// is full. The kernel has locked the socket, so this does not run twice at once for one socket.
#[inline(always)]
pub fn enter_first<F: Family>(key: &SocketKey<F::Addr>, entry: &mut SocketEntry<F::Addr>) -> bool {
    entry.check = F::socket_check(key, entry);
    let Some(bucket) = Bucket::of::<F>(key.cookie) else {
        return false;
    };
    let owner = SocketBucket::owner_of(key);
    let before = bucket.exchange(NOBODY, owner);
    if before == NOBODY || before == owner {
        // SAFETY: an element whose memory the kernel keeps; a concurrent reader sees a wrong check
        // word.
        unsafe { core::ptr::copy_nonoverlapping(entry, bucket.entry(), 1) };
        if before == NOBODY && bucket.overflow() != 0 {
            // Another socket used the bucket when this socket's entry was entered last.
            remove_overflow::<F>(key, bucket);
        }
        return true;
    }
    // The overflow is counted before the entry can be found.
    bucket.count_overflow(1);
    if F::sockets()
        .insert(key, &*entry, BPF_NOEXIST as u64)
        .is_ok()
    {
        return true;
    }
    bucket.count_overflow(-1);
    F::sockets().insert(key, &*entry, BPF_EXIST as u64).is_ok()
}

#[inline(always)]
pub fn remove_first<F: Family>(key: &SocketKey<F::Addr>) {
    let Some(bucket) = Bucket::of::<F>(key.cookie) else {
        return;
    };
    let owner = SocketBucket::owner_of(key);
    if bucket.owner() == owner {
        bucket.exchange(owner, NOBODY);
    } else if bucket.overflow() != 0 {
        remove_overflow::<F>(key, bucket);
    }
}

#[inline(always)]
fn remove_overflow<F: Family>(key: &SocketKey<F::Addr>, bucket: Bucket<F::Addr>) {
    if F::sockets().remove(key).is_ok() {
        bucket.count_overflow(-1);
    }
}

/// Whether the maps may have entries of this socket: a check without a hash look-up.
#[inline(always)]
pub fn is_known<F: Family>(cookie: SocketCookie) -> bool {
    Bucket::of::<F>(cookie).is_some_and(|bucket| {
        SocketBucket::<F::Addr>::may_know(bucket.owner(), bucket.overflow(), cookie)
    })
}

/// An element of `sock_buckets`.
#[derive(Clone, Copy)]
struct Bucket<A: Addr>(*mut SocketBucket<A>);

/// The owner word of a free element.
const NOBODY: u64 = 0;

impl<A: Addr> Bucket<A> {
    #[inline(always)]
    fn of<F: Family<Addr = A>>(cookie: SocketCookie) -> Option<Self> {
        F::socket_buckets()
            .get_ptr_mut(cookie.bucket_index())
            .map(Self)
    }
    #[inline(always)]
    fn owner(self) -> u64 {
        // SAFETY: an aligned word of an element that exists: arrays keep theirs. The same holds
        // below.
        unsafe { addr_of!((*self.0).owner).read_volatile() }
    }
    #[inline(always)]
    fn overflow(self) -> u32 {
        // SAFETY: as above.
        unsafe { addr_of!((*self.0).overflow).read_volatile() }
    }
    #[inline(always)]
    fn entry(self) -> *mut SocketEntry<A> {
        // SAFETY: as above.
        unsafe { addr_of_mut!((*self.0).entry) }
    }
    /// Makes `to` the bucket's owner if `from` is; returns the owner before that.
    #[inline(always)]
    fn exchange(self, from: u64, to: u64) -> u64 {
        let owner = self.0;
        let before;
        // SAFETY: the owner is the first field; one atomic instruction.
        unsafe {
            asm!("r0 = cmpxchg_64({owner} + 0, r0, {to})", owner = in(reg) owner, to = in(reg) to, inout("r0") from => before);
        }
        before
    }
    #[inline(always)]
    fn count_overflow(self, by: i64) {
        // SAFETY: as above; the addition is one atomic instruction.
        unsafe {
            let overflow = addr_of_mut!((*self.0).overflow);
            asm!("lock *(u32 *)({overflow} + 0) += {by}", overflow = in(reg) overflow, by = in(reg) by);
        }
    }
}

/// Returns the key by which the answers of an entry's backend are found.
#[inline(always)]
pub fn reverse_key<A: Addr>(cookie: &SocketCookie, entry: &SocketEntry<A>) -> SocketKey<A> {
    SocketKey::new(
        *cookie,
        SocketRole::REVERSE,
        entry.backend_address,
        entry.backend_port,
    )
}

#[inline(always)]
pub fn remove<F: Family>(key: &SocketKey<F::Addr>) {
    // The entry may have been removed already.
    let _ = F::sockets().remove(key);
}

/// Removes all entries of a socket that is being closed; `datagrams`: it is a UDP socket. The
/// returned 0 has no meaning.
#[inline(never)]
pub fn release<F: Family>(cookie: &SocketCookie, datagrams: bool) -> u32 {
    remove_first::<F>(&SocketKey::connected(*cookie));
    if datagrams {
        release_list::<F>(cookie);
    }
    0
}

#[inline(never)]
fn release_list<F: Family>(cookie: &SocketCookie) -> u32 {
    let key = SocketKey::list(*cookie);
    let mut buffer = EntryBuffer::uninit();
    let Some(found) = find::<F>(&key, &mut buffer) else {
        return 0;
    };
    let mut list = List::<F> {
        cookie: *cookie,
        next: found.entry.next,
        next_port: found.entry.next_port,
    };
    remove_first::<F>(&key);
    helpers::repeat(MAX_SERVICES_PER_SOCKET, &mut list, remove_pair::<F>);
    0
}

struct List<F: Family> {
    cookie: SocketCookie,
    next: F::Addr,
    next_port: Port,
}

extern "C" fn remove_pair<F: Family>(_n: u64, list: &mut List<F>) -> u64 {
    let forward = SocketKey::new(list.cookie, SocketRole::FORWARD, list.next, list.next_port);
    let mut buffer = EntryBuffer::uninit();
    let Some(found) = find::<F>(&forward, &mut buffer) else {
        return helpers::STOP;
    };
    let entry = found.entry;
    let reverse = reverse_key(&list.cookie, entry);
    (list.next, list.next_port) = (entry.next, entry.next_port);
    remove::<F>(&reverse);
    remove::<F>(&forward);
    (list.next_port == Port::ANY) as u64
}
