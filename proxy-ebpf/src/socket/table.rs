// SPDX-License-Identifier: (Apache-2.0 OR MIT) AND GPL-2.0-only
//! The maps `sockets` and `sock_buckets`: find, enter, take down. Hooks run in process context and are interrupted by
//! the packet path, so nothing here uses a per-CPU workspace.

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

use crate::{family::Family, packet::access};

/// Room for a copy of an entry.
pub type Room<A> = MaybeUninit<SocketEntry<A>>;

/// A whole entry, copied, and where it lies.
pub struct Found<'a, A: Addr> {
    pub entry: &'a SocketEntry<A>,
    place: *mut SocketEntry<A>,
}

impl<A: Addr> Found<'_, A> {
    /// Notes a use, at most once a second.
    #[inline(always)]
    pub fn touch(&self, now: u64) {
        if now.wrapping_sub(self.entry.last_used) >= REFRESH_INTERVAL {
            // SAFETY: an aligned word of an element whose memory the kernel keeps; a single store.
            unsafe { addr_of_mut!((*self.place).last_used).write_volatile(now) };
        }
    }
}

/// Looks an entry up; one that was recycled under our hands is a miss.
#[inline(always)]
pub fn find<'a, F: Family>(
    key: &SocketKey<F::Addr>,
    room: &'a mut Room<F::Addr>,
) -> Option<Found<'a, F::Addr>> {
    let mut place = locate::<F>(key)?;
    // SAFETY: both are valid for an entry; the kernel keeps the element's memory.
    unsafe { core::ptr::copy_nonoverlapping(place, room.as_mut_ptr(), 1) };
    // What is checked is what is used: see `flow::find`.
    // SAFETY: a register is copied to itself; all memory counts as touched.
    unsafe { asm!("{place} = {place}", place = inout(reg) place) };
    // SAFETY: copied above; every bit pattern is valid.
    let entry = unsafe { room.assume_init_ref() };
    F::socket_check_word(key, entry)
        .eq(&entry.check)
        .then_some(Found { entry, place })
}

/// Whether there is an entry.
#[inline(always)]
pub fn is_entered<F: Family>(key: &SocketKey<F::Addr>) -> bool {
    locate::<F>(key).is_some()
}

/// Where the entry is, if there is one.
#[inline(always)]
fn locate<F: Family>(key: &SocketKey<F::Addr>) -> Option<*mut SocketEntry<F::Addr>> {
    if key.is_head() {
        let bucket = Bucket::of::<F>(key.cookie)?;
        if bucket.owner() == SocketBucket::owner_of(key) {
            return Some(bucket.entry());
        }
        if bucket.others() == 0 {
            return None;
        }
    }
    F::sockets().get_ptr_mut(key)
}

/// Enters an entry, or replaces what is there; `false` if the map is full.
#[inline(always)]
pub fn enter<F: Family>(key: &SocketKey<F::Addr>, entry: &mut SocketEntry<F::Addr>) -> bool {
    entry.check = F::socket_check_word(key, entry);
    F::sockets().insert(key, &*entry, BPF_ANY as u64).is_ok()
}

/// Enters a socket's first entry, CONNECTED or LIST, or replaces it; `false` if the map is full. The
/// kernel has the socket locked: no two do this for one socket at once.
#[inline(always)]
pub fn enter_head<F: Family>(key: &SocketKey<F::Addr>, entry: &mut SocketEntry<F::Addr>) -> bool {
    entry.check = F::socket_check_word(key, entry);
    let Some(bucket) = Bucket::of::<F>(key.cookie) else {
        return false;
    };
    let owner = SocketBucket::owner_of(key);
    let before = bucket.exchange(NOBODY, owner);
    if before == NOBODY || before == owner {
        // SAFETY: an element whose memory the kernel keeps; who reads meanwhile sees a check word that is wrong.
        unsafe { core::ptr::copy_nonoverlapping(entry, bucket.entry(), 1) };
        if before == NOBODY && bucket.others() != 0 {
            // The place was another's when this socket was entered the last time.
            leave_others::<F>(key, bucket);
        }
        return true;
    }
    // Counted before anybody can look for it.
    bucket.count_other(1);
    if F::sockets()
        .insert(key, &*entry, BPF_NOEXIST as u64)
        .is_ok()
    {
        return true;
    }
    bucket.count_other(-1);
    F::sockets().insert(key, &*entry, BPF_EXIST as u64).is_ok()
}

