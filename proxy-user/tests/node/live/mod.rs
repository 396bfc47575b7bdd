// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The live `portolan top` in a real terminal: the test sends keys through tmux and compares the
//! screens with stored pictures. The terminal must be as before, however the command ends.

use std::{
    fs::{self, File},
    io::Read,
    os::{fd::OwnedFd, unix::fs::PermissionsExt},
    path::PathBuf,
    process::Command,
    thread,
    time::Duration,
};

use nix::{
    fcntl::{FcntlArg, FdFlag, fcntl},
    sys::{
        signal::Signal,
        termios::{LocalFlags, tcgetattr},
    },
};

use crate::{
    agent::{send_signal, wait},
    connection::{answer_questions, asking},
    objects::{Service, questions},
    world::{BINARY, PATIENCE, World},
};

const RENEW: &str = "PORTOLAN_UPDATE_DOCS=1 cargo test -p proxy-user -p lab --test node live";
const LINES: u16 = 16;
/// The sequence that leaves the terminal's alternate screen.
const BACK: &str = "\x1b[?1049l";

/// A shell in a terminal of tmux; dropping the value ends the shell.
struct Tmux<'a> {
    world: &'a World,
    socket: PathBuf,
}

impl<'a> Tmux<'a> {
    fn new(world: &'a World, columns: u16) -> Self {
        let socket = world.folder().join(format!("tmux-{columns}"));
        let tmux = Self { world, socket };
        let size = [columns, LINES].map(|number| number.to_string());
        let new = ["-f", "/dev/null", "new-session", "-d"];
        let size = ["-x", &size[0], "-y", &size[1], "env PS1='$ ' sh"];
        tmux.run(&[&new[..], &size].concat());
        tmux
    }

    fn run(&self, arguments: &[&str]) -> String {
        let mut command = Command::new("tmux");
        command.env("TERM", "xterm").env("LANG", "C.UTF-8");
        command
            .arg("-u")
            .arg("-S")
            .arg(&self.socket)
            .args(arguments);
        let output = self.world.output(&mut command);
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        String::from_utf8(output.stdout).expect("text")
    }

    fn keys(&self, keys: &[&str]) {
        self.run(&[&["send-keys"], keys].concat());
    }

    /// The screen as text, without trailing blanks.
    fn screen(&self) -> String {
        let screen = self.run(&["capture-pane", "-p"]);
        let lines = screen.lines().map(|line| format!("{}\n", line.trim_end()));
        lines.collect()
    }

    /// Waits until `is_it` accepts the screen.
    fn wait(&self, what: &str, is_it: impl Fn(&str) -> bool) -> String {
        let mut screen = String::new();
        wait(
            PATIENCE / 10,
            what,
            || self.screen(),
            || {
                screen = self.screen();
                is_it(&screen)
            },
        );
        screen
    }

    /// Waits until the screen equals the stored picture.
    fn compare(&self, name: &str) {
        let file = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
            .join("tests/node/live")
            .join(format!("{name}.txt"));
        if std::env::var_os("PORTOLAN_UPDATE_DOCS").is_some() {
            // Waits until all rates are 0 again.
            thread::sleep(Duration::from_secs(2));
            fs::write(&file, self.screen()).expect("the picture");
        }
        let kept = fs::read_to_string(&file).unwrap_or_default();
        self.wait(
            &format!("not as {name}; if it is as it should be: {RENEW}\n{kept}"),
            |screen| screen == kept,
        );
    }
}

impl Drop for Tmux<'_> {
    fn drop(&mut self) {
        self.run(&["kill-server"]);
    }
}

/// Makes some packets pass and some be rejected on the node.
fn used(world: &World) {
    world.write("questions.yaml", questions());
    world.write(
        "nobodys.yaml",
        Service::new("nobodys", "172.30.1.2").alone(),
    );
    answer_questions(world.server());
}

fn pass_some(world: &World) {
    let socket = asking(world.client());
    for _ in 0..5 {
        socket.send(&[b'?'; 100]).expect("sent");
        socket.recv(&mut [0; 200]).expect("answered");
    }
    for _ in 0..3 {
        assert!(world.connect("172.30.1.2:80").is_err(), "it is rejected");
    }
}

