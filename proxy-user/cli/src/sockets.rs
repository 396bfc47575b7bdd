// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `portolan sockets`: lists sockets whose connections or datagrams the socket hooks have
//! translated, and the processes that own the sockets.

use std::{collections::HashMap, fs};

use anyhow::Result;
use datapath::read::SocketRow;
use linux::{namespaces, socket_inodes};
use serde::Serialize;

use super::{
    args::{ListArgs, SELECTION, split_port},
    frame::{SYS_PTRACE, lacks},
    list::{Row, list_maps},
    names::{EndArg, NameArgs},
    table::{Column, Tone, Value, WIDE, column, cut, plain, toned},
};

/// Arguments of `portolan sockets`.
#[derive(clap::Args, Clone, Debug)]
pub struct SocketArgs {
    #[command(flatten)]
    pub list: ListArgs,
    /// Only sockets that talk to the endpoint with this address, or to this pod:
    /// pod/NAMESPACE/NAME, or pod/NAME with --namespace.
    #[arg(long, value_name = "ENDPOINT", help_heading = SELECTION)]
    pub backend: Option<EndArg>,
    #[command(flatten)]
    pub names: NameArgs,
}

impl SocketArgs {
    fn wants(&self, row: &SocketRow) -> bool {
        let (service, name) = split_port(&row.service);
        let (port, ends) = (row.frontend.port(), [row.frontend, row.backend]);
        let select = &self.list.select;
        let by_backend = self.backend.as_ref();
        by_backend.is_none_or(|wanted| wanted.has(row.backend.ip()))
            && select.wants(service, name, port, row.protocol, &ends)
    }
}

/// A translated socket, with the process that owns it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
pub(super) struct OwnedSocket {
    #[serde(flatten)]
    row: SocketRow,
    /// The owner; None if it is not visible from here, for example in another PID namespace.
    process: Option<Process>,
}

impl Row for OwnedSocket {
    const COLUMNS: &'static [Column<Self>] = &[
        cut("SERVICE", 0, |row| plain(row.row.service.as_str())),
        column("PROTOCOL", 5, |row| plain(row.row.protocol)),
        column("OWNER", 6, |row| plain(row.row.owner)),
        column("PROCESS", 1, |row| {
            plain(row.process.as_ref().map(|one| &*one.name))
        }),
        column("PID", WIDE, |row| {
            plain(row.process.as_ref().map(|one| one.pid))
        }),
        column("COOKIE", 4, |row| plain(format!("{:x}", row.row.cookie))),
        column("FRONTEND", 2, |row| plain(row.row.frontend)),
        column("BACKEND", 0, |row| plain(row.row.backend)),
        column("HOW", 0, |row| {
            toned(how(&row.row), Tone::Warn.when(!row.row.current))
        }),
        column("AGE", 3, |row| plain(Value::Seconds(row.row.age_seconds))),
    ];
    fn name(&self) -> String {
        format!("socket/{:x}", self.row.cookie)
    }
}

/// Describes how a socket uses its service, and whether its backend is gone.
fn how(row: &SocketRow) -> &'static str {
    match (row.connected, row.current) {
        (true, true) => "connected",
        (true, false) => "connected, backend gone",
        (false, true) => "datagrams",
        (false, false) => "datagrams, backend gone",
    }
}

pub(super) fn run(args: &SocketArgs) -> Result<()> {
    let mut args = args.clone();
    if let Some(backend) = &mut args.backend {
        backend.look_up(args.list.select.namespace.as_deref(), &args.names)?;
    }
    let backend = args.backend.as_ref().map(EndArg::to_string);
    list_maps(&args.list, &[("--backend", backend)], |reader| {
        let mut rows = reader.sockets()?;
        rows.retain(|row| args.wants(row));
        let pods = rows.iter().any(|row| row.owner == "pod");
        let owners = match rows.is_empty() {
            true => HashMap::new(),
            false => owners(pods),
        };
        let rows = with_owners(rows, &owners);
        if rows.iter().any(|row| row.process.is_none())
            && let Some(lacks) = lacks(SYS_PTRACE, "sockets")
        {
            eprintln!("portolan: processes are not named: {lacks}");
        }
        Ok(rows)
    })
}

