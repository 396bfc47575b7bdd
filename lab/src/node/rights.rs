// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The rights of the agent's container: its capabilities, by the DaemonSet, and its system calls,
//! by container runtimes' default seccomp profile. Tests run the agent and its commands with them.

use std::{fs, io, mem::offset_of, os::unix::process::CommandExt, path::Path, process::Command};

use libc::{c_long, sock_filter, sock_fprog};

/// What the profile refuses to a container with these capabilities, of what a program could want.
const REFUSED: [c_long; 20] = [
    libc::SYS_setns,
    libc::SYS_unshare,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_open_tree,
    libc::SYS_move_mount,
    libc::SYS_fsopen,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_ptrace,
    libc::SYS_kcmp,
    libc::SYS_process_vm_readv,
    libc::SYS_pidfd_getfd,
    libc::SYS_open_by_handle_at,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_keyctl,
    libc::SYS_userfaultfd,
    libc::SYS_io_uring_setup,
    libc::SYS_membarrier,
];

/// Returns the capabilities that the DaemonSet gives to the agent, in lower case, without `cap_`.
pub fn capabilities() -> Vec<String> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/base/daemonset.yaml");
    let text = fs::read_to_string(file).unwrap_or_default();
    let mut lines = text.lines().map(str::trim);
    let added = lines.find_map(|line| line.strip_prefix("add: [")?.strip_suffix(']'));
    let names = added.unwrap_or_default().split(", ");
    names.map(str::to_lowercase).collect()
}

/// Returns a command that starts a program as root with exactly these capabilities, no way to get
/// others, and the container's system calls only.
pub fn command(program: &Path) -> Command {
    let bounds = format!("--bounding-set=-all,+{}", capabilities().join(",+"));
    let mut command = Command::new("setpriv");
    command.args([&*bounds, "--inh-caps=-all", "--no-new-privs"]);
    confine(command.arg(program));
    command
}

/// Makes the command begin with the container's system calls only.
fn confine(command: &mut Command) {
    let filter = filter();
    let install = move || {
        let program = sock_fprog {
            len: filter.len() as u16,
            filter: filter.as_ptr().cast_mut(),
        };
        // SAFETY: prctl is async-signal-safe, and the kernel copies the program.
        match unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    };
    // SAFETY: `install` allocates nothing and takes no lock.
    unsafe { command.pre_exec(install) };
}

/// The filter: the number of the call, a comparison for each one that is refused, and the answers.
fn filter() -> Vec<sock_filter> {
    let step = |code: u32, k: u32, jt: u8| sock_filter {
        code: code as u16,
        jt,
        jf: 0,
        k,
    };
    let number = offset_of!(libc::seccomp_data, nr) as u32;
    let mut steps = vec![step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, number, 0)];
    let jump = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    for (at, call) in REFUSED.into_iter().enumerate() {
        steps.push(step(jump, call as u32, (REFUSED.len() - at) as u8));
    }
    let answer = libc::BPF_RET | libc::BPF_K;
    steps.push(step(answer, libc::SECCOMP_RET_ALLOW, 0));
    let refusal = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
    steps.push(step(answer, refusal, 0));
    steps
}
