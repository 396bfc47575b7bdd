// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The servers of a pod: they accept any number of connections, and send back bytes and datagrams.

use std::{
    io::{self, ErrorKind},
    net::{Ipv4Addr, SocketAddr, UdpSocket},
};

use anyhow::{Context, Result};
use nix::sys::{
    resource::{Resource, getrlimit, setrlimit},
    socket::{setsockopt, sockopt},
};
use socket2::{Domain, Socket, Type};
use tokio::{
    net::{self, TcpListener, TcpStream},
    runtime::Runtime,
};

use crate::node::netns::NetNs;

/// The server on this TCP port sends each byte back until the client closes.
pub(super) const CLIENT_CLOSES: u16 = 8080;
/// The server on this TCP port sends one byte back and closes.
pub(super) const SERVER_CLOSES: u16 = 8081;
/// The server on this UDP port sends datagrams back.
pub(super) const QUERIES: u16 = 8053;

const BACKLOG: i32 = 4096;
/// Receive buffer for datagrams, in bytes of kernel memory: about 10 000 datagrams.
const QUEUE: usize = 8 << 20;

/// Running servers; dropping them ends them.
pub(super) struct Servers(Option<Runtime>);

impl Servers {
    pub(super) fn start(pod: &NetNs) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .context("start the servers' threads")?;
        for port in [CLIENT_CLOSES, SERVER_CLOSES] {
            let listener = pod.enter(|| listen(port))??;
            runtime.block_on(async {
                let listener = TcpListener::from_std(listener)?;
                tokio::spawn(async move {
                    // The loop ends with the runtime. Every other error concerns one client only,
                    // which reports it.
                    loop {
                        if let Ok((stream, _)) = listener.accept().await {
                            tokio::spawn(answer(stream, port == SERVER_CLOSES));
                        }
                    }
                });
                Ok::<_, io::Error>(())
            })?;
        }
        let socket = pod.enter(|| UdpSocket::bind((Ipv4Addr::UNSPECIFIED, QUERIES)))??;
        setsockopt(&socket, sockopt::RcvBufForce, &QUEUE).context("room for datagrams")?;
        socket.set_nonblocking(true)?;
        runtime.block_on(async {
            let socket = net::UdpSocket::from_std(socket)?;
            tokio::spawn(async move {
                let mut buffer = [0; 64];
                loop {
                    // An answer that cannot be sent is ignored here: the client misses it.
                    if let Ok((length, from)) = socket.recv_from(&mut buffer).await {
                        _ = socket.send_to(&buffer[..length], from).await;
                    }
                }
            });
            Ok::<_, io::Error>(())
        })?;
        Ok(Self(Some(runtime)))
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

fn listen(port: u16) -> io::Result<std::net::TcpListener> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)).into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

async fn answer(stream: TcpStream, once: bool) {
    while let Ok(Some(byte)) = read_byte(&stream).await {
        if write_byte(&stream, byte).await.is_err() || once {
            return;
        }
    }
}

/// Reads the next byte; None at the end of the stream.
pub(super) async fn read_byte(stream: &TcpStream) -> io::Result<Option<u8>> {
    let mut byte = [0];
    loop {
        stream.readable().await?;
        match stream.try_read(&mut byte) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            read => return read.map(|count| (count == 1).then_some(byte[0])),
        }
    }
}

pub(super) async fn write_byte(stream: &TcpStream, byte: u8) -> io::Result<()> {
    loop {
        stream.writable().await?;
        match stream.try_write(&[byte]) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            written => return written.map(drop),
        }
    }
}

/// Raises the limit of open files to the most that the kernel allows a process.
pub(super) fn raise_file_limit() -> Result<()> {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    let allowed = std::fs::read_to_string("/proc/sys/fs/nr_open")?;
    let most = allowed.trim().parse().context("read fs.nr_open")?;
    // Raising the hard limit needs a capability that root in a container may lack.
    setrlimit(Resource::RLIMIT_NOFILE, most, most)
        .or_else(|_| setrlimit(Resource::RLIMIT_NOFILE, hard, hard))
        .context("raise the limit of open files")
}
