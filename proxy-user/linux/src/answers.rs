// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the kernel's answers mean: errors that say that something is not there, texts, numbers.
//! Used by most other files of this crate.

use std::io;

/// Returns the result of a call; None if it failed with one of these errors.
pub fn none_if<T>(errors: &[i32], result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Err(error) if is_one_of(errors, &error) => Ok(None),
        result => result.map(Some),
    }
}

pub(super) fn is_one_of(errors: &[i32], error: &io::Error) -> bool {
    error
        .raw_os_error()
        .is_some_and(|code| errors.contains(&code))
}

/// Decodes a text, which ends before its first zero byte.
pub fn text(bytes: &[u8]) -> String {
    let text = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(text).into_owned()
}

/// Decodes the number at this place; None if the bytes end before.
pub(super) fn word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes
        .get(at..)?
        .first_chunk()
        .map(|word| u32::from_ne_bytes(*word))
}