/// Removes such an entry if there is one.
#[inline(always)]
pub fn remove_head<F: Family>(key: &SocketKey<F::Addr>) {
    let Some(bucket) = Bucket::of::<F>(key.cookie) else {
        return;
    };
    let owner = SocketBucket::owner_of(key);
    if bucket.owner() == owner {
        bucket.exchange(owner, NOBODY);
    } else if bucket.others() != 0 {
        leave_others::<F>(key, bucket);
    }
}

#[inline(always)]
fn leave_others<F: Family>(key: &SocketKey<F::Addr>, bucket: Bucket<F::Addr>) {
    if F::sockets().remove(key).is_ok() {
        bucket.count_other(-1);
    }
}

/// Whether anything may be known about a socket: no hash lookup for all the others.
#[inline(always)]
pub fn is_known<F: Family>(cookie: SocketCookie) -> bool {
    Bucket::of::<F>(cookie).is_some_and(|bucket| {
        SocketBucket::<F::Addr>::tells_of(bucket.owner(), bucket.others(), cookie)
    })
}

/// An element of `sock_buckets`.
#[derive(Clone, Copy)]
struct Bucket<A: Addr>(*mut SocketBucket<A>);

/// Owner of an element that is free.
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
        // SAFETY: an aligned word of a live element; arrays keep theirs. So below.
        unsafe { addr_of!((*self.0).owner).read_volatile() }
    }
    #[inline(always)]
    fn others(self) -> u32 {
        // SAFETY: as above.
        unsafe { addr_of!((*self.0).others).read_volatile() }
    }
    #[inline(always)]
    fn entry(self) -> *mut SocketEntry<A> {
        // SAFETY: as above.
        unsafe { addr_of_mut!((*self.0).entry) }
    }
    /// Makes `to` the owner if `from` is; who was it before.
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
    fn count_other(self, by: i64) {
        // SAFETY: as above; the addition is one atomic instruction.
        unsafe {
            let others = addr_of_mut!((*self.0).others);
            asm!("lock *(u32 *)({others} + 0) += {by}", others = in(reg) others, by = in(reg) by);
        }
    }
}

#[inline(always)]
pub fn remove<F: Family>(key: &SocketKey<F::Addr>) {
    // Gone already is as good.
    let _ = F::sockets().remove(key);
}

/// Removes everything about a socket that is being closed.
#[inline(never)]
pub fn release<F: Family>(cookie: &SocketCookie, datagrams: bool) -> u32 {
    remove_head::<F>(&SocketKey::connected(*cookie));
    if datagrams {
        release_list::<F>(cookie);
    }
    0
}

#[inline(never)]
fn release_list<F: Family>(cookie: &SocketCookie) -> u32 {
    let key = SocketKey::list(*cookie);
    let mut room = Room::uninit();
    let Some(found) = find::<F>(&key, &mut room) else {
        return 0;
    };
    let mut list = List::<F> {
        cookie: *cookie,
        next: found.entry.next,
        next_port: found.entry.next_port,
    };
    remove_head::<F>(&key);
    access::repeat(MAX_SERVICES_PER_SOCKET, &mut list, take_down::<F>);
    0
}

struct List<F: Family> {
    cookie: SocketCookie,
    next: F::Addr,
    next_port: Port,
}

extern "C" fn take_down<F: Family>(_n: u64, list: &mut List<F>) -> u64 {
    const STOP: u64 = 1;
    let forward = SocketKey::new(list.cookie, SocketRole::FORWARD, list.next, list.next_port);
    let mut room = Room::uninit();
    let Some(found) = find::<F>(&forward, &mut room) else {
        return STOP;
    };
    let entry = found.entry;
    let reverse = SocketKey::new(
        list.cookie,
        SocketRole::REVERSE,
        entry.backend_address,
        entry.backend_port,
    );
    (list.next, list.next_port) = (entry.next, entry.next_port);
    remove::<F>(&reverse);
    remove::<F>(&forward);
    (list.next_port == Port::ANY) as u64
}
