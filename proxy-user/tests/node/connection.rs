// SPDX-License-Identifier: Apache-2.0 OR MIT
//! An open connection through a service, and the server at its other end.

use std::{
    io::{self, BufRead, BufReader, ErrorKind, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream, ToSocketAddrs, UdpSocket},
    os::fd::AsRawFd,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use lab::node::{netns::NetNs, process::Killed};

use crate::world::{any, at};

/// How long to wait for an answer, also on a busy machine.
const ANSWER: Duration = Duration::from_secs(5);

/// A listener of this host.
#[track_caller]
pub(crate) fn listen(host: &NetNs, at: impl ToSocketAddrs) -> TcpListener {
    let listener = host.enter(|| TcpListener::bind(at));
    listener.expect("enter the host").expect("a listener")
}

/// Makes a host answer at this address and port: it sends every line back.
pub(crate) fn serve(host: &NetNs, at: impl ToSocketAddrs) {
    let listener = listen(host, at);
    thread::spawn(move || listener.incoming().flatten().for_each(echo));
}

fn echo(stream: TcpStream) {
    thread::spawn(move || {
        let mut lines = BufReader::new(stream);
        let mut line = String::new();
        while lines.read_line(&mut line).is_ok_and(|read| read > 0) {
            if lines.get_mut().write_all(line.as_bytes()).is_err() {
                return;
            }
            line.clear();
        }
    });
}

/// An open connection through a service.
pub(crate) struct Open(BufReader<TcpStream>);

impl Open {
    /// Connects from a pod to a server that echoes.
    pub(crate) fn connect(pod: &NetNs, to: &str) -> io::Result<Self> {
        let to: SocketAddr = to.parse().expect("an address and port");
        let stream = pod.enter(|| TcpStream::connect_timeout(&to, ANSWER));
        let stream = stream.expect("enter the pod")?;
        stream.set_read_timeout(Some(ANSWER))?;
        let mut open = Self(BufReader::new(stream));
        let answer = open.echo("hello");
        (answer == "hello")
            .then_some(open)
            .ok_or_else(|| io::Error::other(answer))
    }

    /// Connects again and again until `done`; returns the number of connections. Panics if one
    /// fails, or if two lost their SYN: a busy machine is slow, but needs no retransmissions.
    pub(crate) fn keep_connecting(pod: &NetNs, to: &str, done: &AtomicBool) -> u32 {
        let (mut made, mut slow) = (0, 0);
        while !done.load(Ordering::Relaxed) {
            let begun = Instant::now();
            let open =
                Self::connect(pod, to).unwrap_or_else(|error| panic!("connection {made}: {error}"));
            let (took, repeated) = (begun.elapsed(), repeated(open.0.get_ref()));
            if repeated > 0 && took > Duration::from_millis(900) {
                slow += 1;
                println!("connection {made}: {took:?}, {repeated} segments repeated");
            }
            assert!(slow < 2, "two of {made} connections lost a segment");
            made += 1;
            // A closed connection keeps its source port for a minute.
            thread::sleep(Duration::from_millis(2));
        }
        made
    }

    /// Sets how long to wait for an answer.
    pub(crate) fn set_patience(&self, patience: Duration) {
        let socket = self.0.get_ref();
        socket.set_read_timeout(Some(patience)).expect("a timeout");
    }

    /// Sends a line; returns the answer or the error as text.
    pub(crate) fn echo(&mut self, line: &str) -> String {
        let mut answer = String::new();
        // The line goes out in one segment.
        let sent = self.0.get_mut().write_all(format!("{line}\n").as_bytes());
        match sent.and_then(|()| self.0.read_line(&mut answer)) {
            Ok(_) => answer.trim_end().to_owned(),
            Err(error) => error.to_string(),
        }
    }
}

/// Does `job` on another thread while `work` runs, and tells it the end, also if `work` panics.
/// Returns what the job returns.
pub(crate) fn beside<T: Send>(job: impl FnOnce(&AtomicBool) -> T + Send, work: impl FnOnce()) -> T {
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let job = scope.spawn(|| job(&done));
        let worked = catch_unwind(AssertUnwindSafe(work));
        done.store(true, Ordering::Relaxed);
        worked.unwrap_or_else(|failure| resume_unwind(failure));
        job.join().expect("no failure beside the work")
    })
}

/// A connection on which both directions carry data all the time, until a test ends it: numbers are
/// sent whatever comes back, and must come back in order.
pub(crate) struct Talk {
    /// The client's source port.
    pub(crate) port: u16,
    over: Arc<AtomicBool>,
    received: Arc<AtomicU32>,
    sending: JoinHandle<u32>,
    receiving: JoinHandle<()>,
}

impl Talk {
    /// How long to wait for progress, also on a busy machine.
    const PATIENCE: Duration = Duration::from_secs(10);

