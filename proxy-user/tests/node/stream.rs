// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A connection on which both ends send all the time, independently: they send numbers in order, so
//! that a lost, doubled or foreign byte is noticed.

use std::{
    io::{self, Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    thread::{self, JoinHandle, sleep},
    time::{Duration, Instant},
};

use lab::node::netns::NetNs;

/// How long to wait for progress, also on a busy machine.
const PATIENCE: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(1);
/// The server's last message: this value, then how many numbers the server has received.
const END: u32 = u32::MAX;

/// Serves streams at an address of a pod.
pub(crate) fn serve(pod: &NetNs, at: &str) {
    let listener = pod.enter(|| TcpListener::bind(at));
    let listener = listener.expect("enter the pod").expect("a listener");
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            thread::spawn(move || answer(&stream));
        }
    });
}

fn answer(stream: &TcpStream) -> io::Result<()> {
    let (over, received) = (AtomicBool::new(false), AtomicU32::new(0));
    thread::scope(|scope| {
        scope.spawn(|| {
            let read = receive(stream, &received);
            over.store(true, Ordering::Relaxed);
            read
        });
        send(stream, &over)
    })?;
    let mut stream = stream;
    stream.write_all(&END.to_be_bytes())?;
    stream.write_all(&received.load(Ordering::Relaxed).to_be_bytes())?;
    stream.shutdown(Shutdown::Write)
}

/// Sends numbers in order until `stop` is set; returns how many it has sent.
fn send(mut stream: &TcpStream, stop: &AtomicBool) -> io::Result<u32> {
    let mut number = 0_u32;
    while !stop.load(Ordering::Relaxed) {
        stream.write_all(&number.to_be_bytes())?;
        number += 1;
        sleep(PAUSE);
    }
    Ok(number)
}

/// Receives numbers until the end. Returns how many the other end has received, if it sends [`END`]
/// with that number.
fn receive(mut stream: &TcpStream, received: &AtomicU32) -> io::Result<Option<u32>> {
    let mut next = || {
        let mut word = [0; 4];
        stream.read_exact(&mut word)?;
        io::Result::Ok(u32::from_be_bytes(word))
    };
    loop {
        let number = match next() {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            number => number?,
        };
        if number == END {
            return next().map(Some);
        }
        if number != received.load(Ordering::Relaxed) {
            return Err(io::Error::other(format!("{number} is out of order")));
        }
        received.store(number + 1, Ordering::Relaxed);
    }
}

/// The client's end of a stream.
pub(crate) struct Stream {
    socket: TcpStream,
    stop: Arc<AtomicBool>,
    received: Arc<AtomicU32>,
    sending: JoinHandle<io::Result<u32>>,
    receiving: JoinHandle<io::Result<Option<u32>>>,
}

impl Stream {
    /// Connects and begins to send.
    pub(crate) fn connect(pod: &NetNs, to: &str) -> io::Result<Self> {
        let to: SocketAddr = to.parse().expect("an address and port");
        let connected = pod.enter(|| TcpStream::connect_timeout(&to, PATIENCE));
        let socket = connected.expect("enter the pod")?;
        socket.set_nodelay(true)?;
        socket.set_read_timeout(Some(PATIENCE))?;
        let (stop, received) = (Arc::<AtomicBool>::default(), Arc::<AtomicU32>::default());
        let sending = {
            let (socket, stop) = (socket.try_clone()?, Arc::clone(&stop));
            thread::spawn(move || {
                let sent = send(&socket, &stop);
                socket.shutdown(Shutdown::Write)?;
                sent
            })
        };
        let receiving = {
            let (socket, received) = (socket.try_clone()?, Arc::clone(&received));
            thread::spawn(move || receive(&socket, &received))
        };
        Ok(Self {
            socket,
            stop,
            received,
            sending,
            receiving,
        })
    }

    /// Waits until another number has come back.
    pub(crate) fn speaks(&self) {
        let before = self.received.load(Ordering::Relaxed);
        let deadline = Instant::now() + PATIENCE;
        while self.received.load(Ordering::Relaxed) < before + 50 {
            let over = self.receiving.is_finished() || self.sending.is_finished();
            assert!(!over && Instant::now() < deadline, "after {before} numbers");
            sleep(PAUSE);
        }
    }

    /// The client's source port.
    pub(crate) fn port(&self) -> u16 {
        self.socket.local_addr().expect("its address").port()
    }

    /// Closes the stream normally and checks that both ends have received all numbers.
    pub(crate) fn finish(self) {
        self.stop.store(true, Ordering::Relaxed);
        let sent = self.sending.join().expect("the sender");
        let counted = self.receiving.join().expect("the receiver");
        let (sent, counted) = (sent.expect("all sent"), counted.expect("all received"));
        assert_eq!(counted, Some(sent), "the server has received every number");
    }
}