/// Adds the owning processes to the rows. Key of `owners`: the socket's cookie.
pub(super) fn with_owners(
    rows: Vec<SocketRow>,
    owners: &HashMap<u64, Process>,
) -> Vec<OwnedSocket> {
    let owned = rows.into_iter().map(|row| OwnedSocket {
        process: owners.get(&row.cookie).cloned(),
        row,
    });
    owned.collect()
}

/// A process; of several that own a socket, the one with the lowest process id.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
pub(super) struct Process {
    pub(super) name: String,
    pub(super) pid: u32,
}

/// Returns the processes that own sockets. Key: the socket's cookie. The kernel's list of sockets
/// gives the inode of each cookie, for one network namespace at a time; the open files in /proc
/// give its process. Covers this network namespace, or (`everywhere`) those of all processes. Omits
/// what cannot be read: processes of other PID namespaces and, without root, those of other users.
pub(super) fn owners(everywhere: bool) -> HashMap<u64, Process> {
    let pids = namespaces::pids();
    let mut inodes = socket_inodes().unwrap_or_default();
    if everywhere {
        for namespace in namespaces::others() {
            // A namespace that cannot be entered is skipped.
            inodes.extend(namespaces::inside(&namespace, socket_inodes).unwrap_or_default());
        }
    }
    let by_inode = inodes.into_iter().map(|(cookie, inode)| (inode, cookie));
    let by_inode: HashMap<u32, u64> = by_inode.collect();
    let mut owners = HashMap::new();
    for pid in pids {
        let mut name = None;
        for cookie in sockets_of(pid).filter_map(|inode| by_inode.get(&inode)) {
            let name = name.get_or_insert_with(|| name_of(pid));
            owners.entry(*cookie).or_insert_with(|| Process {
                name: name.clone(),
                pid,
            });
        }
    }
    owners
}

/// Returns the inode of each socket of a process, from the links in /proc/PID/fd.
fn sockets_of(pid: u32) -> impl Iterator<Item = u32> {
    let entries = fs::read_dir(format!("/proc/{pid}/fd")).into_iter();
    entries.flatten().flatten().filter_map(|entry| {
        let link = fs::read_link(entry.path()).ok()?;
        let number = link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?;
        number.parse().ok()
    })
}

fn name_of(pid: u32) -> String {
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    name.trim_end().to_owned()
}

#[cfg(test)]
pub(super) mod tests {
    use std::net::{TcpListener, UdpSocket};

    use socket2::SockRef;

    use super::*;

    pub(crate) fn rows() -> Vec<OwnedSocket> {
        let row = |service: &str, cookie, connected, current| SocketRow {
            service: service.into(),
            protocol: if connected { "TCP" } else { "UDP" },
            owner: if connected { "node" } else { "pod" },
            cookie,
            frontend: "172.30.1.1:80".parse().expect("an address"),
            backend: "10.40.1.10:8080".parse().expect("an address"),
            connected,
            current,
            age_seconds: 77,
        };
        let (name, pid) = ("curl".to_owned(), 4321);
        let long = "kube-system/kube-dns-of-the-second-zone:dns";
        let rows = vec![
            row("shop/cart:http", 0x1234, true, true),
            row(long, 0x99, false, false),
        ];
        with_owners(rows, &HashMap::from([(0x1234, Process { name, pid })]))
    }

    #[test]
    fn a_socket_rows_json_has_the_old_fields_and_the_process() {
        let json = serde_json::to_value(&rows()[0]).expect("a row");
        assert_eq!(json["service"], "shop/cart:http");
        assert_eq!(json["ageSeconds"], 77);
        let process = serde_json::json!({"name": "curl", "pid": 4321});
        assert_eq!(json["process"], process);
    }

    #[test]
    fn sockets_of_this_process_are_found_with_their_owner() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a socket");
        let datagrams = UdpSocket::bind("127.0.0.1:0").expect("a socket");
        let owners = owners(false);
        for socket in [SockRef::from(&listener), SockRef::from(&datagrams)] {
            let owner = &owners[&socket.cookie().expect("a cookie")];
            assert_eq!(owner.pid, std::process::id());
            assert!(!owner.name.is_empty());
        }
    }
}
