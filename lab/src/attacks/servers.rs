// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The servers of a pod: they accept any number of connections, and send back bytes and datagrams.

use std::net::{self, Ipv4Addr};

use anyhow::{Context, Result};
use nix::sys::socket::{setsockopt, sockopt};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream, UdpSocket},
    runtime::{Builder, Runtime},
};

use crate::{node::netns::NetNs, traffic::servers::listen};

/// The server on this TCP port sends each byte back until the client closes.
pub(super) const CLIENT_CLOSES: u16 = 8080;
/// The server on this TCP port sends one byte back and closes.
pub(super) const SERVER_CLOSES: u16 = 8081;
/// The server on this UDP port sends datagrams back.
pub(super) const QUERIES: u16 = 8053;

const BACKLOG: i32 = 4096;
/// Receive buffer for datagrams, in bytes of kernel memory: about 10 000 datagrams.
const QUEUE: usize = 8 << 20;

/// Starts the servers. Dropping what is returned ends them.
pub(super) fn start(pod: &NetNs) -> Result<Runtime> {
    let threads = Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build();
    let runtime = threads.context("start the servers' threads")?;
    let here = runtime.enter();
    for port in [CLIENT_CLOSES, SERVER_CLOSES] {
        let listener = TcpListener::from_std(pod.enter(|| listen(port, BACKLOG))??)?;
        // The loop ends with the runtime. Every error concerns one client only, which reports it.
        tokio::spawn(async move {
            loop {
                if let Ok((stream, _)) = listener.accept().await {
                    tokio::spawn(answer(stream, port == SERVER_CLOSES));
                }
            }
        });
    }
    let socket = pod.enter(|| net::UdpSocket::bind((Ipv4Addr::UNSPECIFIED, QUERIES)))??;
    setsockopt(&socket, sockopt::RcvBufForce, &QUEUE).context("room for datagrams")?;
    socket.set_nonblocking(true)?;
    let socket = UdpSocket::from_std(socket)?;
    tokio::spawn(async move {
        let mut buffer = [0; 64];
        loop {
            // An answer that cannot be sent is ignored here: the client misses it.
            if let Ok((length, from)) = socket.recv_from(&mut buffer).await {
                _ = socket.send_to(&buffer[..length], from).await;
            }
        }
    });
    drop(here);
    Ok(runtime)
}

async fn answer(mut stream: TcpStream, once: bool) {
    let mut byte = [0];
    while stream.read_exact(&mut byte).await.is_ok() {
        if stream.write_all(&byte).await.is_err() || once {
            return;
        }
    }
}
