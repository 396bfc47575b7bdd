// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Runs other programs. Used by all commands of xtask.

use std::{
    ffi::OsStr,
    fs::File,
    io::{BufRead, BufReader, Read, Seek, Write},
    path::Path,
    process::{Command, Output, Stdio},
};

use anyhow::{Context, Result, bail, ensure};

use crate::host;

/// Returns a command of a program, by path or by name, with the words of a text as arguments.
pub(crate) fn of(program: impl AsRef<OsStr>, words: &str) -> Command {
    let program = program.as_ref();
    let found = program.to_str().and_then(host::find_program);
    let mut command = Command::new(found.as_deref().map_or(program, Path::as_os_str));
    command.args(words.split_whitespace());
    command
}

fn start(what: &str, command: &Command) -> String {
    format!("{what}: start {}", command.get_program().display())
}

/// Runs a command to its end; an error begins with `what`.
pub(crate) fn check(command: &mut Command, what: &str) -> Result<()> {
    let status = command.status().with_context(|| start(what, command))?;
    ensure!(status.success(), "{what}: {status}, see above");
    Ok(())
}

/// Runs a command and returns its stdout. An error begins with `what` and contains the output.
pub(crate) fn output(command: &mut Command, what: &str) -> Result<String> {
    let output = command.output().with_context(|| start(what, command))?;
    stdout(&output, what)
}

/// Like `output`, for a command that reads `input` from its stdin.
pub(crate) fn output_of(command: &mut Command, input: &str, what: &str) -> Result<String> {
    let mut file = tempfile::tempfile().context("make a file")?;
    let written = file.write_all(input.as_bytes());
    let ready = written.and_then(|()| file.rewind());
    ready.context("write a command's input")?;
    output(command.stdin(file), what)
}

/// Returns the stdout of a command that has ended; fails if its exit status is not 0.
pub(crate) fn stdout(output: &Output, what: &str) -> Result<String> {
    if !output.status.success() {
        let text = [&output.stdout[..], &output.stderr].concat();
        let text = String::from_utf8_lossy(&text);
        bail!("{what}: {}: {}", output.status, text.trim());
    }
    String::from_utf8(output.stdout.clone()).with_context(|| format!("{what}: no UTF-8"))
}

/// Lets a command write all its output to a file, and gives it no input.
pub(crate) fn log_to<'a>(command: &'a mut Command, file: &Path) -> Result<&'a mut Command> {
    let failed = || format!("write {}", file.display());
    let log = File::create(file).with_context(failed)?;
    let errors = log.try_clone().with_context(failed)?;
    Ok(command.stdin(Stdio::null()).stdout(log).stderr(errors))
}

/// Passes each line of a program's output to `see`. The output need not be UTF-8.
pub(crate) fn each_line(output: impl Read, mut see: impl FnMut(&str)) -> Result<()> {
    for line in BufReader::new(output).split(b'\n') {
        let line = line.context("read a program's output")?;
        see(&String::from_utf8_lossy(&line));
    }
    Ok(())
}