#[test]
fn the_live_top_reacts_to_keys_and_restores_the_terminal() {
    let world = World::build();
    used(&world);
    // Pods' packets are translated one by one in this configuration.
    let _agent = world.start_configured(7, "portolan: {socketBalancing: host}");
    pass_some(&world);
    let script = world.path("top");
    let pins = world.pins().display();
    let text = format!("#!/bin/sh\nexec {BINARY} top --interval 0.3 --pin-dir {pins} \"$@\"\n");
    fs::write(&script, text).expect("a script");
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).expect("its mode");
    for columns in [80, 200] {
        let tmux = Tmux::new(&world, columns);
        tmux.wait("a prompt", |screen| screen.starts_with('$'));
        tmux.keys(&["-l", &script]);
        tmux.keys(&["Enter"]);
        tmux.compare(&format!("services-{columns}"));
        tmux.keys(&["b", "Right", "r"]);
        tmux.compare(&format!("backends-{columns}"));
        tmux.keys(&["Tab", "/", "n", "o", "b", "Enter"]);
        tmux.compare(&format!("reasons-{columns}"));
        tmux.keys(&["Tab", "p"]);
        tmux.wait("the programs", |screen| {
            screen.contains("[programs]") && screen.contains("NS/RUN") && screen.contains("paused")
        });
        tmux.keys(&["?"]);
        tmux.compare(&format!("help-{columns}"));
        tmux.keys(&["Escape"]);
        tmux.wait("back", |screen| screen.contains("NS/RUN"));
        tmux.run(&["resize-window", "-x", "60", "-y", "8"]);
        tmux.wait("the new size", |screen| {
            screen.lines().count() == 8 && screen.ends_with("q quit\n")
                || screen.contains("Tab table")
        });
        tmux.keys(&["q"]);
        tmux.wait("the shell again", |screen| {
            screen.trim_end().ends_with('$') && !screen.contains("Tab table")
        });
        tmux.keys(&["-l", "stty -a | grep -o ' icanon\\| echo ' | wc -l"]);
        tmux.keys(&["Enter"]);
        tmux.wait("lines are edited and echoed", |screen| {
            screen.lines().any(|line| line == "2")
        });
    }
}

/// A terminal of a given size, and the output of a command so far.
struct Terminal {
    master: File,
    slave: OwnedFd,
    shown: String,
}

impl Terminal {
    fn new() -> Self {
        let size = nix::pty::Winsize {
            ws_row: 24,
            ws_col: 100,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        let terminal = nix::pty::openpty(Some(&size), None).expect("a terminal");
        // Or the command would keep its own terminal from hanging up.
        let alone = FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC);
        fcntl(&terminal.master, alone).expect("a flag");
        Self {
            master: terminal.master.into(),
            slave: terminal.slave,
            shown: String::new(),
        }
    }
    /// Reads until the terminal has shown this text.
    fn wait(&mut self, text: &str) {
        let mut bytes = [0; 4096];
        while !self.shown.contains(text) {
            let read = self.master.read(&mut bytes).expect("more");
            self.shown
                .push_str(&String::from_utf8_lossy(&bytes[..read]));
        }
    }
    fn edits_lines(&self) -> bool {
        let flags = tcgetattr(&self.slave).expect("its modes").local_flags;
        flags.contains(LocalFlags::ICANON | LocalFlags::ECHO)
    }
}

#[test]
fn the_live_top_restores_the_terminal_on_a_signal_and_without_maps() {
    let world = World::build();
    used(&world);
    let agent = world.start(7);
    let start = |terminal: &Terminal| {
        let mut command = world.asking(&["top", "--interval", "0.2"]);
        command.env("TERM", "xterm").env("NO_COLOR", "1");
        let slave = || terminal.slave.try_clone().expect("the terminal");
        world.begin(command.stdin(slave()).stdout(slave()).stderr(slave()))
    };
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
        let mut terminal = Terminal::new();
        assert!(terminal.edits_lines());
        let mut child = start(&terminal);
        terminal.wait("[services]");
        assert!(!terminal.edits_lines(), "keys come one by one");
        send_signal(child.id(), signal).expect("sent");
        terminal.wait(BACK);
        assert!(child.wait().expect("it ends").success(), "{signal}");
        assert!(terminal.edits_lines(), "{signal}");
    }
    // The terminal hangs up, and no signal says so: a broken `kubectl exec`.
    let mut terminal = Terminal::new();
    let mut child = start(&terminal);
    terminal.wait("[services]");
    drop(terminal);
    let limit = Duration::from_secs(20);
    wait(limit, "it ends without its terminal", String::new, || {
        child.try_wait().expect("its state").is_some()
    });
    let mut terminal = Terminal::new();
    let mut child = start(&terminal);
    terminal.wait("[services]");
    assert!(agent.stop().success());
    assert!(
        world.cleanup(&[]).wait().expect("a cleanup").success(),
        "nothing is left"
    );
    terminal.wait("trying");
    send_signal(child.id(), Signal::SIGTERM).expect("sent");
    terminal.wait(BACK);
    assert!(child.wait().expect("it ends").success());
    assert!(terminal.edits_lines());
}
