// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Patterns for interface and other names in the configuration: `*` matches any characters (also
//! `/`), `?` matches one. Called by `interfaces` and `agent`.

/// True if a name matches a pattern.
pub fn matches(pattern: &str, name: &str) -> bool {
    matches_bytes(pattern.as_bytes(), name.as_bytes())
}

fn matches_bytes(pattern: &[u8], name: &[u8]) -> bool {
    match (pattern.split_first(), name.split_first()) {
        (None, None) => true,
        (Some((b'*', rest)), _) => {
            matches_bytes(rest, name)
                || name
                    .split_first()
                    .is_some_and(|(_, name)| matches_bytes(pattern, name))
        }
        (Some((b'?', pattern)), Some((_, name))) => matches_bytes(pattern, name),
        (Some((a, pattern)), Some((b, name))) => a == b && matches_bytes(pattern, name),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn glob_patterns_match_whole_names() {
        for (pattern, name, yes) in [
            ("*", "", true),
            ("eth?", "eth0", true),
            ("eth?", "eth", false),
            ("kubepods*/mesh-*", "kubepods.slice/burstable/mesh-7", true),
            ("kubepods*/mesh-*", "kubepods.slice/other", false),
        ] {
            assert_eq!(matches(pattern, name), yes, "{pattern} {name}");
        }
    }
}
