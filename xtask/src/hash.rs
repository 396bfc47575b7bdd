// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The digest by which releases, images and the cache name contents.

use sha2::{Digest, Sha256};

/// Returns the SHA-256 of the content in hexadecimal.
pub(crate) fn sha256(content: impl AsRef<[u8]>) -> String {
    let digest = Sha256::digest(content);
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}
