// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Names of the running kernel's functions by their addresses, from /proc/kallsyms. Called by
//! `portolan explain --follow` and `portolan trace --drops`.

use std::fs;

/// The kernel's functions, sorted by address.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct KernelFunctions(Vec<(u64, String)>);

impl KernelFunctions {
    /// Reads the functions; none if the kernel hides their addresses (`kernel.kptr_restrict`).
    pub fn read() -> Self {
        Self::parse(&fs::read_to_string("/proc/kallsyms").unwrap_or_default())
    }

    /// True if no function is known.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn parse(text: &str) -> Self {
        let mut functions: Vec<_> = text.lines().filter_map(function).collect();
        functions.sort();
        Self(functions)
    }

    /// Returns the name of the function that contains this address; the address itself in
    /// hexadecimal digits if it is not known.
    pub fn at(&self, address: u64) -> String {
        let behind = self.0.partition_point(|(start, _)| *start <= address);
        match behind.checked_sub(1).and_then(|place| self.0.get(place)) {
            Some((_, name)) => name.clone(),
            None => format!("{address:#x}"),
        }
    }
}

/// Reads a line: address, kind, name; perhaps a module. Only kinds `t` and `T` are code.
fn function(line: &str) -> Option<(u64, String)> {
    let mut words = line.split_whitespace();
    let address = u64::from_str_radix(words.next()?, 16).ok()?;
    let is_code = matches!(words.next()?, "t" | "T" | "w" | "W");
    (is_code && address != 0).then_some((address, words.next()?.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_belongs_to_the_last_function_that_begins_before_it() {
        let text = "0000000000000020 T later\n0000000000000010 t first [module]\n0000000000000018 d data\n0000000000000000 T hidden\n";
        let functions = KernelFunctions::parse(text);
        assert_eq!(functions.at(0x1f), "first");
        assert_eq!(functions.at(0x20), "later");
        assert_eq!(functions.at(0x0f), "0xf");
    }
}
