// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Changes programs of an ELF object so that every kernel refuses them, for tests of the agent.

/// The eBPF instruction that calls the helper function 9999, which does not exist.
const BROKEN: [u8; 8] = [0x85, 0, 0, 0, 0x0f, 0x27, 0, 0];

fn number(bytes: &[u8], at: usize, length: usize) -> usize {
    let bytes = &bytes[at..at + length];
    bytes
        .iter()
        .rev()
        .fold(0, |number, byte| number << 8 | usize::from(*byte))
}

/// Returns the offset of a program's first instruction in the ELF object.
fn first_instruction(object: &[u8], program: &str) -> usize {
    let sections = number(object, 0x28, 8);
    let field = |section: usize, at, length| number(object, sections + section * 64 + at, length);
    let offset = |section| field(section, 0x18, 8);
    let symbols = (0..number(object, 0x3c, 2))
        .find(|section| field(*section, 4, 4) == 2)
        .expect("a table of symbols");
    let names = offset(field(symbols, 0x28, 4));
    let count = field(symbols, 0x20, 8) / 24;
    let wanted = [program.as_bytes(), b"\0"].concat();
    let symbol = (0..count)
        .map(|symbol| offset(symbols) + symbol * 24)
        .find(|symbol| object[names + number(object, *symbol, 4)..].starts_with(&wanted))
        .expect("the program");
    offset(number(object, symbol + 6, 2)) + number(object, symbol + 8, 8)
}

/// Replaces one of a program's first instructions by one that every kernel refuses.
///
/// # Panics
/// If the object has no such program.
pub fn break_program(object: &mut [u8], program: &str) {
    const LOAD_ADDRESS: u8 = 0x18;
    const CALL: u8 = 0x85;
    let mut place = first_instruction(object, program);
    // Skips instructions that refer to maps and functions: the loader overwrites them.
    loop {
        match object[place] {
            LOAD_ADDRESS => place += 16,
            CALL => place += 8,
            _ => break,
        }
    }
    object[place..place + BROKEN.len()].copy_from_slice(&BROKEN);
}
