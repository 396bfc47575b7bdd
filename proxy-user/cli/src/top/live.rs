// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The live `top`: reads keys and maps, and draws the screen until the command ends. Restores the
//! terminal however the command ends.

use std::{
    io::{self, IsTerminal},
    os::fd::AsFd,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use control::causes::chain;
use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
};
use ratatui::{
    DefaultTerminal,
    crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers},
};

use super::{
    TopArgs,
    looks::{Looks, Sample},
    programs,
    screen::{State, draw},
    view::{Key, View},
};
use crate::{signals::Stop, terminal::Page};

/// How long a signal may stay unnoticed.
const TURN: Duration = Duration::from_millis(100);

/// The terminal in raw mode, without line editing. Dropping this restores its earlier content.
struct RawTerminal(DefaultTerminal);

impl RawTerminal {
    fn new() -> Result<Self> {
        // From here on, a panic also restores the terminal before its message is printed.
        let terminal = ratatui::try_init().context("take the terminal over")?;
        Ok(Self(terminal))
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        // A terminal that is closed needs no restoring.
        _ = ratatui::try_restore();
    }
}

/// Shows the live screen until a key or a signal ends the command.
pub(super) fn run(args: &TopArgs, mut view: View, interval: Duration) -> Result<()> {
    // The kernel measures the run times of programs as long as this value exists.
    let measuring = programs::measure();
    let take = || Sample::take(&args.pins.pin_dir, &args.select, true);
    let mut looks = Looks {
        now: take()?,
        before: None,
    };
    let stop = Stop::on_signals()?;
    let mut held = RawTerminal::new()?;
    let mut fault: Option<String> = None;
    let mut next = Instant::now() + interval;
    while !stop.is_asked() {
        if Instant::now() >= next && !view.is_paused {
            match take() {
                Ok(sample) => {
                    looks.add(sample);
                    fault = None;
                }
                // While the agent replaces maps, reading fails; the next read succeeds.
                Err(error) => fault = Some(chain(error.as_ref())),
            }
            next = Instant::now() + interval;
        }
        let rows = view.rows(&looks, &args.select);
        let state = State {
            interval,
            has_rates: looks.before.is_some(),
            colour: Page::of_stdout().colour,
            fault: fault.as_deref(),
            unmeasured: measuring.as_ref().err().map(String::as_str),
        };
        let drawn = held.0.draw(|frame| draw(frame, &mut view, &rows, &state));
        if drawn.is_err() && stop.is_asked() {
            break;
        }
        drawn.context("draw")?;
        if wait(&mut view, &stop, next)? {
            break;
        }
    }
    Ok(())
}

/// Waits until the screen must be drawn again (`next`, a key, a new size). Returns true if a key
/// ends the command.
fn wait(view: &mut View, stop: &Stop, next: Instant) -> Result<bool> {
    loop {
        let left = next.saturating_duration_since(Instant::now());
        let is_due = left.is_zero() && !view.is_paused;
        if stop.is_asked() || is_due {
            return Ok(false);
        }
        let turn = if view.is_paused { TURN } else { left.min(TURN) };
        if !has_terminal(turn)? {
            return Ok(true);
        }
        if !event::poll(Duration::ZERO).context("wait for keys")? {
            continue;
        }
        match event::read().context("read a key")? {
            Event::Key(pressed) if pressed.kind != KeyEventKind::Release => {
                return Ok(key(pressed).is_some_and(|key| view.press(key)));
            }
            Event::Resize(..) => return Ok(false),
            _ => {}
        }
    }
}

/// Waits for input, at most `turn`; returns false if the terminal has hung up, as after a broken
/// connection of `kubectl exec`. crossterm would read such a terminal in a loop without end.
fn has_terminal(turn: Duration) -> Result<bool> {
    let stdin = io::stdin();
    if !stdin.is_terminal() {
        // crossterm reads /dev/tty then.
        std::thread::sleep(turn);
        return Ok(true);
    }
    let mut polled = [PollFd::new(stdin.as_fd(), PollFlags::POLLIN)];
    let turn = PollTimeout::try_from(turn).unwrap_or(PollTimeout::ZERO);
    match poll(&mut polled, turn) {
        Ok(_) | Err(Errno::EINTR) => {}
        Err(error) => return Err(error).context("wait for input"),
    }
    let ended = PollFlags::POLLHUP | PollFlags::POLLERR | PollFlags::POLLNVAL;
    let [polled] = polled;
    Ok(!polled
        .revents()
        .is_some_and(|found| found.intersects(ended)))
}

/// Returns the key that was pressed; None if it has no meaning in `top`.
fn key(pressed: KeyEvent) -> Option<Key> {
    if pressed.modifiers.contains(KeyModifiers::CONTROL) {
        return (pressed.code == KeyCode::Char('c')).then_some(Key::Interrupt);
    }
    Some(match pressed.code {
        KeyCode::Char(letter) => Key::Char(letter),
        KeyCode::Backspace => Key::Backspace,
        KeyCode::Enter => Key::Enter,
        KeyCode::Esc => Key::Escape,
        KeyCode::Tab => Key::Tab,
        KeyCode::BackTab => Key::BackTab,
        KeyCode::Left => Key::Left,
        KeyCode::Right => Key::Right,
        KeyCode::Up => Key::Up,
        KeyCode::Down => Key::Down,
        KeyCode::PageUp => Key::PageUp,
        KeyCode::PageDown => Key::PageDown,
        KeyCode::Home => Key::Home,
        KeyCode::End => Key::End,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use std::{io::Read, process::Command};

    use super::*;

    /// The environment variable that is set in the test's child process, in which the panic
    /// happens.
    const INSIDE: &str = "PORTOLAN_TEST_PANIC";

    #[test]
    fn a_panic_in_the_live_screen_restores_the_terminal() {
        if std::env::var_os(INSIDE).is_some() {
            let mut held = RawTerminal::new().expect("a terminal");
            held.0
                .draw(|_| panic!("as a fault would"))
                .expect("never drawn");
        }
        let size = nix::pty::Winsize {
            ws_row: 24,
            ws_col: 80,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        let terminal = nix::pty::openpty(Some(&size), None).expect("a terminal");
        let before = rustix::termios::tcgetattr(&terminal.slave).expect("its modes");
        let slave = || terminal.slave.try_clone().expect("the terminal");
        let mut command = Command::new(std::env::current_exe().expect("this test"));
        command
            .args(["--exact", "--nocapture"])
            .arg("top::live::tests::a_panic_in_the_live_screen_restores_the_terminal")
            .env(INSIDE, "1")
            .env("TERM", "xterm");
        command.stdin(slave()).stdout(slave()).stderr(slave());
        let status = command.status().expect("it runs");
        assert!(!status.success(), "it has panicked");
        let after = rustix::termios::tcgetattr(&terminal.slave).expect("its modes");
        assert_eq!(before.local_modes, after.local_modes);
        drop(command);
        drop(terminal.slave);
        let mut shown = Vec::new();
        // When the terminal ends, the read returns an error.
        _ = std::fs::File::from(terminal.master).read_to_end(&mut shown);
        let shown = String::from_utf8_lossy(&shown);
        let (taken, rest) = shown.split_once("\x1b[?1049h").expect("taken over");
        assert!(!taken.contains("as a fault would"), "{taken}");
        let back = rest.split_once("\x1b[?1049l");
        let (_, after) = back.expect("given back");
        assert!(after.contains("as a fault would"), "{shown}");
    }
}
