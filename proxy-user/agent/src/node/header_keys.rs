// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The keys by which agents make and check the tokens of outer headers
//! (`proxy_common::carried`): read from the file that all agents have, once a second, because a
//! mounted Secret changes without notice.

use std::{fs, path::Path};

use control::object::Warning;
use proxy_common::carried::{KEYS, Key, is_key};

/// The keys in the file, and what was wrong with it when it was last read.
#[derive(Debug, Default)]
pub(super) struct HeaderKeys {
    /// The first one makes tokens, all are believed. They stay if the file goes or has a fault.
    pub(super) known: [Key; KEYS as usize],
    fault: Option<String>,
}

impl HeaderKeys {
    /// Reads the file, if one is configured; true if the keys or the fault have changed.
    pub(super) fn look(&mut self, file: Option<&Path>) -> bool {
        let Some(file) = file else {
            return false;
        };
        let read = fs::read_to_string(file).map_err(|error| error.to_string());
        let (known, fault) = match read.and_then(|text| parse(&text)) {
            Ok(keys) => (keys, None),
            Err(fault) => (self.known, Some(fault)),
        };
        let is_new = known != self.known || fault != self.fault;
        (self.known, self.fault) = (known, fault);
        is_new
    }

    /// Returns a warning about the file.
    pub(super) fn warning(&self, file: Option<&Path>) -> Option<Warning> {
        let (fault, file) = (self.fault.as_ref()?, file?);
        let meanwhile = if is_key(self.known[0]) {
            "the keys before stay in use"
        } else {
            "clients are masqueraded, and packets that come with an outer header are dropped"
        };
        Some(Warning {
            object: format!("portolan.clientAddressKeys {}", file.display()),
            reason: format!(
                "{fault}; {meanwhile}. Write one or two lines of 32 hexadecimal digits"
            ),
        })
    }
}

/// Reads one key a line, as 32 hexadecimal digits. The second one may be missing.
fn parse(text: &str) -> Result<[Key; KEYS as usize], String> {
    let mut keys = [[0; 2]; KEYS as usize];
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let mut count = 0;
    for (key, line) in keys.iter_mut().zip(&mut lines) {
        let is_plain = line.len() == 32 && line.bytes().all(|byte| byte.is_ascii_hexdigit());
        let number = u128::from_str_radix(line, 16).ok();
        let number = number.filter(|number| is_plain && *number != 0);
        // The line itself is a secret.
        let number = number.ok_or_else(|| format!("line {} is no key", count + 1))?;
        *key = [(number >> 64) as u64, number as u64];
        count += 1;
    }
    match (count, lines.next()) {
        (0, _) => Err("there is no key in it".to_owned()),
        (_, Some(_)) => Err(format!("there are more than {KEYS} keys in it")),
        _ => Ok(keys),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: &str = "00000000000000010000000000000002";
    const TWO: &str = "ffffffffffffffff0000000000000003";

    #[test]
    fn a_file_of_keys_has_one_or_two_of_them() {
        let both = [[1, 2], [u64::MAX, 3]];
        assert_eq!(parse(&format!("{ONE}\n{TWO}\n")), Ok(both));
        assert_eq!(parse(&format!("\n {ONE} \r\n")), Ok([[1, 2], [0, 0]]));
        for faulty in [
            String::new(),
            "secret".to_owned(),
            "0".repeat(32),
            ONE[1..].to_owned(),
            format!("+{}", &ONE[1..]),
            format!("{ONE}\nsecret"),
            format!("{ONE}\n{TWO}\n{ONE}"),
        ] {
            assert!(parse(&faulty).is_err(), "{faulty}");
        }
    }

    #[test]
    fn keys_stay_when_the_file_goes() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("keys");
        let mut keys = HeaderKeys::default();
        assert!(!keys.look(None));
        assert!(keys.look(Some(&file)) && !keys.look(Some(&file)));
        let masqueraded = keys.warning(Some(&file)).expect("a warning");
        assert!(masqueraded.reason.contains("clients are masqueraded"));
        fs::write(&file, ONE).expect("written");
        assert!(keys.look(Some(&file)));
        assert_eq!((keys.known[0], keys.warning(Some(&file))), ([1, 2], None));
        fs::remove_file(&file).expect("removed");
        assert!(keys.look(Some(&file)));
        let kept = keys.warning(Some(&file)).expect("a warning");
        assert!(keys.known[0] == [1, 2] && kept.reason.contains("stay in use"));
    }
}