    /// Connects and begins to talk.
    pub(crate) fn begin(pod: &NetNs, to: &str) -> Self {
        let mut open = Open::connect(pod, to).unwrap_or_else(|error| panic!("{to}: {error}"));
        open.set_patience(Self::PATIENCE);
        let socket = open.0.get_ref();
        socket.set_nodelay(true).expect("small segments");
        let port = socket.local_addr().expect("its address").port();
        let mut sender = socket.try_clone().expect("another handle");
        let (over, received) = (Arc::<AtomicBool>::default(), Arc::<AtomicU32>::default());
        let (until, count) = (Arc::clone(&over), Arc::clone(&received));
        let sending = thread::spawn(move || {
            let mut sent = 0;
            while !until.load(Ordering::Relaxed) {
                let line = format!("{sent}\n");
                sender.write_all(line.as_bytes()).expect("sent");
                sent += 1;
                thread::sleep(Duration::from_millis(1));
            }
            sender.shutdown(Shutdown::Write).expect("closed");
            sent
        });
        let receiving = thread::spawn(move || {
            let mut line = String::new();
            while open.0.read_line(&mut line).expect("a line, or the end") > 0 {
                let next = count.load(Ordering::Relaxed);
                assert_eq!(line, format!("{next}\n"));
                count.store(next + 1, Ordering::Relaxed);
                line.clear();
            }
        });
        Self {
            port,
            over,
            received,
            sending,
            receiving,
        }
    }

    /// Waits until more lines have come back.
    pub(crate) fn goes_on(&self) {
        let before = self.received.load(Ordering::Relaxed);
        let deadline = Instant::now() + Self::PATIENCE;
        while self.received.load(Ordering::Relaxed) < before + 50 {
            let is_over = self.sending.is_finished() || self.receiving.is_finished();
            let is_late = Instant::now() >= deadline;
            assert!(!is_over && !is_late, "after {before} lines");
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Closes the connection; every line must have come back.
    pub(crate) fn finish(self) {
        self.over.store(true, Ordering::Relaxed);
        let sent = self.sending.join().expect("all is sent");
        self.receiving.join().expect("the lines are in order");
        assert_eq!(self.received.load(Ordering::Relaxed), sent);
    }
}

/// The number of segments that this end of a connection has retransmitted.
fn repeated(stream: &TcpStream) -> u32 {
    const TOTAL_RETRANS: usize = 100;
    let mut info = [0_u8; TOTAL_RETRANS + 4];
    let mut length = info.len() as libc::socklen_t;
    #[expect(unsafe_code, reason = "std does not read TCP_INFO")]
    // SAFETY: the kernel writes at most `length` bytes.
    let result = unsafe {
        libc::getsockopt(
            stream.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    assert_eq!(result, 0, "TCP_INFO");
    let field = info[TOTAL_RETRANS..].try_into().expect("four bytes");
    u32::from_ne_bytes(field)
}

/// Sends every datagram to [`crate::objects::questions`] back, from this pod.
pub(crate) fn answer_questions(pod: &NetNs) {
    answer_at(pod, "10.40.1.20:8080");
}

/// Sends every datagram to this address and port back.
pub(crate) fn answer_at(host: &NetNs, at: impl ToSocketAddrs) {
    let answering = host.enter(|| UdpSocket::bind(at));
    let answering = answering.expect("the pod").expect("a socket");
    thread::spawn(move || {
        let mut buffer = [0; 65_536];
        while let Ok((length, from)) = answering.recv_from(&mut buffer) {
            _ = answering.send_to(&buffer[..length], from);
        }
    });
}

/// A UDP socket in a pod, connected to [`crate::objects::questions`].
pub(crate) fn asking(pod: &NetNs) -> UdpSocket {
    asking_at(pod, "172.30.1.9:53")
}

/// A UDP socket in a pod, connected to this address and port.
pub(crate) fn asking_at(pod: &NetNs, to: &str) -> UdpSocket {
    let asking = pod.enter(|| {
        let asking = UdpSocket::bind((any(at(to).is_ipv6()), 0))?;
        asking.connect(to)?;
        asking.set_read_timeout(Some(Duration::from_secs(5)))?;
        io::Result::Ok(asking)
    });
    asking.expect("the pod").expect("a socket")
}

/// Sends a datagram and expects it back.
#[track_caller]
pub(crate) fn ask(socket: &UdpSocket, text: &str) {
    socket.send(text.as_bytes()).expect("sent");
    let mut answer = [0; 64];
    let length = receive(socket, &mut answer);
    assert_eq!(&answer[..length], text.as_bytes());
}

/// Receives a datagram; returns its length. With a time limit, a signal to the test's process ends
/// the call early, and the kernel does not repeat it.
#[track_caller]
pub(crate) fn receive(socket: &UdpSocket, buffer: &mut [u8]) -> usize {
    loop {
        match socket.recv(buffer) {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            received => return received.expect("an answer"),
        }
    }
}

/// Starts a process in a pod: by it, others see the pod's network namespace.
pub(crate) fn sleep_in(pod: &NetNs) -> Killed {
    let process = pod.enter(|| Command::new("sleep").arg("3600").spawn());
    Killed(process.expect("the pod").expect("it runs"))
}
