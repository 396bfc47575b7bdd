// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A node between a client and a backend behind routers, in one address family, with XDP at both of
//! its uplinks.

use std::{
    io::{Read, Write},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    ops::Deref,
    thread,
    time::Duration,
};

use lab::node::settings::Xdp;
use linux::attached_xdp;
use proxy_common::Counter;

pub(super) use crate::routed::UPLINKS;
use crate::{
    agent::{Agent, eventually},
    routed::{NODE_PORT, PORT, Routed},
    world,
};

/// A packet that has not arrived within this time is lost.
const SOON: Duration = Duration::from_secs(5);

pub(super) struct World {
    /// The agent; None after [`Self::end`].
    agent: Option<Agent>,
    routed: Routed,
    service: SocketAddr,
    backend: SocketAddr,
}

/// The configuration for one mode of XDP.
fn config(xdp: Xdp) -> String {
    let [a, b] = UPLINKS;
    format!(
        "{{portolan: {{xdp: '{}', xdpInterfaces: [{a}, {b}]}}}}",
        xdp.name()
    )
}

impl Deref for World {
    type Target = Routed;
    fn deref(&self) -> &Routed {
        &self.routed
    }
}

impl World {
    pub(super) fn new(v6: bool, xdp: Xdp) -> Self {
        Self::prepared(v6, xdp, |_| {})
    }
    /// Like `new`, on a node that `prepare` has changed before the agent starts.
    pub(super) fn prepared(v6: bool, xdp: Xdp, prepare: impl FnOnce(&world::World)) -> Self {
        let routed = Routed::build(v6);
        for way in [&routed.clients, &routed.backends] {
            way.prepare_for_xdp().expect("offloads");
        }
        prepare(&routed.node);
        let web = routed.web(routed.backend_ip);
        routed.node.write("web.yaml", web);
        Self {
            agent: Some(routed.node.start_by_packet(7, &config(xdp))),
            service: (routed.node_ip, NODE_PORT).into(),
            backend: (routed.backend_ip, PORT).into(),
            routed,
        }
    }
    /// Ends the agent; its programs stay.
    pub(super) fn end(&mut self) {
        let agent = self.agent.take().expect("it runs");
        assert!(agent.stop().success());
    }
    /// Starts the agent again, in another mode.
    pub(super) fn restart(&mut self, xdp: Xdp) {
        self.end();
        self.agent = Some(self.node.start_by_packet(7, &config(xdp)));
    }
    fn agent(&self) -> &Agent {
        self.agent.as_ref().expect("it runs")
    }

    /// Whether an uplink has an XDP program.
    pub(super) fn has_program(&self, uplink: &str) -> bool {
        let index = self.node.index(uplink);
        let asked = self.node.node().enter(|| attached_xdp(index));
        asked.expect("enter the node").expect("an answer").is_some()
    }
    pub(super) fn wait_for_programs(&self) {
        self.eventually("the programs are there", || {
            UPLINKS.iter().all(|uplink| self.has_program(uplink))
        });
    }
    pub(super) fn eventually(&self, what: &str, so: impl FnMut() -> bool) {
        eventually(what, self.agent(), so);
    }
    /// Waits until a line of the log contains all these parts.
    pub(super) fn says(&self, parts: &[&str]) {
        self.agent().says(parts);
    }

    /// The numbers of packets that XDP has forwarded: to the backend, and back.
    pub(super) fn taken(&self) -> [u64; 2] {
        [Counter::ForwardedByXdp, Counter::ReplyByXdp].map(|counter| self.node.count(counter))
    }

    /// The same numbers for the packets of 20 pings.
    pub(super) fn taken_of_20(&self, near: &mut TcpStream, far: &mut TcpStream) -> [u64; 2] {
        let before = self.taken();
        for _ in 0..20 {
            ping(near, far);
        }
        let after = self.taken();
        [after[0] - before[0], after[1] - before[1]]
    }

    /// A connection to the service, and the backend's end of it. The backend sees the node as its
    /// client.
    pub(super) fn connect(&self) -> (TcpStream, TcpStream) {
        let listener = self.at_backend(|| TcpListener::bind(self.backend));
        let listener = listener.expect("a listener");
        let near = self.at_client(|| TcpStream::connect_timeout(&self.service, SOON));
        let log = || self.agent.as_ref().map(Agent::log);
        let near = near.unwrap_or_else(|error| panic!("{error}: {:?}", log()));
        let (far, from) = listener.accept().expect("a connection");
        let client = near.local_addr().expect("an address");
        assert_ne!(from.ip(), client.ip(), "it is masqueraded");
        for end in [&near, &far] {
            end.set_read_timeout(Some(SOON)).expect("a timeout");
            end.set_nodelay(true).expect("small segments");
        }
        (near, far)
    }
    /// Two connected UDP sockets: the client's and the backend's.
    pub(super) fn datagrams(&self) -> (UdpSocket, UdpSocket) {
        let any: IpAddr = if self.service.is_ipv6() {
            [0; 16].into()
        } else {
            [0; 4].into()
        };
        let near = self.at_client(|| UdpSocket::bind((any, 0)));
        let near = near.expect("a socket");
        near.connect(self.service).expect("a destination");
        let far = self.at_backend(|| UdpSocket::bind(self.backend));
        let far = far.expect("a socket");
        for end in [&near, &far] {
            end.set_read_timeout(Some(SOON)).expect("a timeout");
        }
        (near, far)
    }
    fn at_client<T>(&self, work: impl FnOnce() -> T) -> T {
        self.clients.host().enter(work).expect("enter the host")
    }
    fn at_backend<T>(&self, work: impl FnOnce() -> T) -> T {
        self.backends.host().enter(work).expect("enter the host")
    }
}

/// Sends bytes to the other end, which must receive the same.
pub(super) fn send(from: &mut TcpStream, to: &mut TcpStream, length: usize) {
    let sent: Vec<u8> = (0..length).map(|n| (n % 251) as u8).collect();
    thread::scope(|scope| {
        scope.spawn(|| from.write_all(&sent).expect("sent"));
        let mut received = vec![0; length];
        to.read_exact(&mut received).expect("received");
        assert!(received == sent, "the same bytes");
    });
}

/// Sends some bytes to the other end, and some back.
pub(super) fn ping(near: &mut TcpStream, far: &mut TcpStream) {
    send(near, far, 5);
    send(far, near, 5);
}
