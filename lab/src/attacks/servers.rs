// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The servers of a pod: they accept any number of connections, and send back bytes.

use anyhow::{Context, Result};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    runtime::{Builder, Runtime},
};

use crate::{node::netns::NetNs, traffic::servers::listen};

/// The server on this TCP port sends each byte back until the client closes.
pub(super) const CLIENT_CLOSES: u16 = 8080;
/// The server on this TCP port sends one byte back and closes.
pub(super) const SERVER_CLOSES: u16 = 8081;

const BACKLOG: i32 = 4096;

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
