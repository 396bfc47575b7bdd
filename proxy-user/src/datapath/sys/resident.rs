// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The resident memory of this process. Called by `agent` after work that comes once or seldom: a start, a great change.

use std::{fs, io, ops::Range};

/// Returns memory that such work has left behind: unused heap, and pages of the program and its libraries. A page that is used again
/// is mapped again, from the page cache.
pub fn release_memory() -> io::Result<()> {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes and returns plain integers; any thread may call it.
    unsafe {
        libc::malloc_trim(0);
    }
    let smaps = fs::read_to_string("/proc/self/smaps")?;
    let mut refused = None;
    for range in file_copies(&smaps) {
        // Cold first: else the kernel takes pages that the start has used for busy ones, and counts them as the pod's working set.
        for advice in [libc::MADV_COLD, libc::MADV_DONTNEED] {
            // SAFETY: the range is mapped read-only and private, and each of its pages is the file's own: whoever reads or
            // runs it next, on whatever thread, finds the same bytes.
            let result = unsafe { libc::madvise(range.start as *mut _, range.len(), advice) };
            if result != 0 {
                refused = Some(io::Error::last_os_error());
            }
        }
    }
    refused.map_or(Ok(()), Err)
}

/// The mappings whose pages all stand in a file as well, by `/proc/PID/smaps`: code and constants. Not those with pages of
/// their own, in memory or swapped out: addresses that the dynamic linker has filled in, break points. Nor what is locked.
fn file_copies(smaps: &str) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    let mut candidate = None;
    // Until the kernel says otherwise.
    let (mut own, mut swapped, mut locked) = (true, true, true);
    for line in smaps.lines() {
        let mut words = line.split_ascii_whitespace();
        let (Some(first), Some(second)) = (words.next(), words.next()) else {
            continue;
        };
        match first {
            "Anonymous:" => own = second != "0",
            "Swap:" => swapped = second != "0",
            "Locked:" => locked = second != "0",
            // The last line of each mapping.
            "VmFlags:" => {
                found.extend(candidate.take().filter(|_| !own && !swapped && !locked));
                (own, swapped, locked) = (true, true, true);
            }
            _ if !first.ends_with(':') => {
                let permissions = second.as_bytes();
                let inode = words.nth(2);
                let is_file = inode.is_some_and(|inode| inode != "0");
                let is_copy = !permissions.contains(&b'w') && permissions.ends_with(b"p");
                candidate = range(first).filter(|_| is_file && is_copy);
            }
            _ => {}
        }
    }
    found
}

fn range(text: &str) -> Option<Range<usize>> {
    let (start, end) = text.split_once('-')?;
    let number = |text| usize::from_str_radix(text, 16).ok();
    Some(number(start)?..number(end)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As the kernel writes them, most lines left out.
    const SMAPS: &str = "\
1000-3000 r-xp 00ade000 fe:00 6004752                    /portolan
Rss:                   8 kB
Anonymous:             0 kB
Swap:                  0 kB
Locked:                0 kB
VmFlags: rd ex mr mw me sd
3000-4000 r--p 01cba000 fe:00 6004752                    /portolan
Anonymous:             4 kB
Swap:                  0 kB
Locked:                0 kB
VmFlags: rd mr mw me ac sd
4000-5000 rw-p 01d4a000 fe:00 6004752                    /portolan
Anonymous:             0 kB
Swap:                  0 kB
Locked:                0 kB
VmFlags: rd wr mr mw me ac sd
5000-6000 r--p 00000000 00:00 0
Anonymous:             0 kB
Swap:                  0 kB
Locked:                0 kB
VmFlags: rd mr mw me sd
6000-7000 r--s 00001000 00:10 1038                       anon_inode:bpf-map
Anonymous:             0 kB
Swap:                  0 kB
Locked:                0 kB
VmFlags: rd mr me ms sd
7000-8000 r--p 00000000 fe:00 326269                     /a file (deleted)
Anonymous:             0 kB
Swap:                  0 kB
Locked:                4 kB
VmFlags: rd mr mw me lo sd
7800-7c00 r--p 00000000 fe:00 326268                     /libm.so.6
Anonymous:             0 kB
Swap:                  4 kB
Locked:                0 kB
VmFlags: rd mr mw me ac sd
8000-9000 r--p 00000000 fe:00 326269                     /libc.so.6
Anonymous:             0 kB
Swap:                  0 kB
Locked:                0 kB
VmFlags: rd mr mw me sd
";

    #[test]
    fn only_what_stands_in_a_file_unchanged_is_given_back() {
        let expected = [0x1000..0x3000, 0x8000..0x9000];
        assert_eq!(file_copies(SMAPS), expected);
        // Cut off anywhere, it does not take more.
        for end in 0..SMAPS.len() {
            let found = file_copies(&SMAPS[..end]);
            assert!(expected.starts_with(&found), "{found:x?} of {end} bytes");
        }
    }

    /// What the kernel has mapped of the files.
    fn resident() -> usize {
        let smaps = fs::read_to_string("/proc/self/smaps").expect("smaps");
        let copies = file_copies(&smaps);
        let mut counts = false;
        let mut sum = 0;
        for line in smaps.lines() {
            let first = line.split_ascii_whitespace().next().unwrap_or_default();
            if let Some(range) = range(first) {
                counts = copies.contains(&range);
            } else if first == "Rss:" && counts {
                let kib = line.split_ascii_whitespace().nth(1);
                sum += kib
                    .and_then(|kib| kib.parse::<usize>().ok())
                    .expect("a number");
            }
        }
        sum
    }

    #[test]
    fn pages_of_the_program_are_given_back_and_come_again() {
        // All of the program: more than is in use.
        let smaps = fs::read_to_string("/proc/self/smaps").expect("smaps");
        for range in file_copies(&smaps) {
            for page in range.step_by(4096) {
                // SAFETY: it is mapped, and nothing writes it.
                unsafe { (page as *const u8).read_volatile() };
            }
        }
        let before = resident();
        release_memory().expect("advice that the kernel knows");
        let after = resident();
        assert!(after < before * 3 / 4, "{after} of {before} KiB");
    }
}
