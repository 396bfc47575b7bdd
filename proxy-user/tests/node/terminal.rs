// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The command line with a user at a terminal and with a script's pipes: bad input, readers that
//! close, terminals, completions.

use std::{
    fs::{self, File},
    io::{BufRead, BufReader, Read},
    process::{Child, Command, Stdio},
};

use crate::{
    attachments::CART,
    objects::service,
    world::{BINARY, World},
};

#[test]
fn bad_arguments_exit_with_2_and_unknown_names_with_1() {
    let world = World::build();
    // The unit tests of the command line have every argument.
    for wrong in [
        &["services", "-o", "xml"][..],
        &["services", "--sort-by", "colour"],
        &["cleanup", "--nonsense"],
        &["dump"],
        &["dump", "/nonexistent/x.tar.gz"],
        &["config", "--config", "/nonexistent"],
        &["init", "--config", "/nonexistent"],
    ] {
        let (code, said) = world.refused(wrong);
        assert_eq!(code, Some(2), "{wrong:?}: {said}");
        // Errors of the command line are clap's.
        let starts = ["portolan: ", "error: "];
        assert!(starts.iter().any(|start| said.starts_with(start)), "{said}");
    }
    // No agent has run on this node, which is no fault of the arguments.
    let (code, said) = world.refused(&["services"]);
    assert_eq!(code, Some(1), "{said}");
    let _agent = world.start(7);
    for (wrong, expected) in [
        ("flows --service nope", "no service \"nope\""),
        ("sockets --service a/b", "no service \"a/b\""),
        ("maps nosuch", "no map's name contains \"nosuch\""),
        ("config nosuch", "no setting's key contains \"nosuch\""),
        ("counters nosuch", "no counter's name contains \"nosuch\""),
        (
            "flows shop/nosuch",
            "no service \"nosuch\" in the namespace shop is served here",
        ),
    ] {
        let (code, said) = world.refused(&wrong.split(' ').collect::<Vec<_>>());
        assert_eq!(code, Some(1), "{wrong}: {said}");
        assert!(said.contains(expected), "{said}");
    }
}

/// Starts a command with pipes as its output and error output.
fn piped(world: &World, arguments: &[&str]) -> Child {
    let mut command = world.asking(arguments);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = world.node().enter(|| command.spawn());
    child.expect("the node").expect("it runs")
}

#[test]
fn list_watch_exits_with_0_if_its_reader_closes_the_pipe() {
    let world = World::build();
    let many = (1..=60).map(|n| service(&format!("s{n:02}"), &format!("172.30.1.{n}")));
    world.write("many.yaml", many.collect::<Vec<_>>().join("---\n"));
    let _agent = world.start(7);
    for arguments in [
        &["services", "--watch", "--interval", "0.1"][..],
        &["services", "-o", "json", "--watch", "--interval", "0.1"],
        &["top", "--watch", "--interval", "0.1"],
    ] {
        let mut child = piped(&world, arguments);
        let mut line = String::new();
        let mut lines = BufReader::new(child.stdout.take().expect("its output"));
        lines.read_line(&mut line).expect("a line");
        drop(lines);
        let output = child.wait_with_output().expect("it ends");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(
            (output.status.code(), said.as_str()),
            (Some(0), ""),
            "{line}"
        );
    }
}

#[test]
fn a_closed_output_pipe_prints_no_error() {
    let world = World::build();
    world.write("one.yaml", service("s01", "172.30.1.1"));
    let _agent = world.start(7);
    let question = ["--from", "node", "--to", "172.30.1.1:80"];
    for arguments in [
        &[&["explain"], &question[..]].concat()[..],
        &["cleanup", "--dry-run"],
        &["top"],
    ] {
        let mut child = piped(&world, arguments);
        drop(child.stdout.take());
        let output = child.wait_with_output().expect("it ends");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(said, "", "{arguments:?}");
    }
}

/// The output of a command on a terminal with this number of columns.
fn at_terminal(world: &World, columns: u16, variable: (&str, &str), arguments: &[&str]) -> String {
    let size = nix::pty::Winsize {
        ws_row: 40,
        ws_col: columns,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    let terminal = nix::pty::openpty(Some(&size), None).expect("a terminal");
    let mut command = world.asking(arguments);
    command
        .env("TERM", "xterm")
        .env_remove("NO_COLOR")
        .env(variable.0, variable.1);
    command.stdout(terminal.slave);
    let status = world.node().enter(|| command.status());
    assert!(status.expect("the node").expect("it runs").success());
    // Closes the command's end of the terminal; only this end is left.
    drop(command);
    let mut shown = Vec::new();
    // Reading fails once the other end of the terminal is closed.
    _ = File::from(terminal.master).read_to_end(&mut shown);
    String::from_utf8(shown).expect("text").replace('\r', "")
}

#[test]
fn tables_fit_the_terminal_and_only_a_terminal_gets_colours() {
    let world = World::build();
    world.write("cart.yaml", service("cart", "172.30.1.1"));
    let _agent = world.start(7);
    let _open = world.connect(CART).expect("served");
    let plain = ("NO_COLOR", "1");
    for command in ["flows", "status"] {
        let shown = at_terminal(&world, 80, plain, &[command]);
        let fits = |line: &str| line.chars().count() <= 80;
        assert!(shown.lines().all(fits), "{shown}");
    }
    let narrow = at_terminal(&world, 80, plain, &["flows"]);
    assert!(narrow.starts_with("SERVICE "), "{narrow}");
    assert!(!narrow.contains("SEEN-AS"), "{narrow}");
    let wide = at_terminal(&world, 200, plain, &["flows"]);
    assert!(wide.contains("SEEN-AS") && wide.contains("IDLE"), "{wide}");
    assert!(!wide.contains('\x1b'), "{wide}");
    let coloured = at_terminal(&world, 200, ("COLORTERM", ""), &["flows"]);
    let established = "\x1b[32mestablished\x1b[0m";
    assert!(coloured.contains(established), "{coloured}");
    assert!(!world.told(&["flows"]).contains('\x1b'), "no terminal");
}

#[test]
fn the_bash_completion_script_completes_a_command() {
    let output = Command::new(BINARY).args(["completions", "bash"]).output();
    let script = output.expect("it runs").stdout;
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("portolan");
    fs::write(&file, &script).expect("a file");
    let line = "source \"$0\"; COMP_WORDS=(portolan af); COMP_CWORD=1; _portolan portolan af portolan; echo \"${COMPREPLY[@]}\"";
    let bash = Command::new("bash")
        .args(["-c", line])
        .arg(&file)
        .output()
        .expect("bash");
    assert_eq!(String::from_utf8_lossy(&bash.stdout).trim(), "affinity");
}
