// SPDX-License-Identifier: (Apache-2.0 OR MIT) AND GPL-2.0-only
//! The `sockets` map: find, enter, take down. Hooks run in process context and are interrupted by the
//! packet path, so nothing here uses a per-CPU workspace.

use core::{arch::asm, mem::MaybeUninit, ptr::addr_of_mut};

use aya_ebpf::bindings::{BPF_ANY, BPF_EXIST, BPF_NOEXIST};
use proxy_common::{
    Addr, Port, SocketCookie, SocketEntry, SocketKey, SocketRole, flow::REFRESH_INTERVAL,
    socket::MAX_SERVICES_PER_SOCKET,
};

use crate::{family::Family, maps::SOCKET_FILTER, packet::access};

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
    let mut place = F::sockets().get_ptr_mut(key)?;
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

/// Enters an entry, or replaces what is there; `false` if the map is full.
#[inline(always)]
pub fn enter<F: Family>(key: &SocketKey<F::Addr>, entry: &mut SocketEntry<F::Addr>) -> bool {
    entry.check = F::socket_check_word(key, entry);
    F::sockets().insert(key, &*entry, BPF_ANY as u64).is_ok()
}

/// Enters a socket's first entry, CONNECTED or LIST, or replaces it; `false` if the map is full.
#[inline(always)]
pub fn enter_head<F: Family>(key: &SocketKey<F::Addr>, entry: &mut SocketEntry<F::Addr>) -> bool {
    entry.check = F::socket_check_word(key, entry);
    // Counted before anybody can look for it.
    count(&key.cookie, 1);
    if F::sockets()
        .insert(key, &*entry, BPF_NOEXIST as u64)
        .is_ok()
    {
        return true;
    }
    count(&key.cookie, -1);
    F::sockets().insert(key, &*entry, BPF_EXIST as u64).is_ok()
}

/// Removes such an entry if there is one.
#[inline(always)]
pub fn remove_head<F: Family>(key: &SocketKey<F::Addr>) {
    if F::sockets().remove(key).is_ok() {
        count(&key.cookie, -1);
    }
}

/// Whether anything may be known about a socket: no hash lookup for all the others.
#[inline(always)]
pub fn is_known(cookie: &SocketCookie) -> bool {
    SOCKET_FILTER
        .get(cookie.filter_index())
        .is_some_and(|count| *count != 0)
}

#[inline(always)]
fn count(cookie: &SocketCookie, by: i64) {
    if let Some(count) = SOCKET_FILTER.get_ptr_mut(cookie.filter_index()) {
        // SAFETY: a live element; the addition is one atomic instruction.
        unsafe {
            asm!("lock *(u32 *)({count} + 0) += {by}", count = in(reg) count, by = in(reg) by)
        };
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
