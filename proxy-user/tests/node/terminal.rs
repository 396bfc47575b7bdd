// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The command line with a user at a terminal and with a script's pipes: bad input, readers that
//! close, terminals, completions.

use std::{
    fs::{self, File},
    io::{BufRead, BufReader, Read},
    process::{Command, Stdio},
};

use control::testing::rows;

use crate::world::{BINARY, CART, World};

/// Input that is refused: the arguments, the status, and what is said about it. The unit tests of
/// the command line have what needs no node.
const REFUSED: &str = include_str!("bad_input.txt");

/// Bad arguments exit with 2, unknown names with 1.
pub(crate) fn bad_input_is_named(world: &World) {
    for [line, status, named] in rows(REFUSED) {
        let (code, said) = world.refused(&line);
        assert_eq!(code, status.parse().ok(), "{line}: {said}");
        // Errors of the command line are clap's.
        let is_named = ["portolan: ", "error: "].map(|start| said.starts_with(start));
        let is_known = code == Some(1) || is_named.contains(&true);
        assert!(is_known, "{line}: {said}");
        assert!(said.contains(&*named), "{line}: {said}");
    }
}

/// A reader that closes the pipe is no error, also in the middle of a watch.
pub(crate) fn a_closed_pipe_is_no_error(world: &World) {
    for (words, is_watch) in [
        ("services --watch --interval 0.1", true),
        ("services -o json --watch --interval 0.1", true),
        ("top --watch --interval 0.1", true),
        ("explain --from node --to 172.30.1.1:80", false),
        ("cleanup --dry-run", false),
    ] {
        let mut command = world.asking(words);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = world.begin(&mut command);
        let mut lines = BufReader::new(child.stdout.take().expect("its output"));
        let mut line = String::new();
        if is_watch {
            lines.read_line(&mut line).expect("a line");
        }
        drop(lines);
        let output = child.wait_with_output().expect("it ends");
        assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{words}");
        assert!(!is_watch || output.status.success(), "{words}: {line}");
    }
}

/// The output of a command on a terminal with this number of columns.
fn at_terminal(world: &World, columns: u16, variable: (&str, &str), line: &str) -> String {
    let size = nix::pty::Winsize {
        ws_row: 40,
        ws_col: columns,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    let terminal = nix::pty::openpty(Some(&size), None).expect("a terminal");
    let mut command = world.asking(line);
    command.env("TERM", "xterm").env_remove("NO_COLOR");
    command.env(variable.0, variable.1).stdout(terminal.slave);
    let status = world.node().enter(|| command.status());
    assert!(status.expect("the node").expect("it runs").success());
    // Closes the command's end of the terminal; only this end is left.
    drop(command);
    let mut shown = Vec::new();
    // Reading fails once the other end of the terminal is closed.
    _ = File::from(terminal.master).read_to_end(&mut shown);
    String::from_utf8(shown).expect("text").replace('\r', "")
}

/// Tables fit the terminal, and only a terminal gets colours.
pub(crate) fn tables_fit_the_terminal(world: &World) {
    let _open = world.connect(CART).expect("served");
    let plain = ("NO_COLOR", "1");
    let [narrow, status] = ["flows", "status"].map(|one| at_terminal(world, 80, plain, one));
    let fits = |line: &str| line.chars().count() <= 80;
    assert!(narrow.lines().all(fits), "{narrow}");
    assert!(status.lines().all(fits), "{status}");
    assert!(narrow.starts_with("SERVICE "), "{narrow}");
    assert!(!narrow.contains("SEEN-AS"), "{narrow}");
    let wide = at_terminal(world, 200, plain, "flows");
    assert!(wide.contains("SEEN-AS") && wide.contains("IDLE"), "{wide}");
    assert!(!wide.contains('\x1b'), "{wide}");
    let coloured = at_terminal(world, 200, ("COLORTERM", ""), "flows");
    let established = "\x1b[32mestablished\x1b[0m";
    assert!(coloured.contains(established), "{coloured}");
    assert!(!world.told("flows").contains('\x1b'), "no terminal");
}

#[test]
fn the_bash_completion_script_completes_a_command() {
    let output = Command::new(BINARY).args(["completions", "bash"]).output();
    let script = output.expect("it runs").stdout;
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("portolan");
    fs::write(&file, &script).expect("a file");
    let line = "source \"$0\"; COMP_WORDS=(portolan af); COMP_CWORD=1; _portolan portolan af portolan; echo \"${COMPREPLY[@]}\"";
    let mut bash = Command::new("bash");
    let bash = bash.args(["-c", line]).arg(&file).output();
    let bash = bash.expect("bash");
    assert_eq!(String::from_utf8_lossy(&bash.stdout).trim(), "affinity");
}
