// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Runs a loaded program by bpf(2), without a real packet. Used by `datapath` and the tests.

use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd},
};

use super::bpf::{Command, bpf};

#[repr(C)]
#[derive(Default)]
struct TestRunRequest {
    program: u32,
    result: u32,
    data_in_length: u32,
    data_out_length: u32,
    data_in: u64,
    data_out: u64,
    repeat: u32,
    duration: u32,
    context_in_length: u32,
    context_out_length: u32,
    context_in: u64,
    context_out: u64,
    flags: u32,
    cpu: u32,
    batch: u32,
    _pad: u32,
}

/// The outcome of one test run of a kernel program.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TestRun {
    /// The program's return value.
    pub result: u32,
    /// The packet as the program left it.
    pub data: Vec<u8>,
    /// The context (a `__sk_buff`) as the program left it; as long as the one given.
    pub context: Vec<u8>,
    /// Nanoseconds per repetition, as a whole number.
    pub duration: u32,
}

/// Runs a program on the packet `data`. `context` is the start of a `__sk_buff`, or empty.
pub fn test_run(
    program: BorrowedFd<'_>,
    data: &[u8],
    context: &[u8],
    repeat: u32,
) -> io::Result<TestRun> {
    // A program may make the packet longer.
    let mut run = TestRun {
        data: vec![0; data.len() + 256],
        context: context.to_vec(),
        ..TestRun::default()
    };
    // The kernel wants no pointer to an empty context.
    let context_start = |start: *const u8| match context {
        [] => 0,
        _ => start as u64,
    };
    let mut request = TestRunRequest {
        program: program.as_raw_fd() as u32,
        data_in_length: data.len() as u32,
        data_out_length: run.data.len() as u32,
        data_in: data.as_ptr() as u64,
        data_out: run.data.as_mut_ptr() as u64,
        repeat,
        context_in_length: context.len() as u32,
        context_out_length: run.context.len() as u32,
        context_in: context_start(context.as_ptr()),
        context_out: context_start(run.context.as_mut_ptr()),
        ..TestRunRequest::default()
    };
    // SAFETY: each pointer goes with the length of the live buffer behind it.
    unsafe { bpf(Command::TestRun, &mut request) }?;
    run.result = request.result;
    run.duration = request.duration;
    run.data.truncate(request.data_out_length as usize);
    run.context.truncate(request.context_out_length as usize);
    Ok(run)
}
