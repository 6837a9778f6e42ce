//! Tests of the control plane: a service that records and can be made to wait, and peers that speak by the byte.

mod golden;
mod legacy;
mod links;
mod resources;
mod serving;
mod wire;

use std::collections::HashSet;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Weak};
use std::time::Duration;

use mori_core::{Clock, Deadline, EngineKey, Error, ErrorKind, MemoryKind, Result, Secret, Side};

use super::handshake::{self, Nonces};
use super::message::{self, Frame, HEAD, Request, kind};
use super::*;
use crate::sync::{Condvar, Mutex};

/// Longer than anything takes that works.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);

pub(super) fn soon() -> Deadline {
    Clock::system().deadline(PATIENCE)
}

pub(super) fn within(millis: u64) -> Deadline {
    Clock::system().deadline(Duration::from_millis(millis))
}

/// Waits until something is so.
pub(super) fn until(what: &str, mut done: impl FnMut() -> bool) {
    let limit = soon();
    while !done() {
        assert!(!limit.passed(Clock::system().now()), "{what}: not after {PATIENCE:?}");
        std::thread::park_timeout(Duration::from_micros(500));
    }
}

pub(super) fn identity(key: &str) -> Identity {
    Identity { key: key.into(), instance: [key.len() as u8; 16] }
}

/// What a service was asked or told, in order.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Call {
    Register(ConnectionId, Peer, EndpointRequest),
    Registered(ConnectionId),
    Region(Peer, u32, u64),
    Retire(ConnectionId, u64),
    Note(ConnectionId, Peer, FailureNote),
    Closed(ConnectionId, Peer),
    Lost(LinkId, Error),
}

/// The memory that nobody knows.
pub(super) const UNKNOWN: u64 = 404;
/// The memory whose look-up panics.
pub(super) const PANIC: u64 = 500;

/// A service that records its calls. Registrations for a held device wait until it is released.
#[derive(Default)]
pub(super) struct Fake {
    calls: Mutex<Vec<Call>>,
    changed: Condvar,
    held: Mutex<HashSet<u32>>,
    released: Condvar,
}

impl Fake {
    fn push(&self, call: Call) {
        self.calls.lock().push(call);
        self.changed.notify_all();
    }

    pub(super) fn calls(&self) -> Vec<Call> {
        self.calls.lock().clone()
    }

    /// Waits until `what` is found among the calls.
    pub(super) fn wait<T>(&self, what: &str, find: impl Fn(&Call) -> Option<T>) -> T {
        let Deadline::At(limit) = soon() else { panic!("no clock") };
        let mut calls = self.calls.lock();
        loop {
            if let Some(found) = calls.iter().find_map(&find) {
                return found;
            }
            assert!(!self.changed.wait_until(&mut calls, limit).timed_out(), "{what}: {calls:?}");
        }
    }

    pub(super) fn count(&self, find: impl Fn(&Call) -> bool) -> usize {
        self.calls.lock().iter().filter(|call| find(call)).count()
    }

    pub(super) fn hold(&self, device: u32) {
        self.held.lock().insert(device);
    }

    pub(super) fn release(&self, device: u32) {
        self.held.lock().remove(&device);
        self.released.notify_all();
    }
}

impl Drop for Node {
    /// A test that fails must not leave calls waiting, which the server would wait for.
    fn drop(&mut self) {
        self.fake.held.lock().clear();
        self.fake.released.notify_all();
    }
}

impl Service for Fake {
    fn register_endpoint(
        &self,
        connection: ConnectionId,
        peer: &Peer,
        request: &EndpointRequest,
    ) -> Result<Endpoint> {
        self.push(Call::Register(connection, peer.clone(), *request));
        let mut held = self.held.lock();
        while held.contains(&request.device) {
            self.released.wait(&mut held);
        }
        drop(held);
        self.push(Call::Registered(connection));
        Ok(answer_to(request))
    }

    fn region(&self, peer: &Peer, device: u32, memory: u64) -> Result<RegionKeys> {
        self.push(Call::Region(peer.clone(), device, memory));
        match memory {
            UNKNOWN => Err(Error::new(ErrorKind::NotFound, "memory 404 is not registered here")),
            PANIC => panic!("as the test wants"),
            _ => Ok(keys_of(memory)),
        }
    }

    fn retire_endpoint(&self, connection: ConnectionId, lane: u64) -> Result<()> {
        self.push(Call::Retire(connection, lane));
        Ok(())
    }

    fn note_failure(&self, connection: ConnectionId, peer: &Peer, note: FailureNote) {
        self.push(Call::Note(connection, peer.clone(), note));
    }

    fn closed(&self, connection: ConnectionId, peer: &Peer) {
        self.push(Call::Closed(connection, peer.clone()));
    }

    fn link_lost(&self, link: LinkId, cause: &Error) {
        self.push(Call::Lost(link, cause.clone()));
    }
}

/// The passive end that the fake makes for a request.
pub(super) fn answer_to(request: &EndpointRequest) -> Endpoint {
    let own = request.endpoint;
    Endpoint { psn: own.psn + 1, qpn: own.qpn + 1, gid: [9; 16], ..own }
}

/// The keys that the fake gives for a memory.
pub(super) fn keys_of(memory: u64) -> RegionKeys {
    RegionKeys { address: memory << 20, lkey: 1, rkey: memory as u32 + 2, length: 4096 }
}

pub(super) fn endpoint() -> Endpoint {
    Endpoint {
        psn: 0x12_3456,
        qpn: 427,
        port: 1,
        lid: 0,
        gid: *b"\0\0\0\0\0\0\0\0\0\0\xff\xff\x0a\0\0\x01",
        mac: [2, 0, 0, 0, 0, 7],
        mtu: 5,
        rd_atomic: 16,
    }
}

pub(super) fn register(device: u32, lane: u64) -> EndpointRequest {
    EndpointRequest {
        local: Topo { device: 0, location: MemoryKind::Device, numa: 1 },
        remote: Topo { device: -1, location: MemoryKind::Host, numa: -1 },
        device,
        endpoint: endpoint(),
        nic_rank: 2,
        rail: -1,
        lane,
    }
}

/// A control plane with its service.
pub(super) struct Node {
    pub(super) fake: Arc<Fake>,
    pub(super) server: Server,
    pub(super) identity: Identity,
}

impl Node {
    pub(super) fn new(key: &str, config: ControlConfig) -> Self {
        let fake = Arc::new(Fake::default());
        let weak: Weak<Fake> = Arc::downgrade(&fake);
        let server = Server::bind(config, identity(key), weak).unwrap();
        Self { fake, server, identity: identity(key) }
    }

    pub(super) fn plain(key: &str) -> Self {
        Self::new(key, ControlConfig::default())
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.server.local_addr()
    }

    /// How another node connects to this one.
    pub(super) fn target(&self) -> Target {
        target(self.identity.key.as_str(), Some(self.identity.instance), &[self.address()])
    }

    pub(super) fn link(&self, to: &Self) -> Arc<Link> {
        self.server.connect(&to.target(), soon()).unwrap()
    }
}

pub(super) fn target(key: &str, instance: Option<[u8; 16]>, addresses: &[SocketAddr]) -> Target {
    let addresses = addresses.iter().map(|address| (address.ip().to_string(), address.port())).collect();
    Target { key: key.into(), instance, addresses }
}

/// A peer that is a plain socket.
pub(super) struct Raw(pub(super) TcpStream);

impl Raw {
    pub(super) fn new(socket: TcpStream) -> Self {
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket.set_nodelay(true).unwrap();
        Self(socket)
    }

    pub(super) fn connect(address: SocketAddr) -> Self {
        Self::new(TcpStream::connect(address).unwrap())
    }

    /// Connects from 127.0.0.`host`.
    pub(super) fn connect_from(host: u8, address: SocketAddr) -> Self {
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        socket.bind(&SocketAddr::from(([127, 0, 0, host], 0)).into()).unwrap();
        socket.connect(&address.into()).unwrap();
        Self::new(socket.into())
    }

    pub(super) fn send(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).unwrap();
    }

    /// The next frame's bytes; `None` at the end.
    pub(super) fn bytes(&mut self) -> Option<Vec<u8>> {
        let mut bytes = vec![0; HEAD];
        match self.0.read_exact(&mut bytes) {
            Ok(()) => {}
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => panic!("nothing came"),
            Err(_) => return None,
        }
        let length = u32::from_be_bytes(bytes[1..5].try_into().unwrap()) as usize;
        bytes.resize(HEAD + length, 0);
        self.0.read_exact(&mut bytes[HEAD..]).ok()?;
        Some(bytes)
    }

    pub(super) fn frame(&mut self) -> Frame {
        let bytes = self.bytes().expect("a frame");
        Frame { kind: bytes[0], body: bytes[HEAD..].to_vec() }
    }

    /// Checks that the other side ends the connection.
    pub(super) fn ended(&mut self) {
        assert_eq!(self.bytes(), None);
    }

    /// The handshake, as an initiator.
    pub(super) fn greet(mut self, key: &str) -> Self {
        let own = Secret::nonce().unwrap();
        self.send(&handshake::hello(&own));
        let (nonces, proof) = handshake::prove(&self.frame(), own, None).unwrap();
        self.send(&proof);
        let (_, who) = handshake::identify(&self.frame(), &nonces, None, &identity(key)).unwrap();
        self.send(&who);
        self
    }

    /// The handshake, as a target; returns who has connected.
    pub(super) fn welcome(&mut self, key: &str) -> Identity {
        let hello = self.frame();
        let (nonces, challenge, agreed) =
            handshake::challenge(&hello, Secret::nonce().unwrap(), None).unwrap();
        assert!(agreed);
        self.send(&challenge);
        let accept = handshake::accept(&self.frame(), &nonces, None, &identity(key)).unwrap();
        self.send(&accept);
        handshake::identified(&self.frame()).unwrap()
    }

    /// Asks in the own protocol, and waits for the answer.
    pub(super) fn ask(&mut self, id: u64, request: &Request) -> message::Answer {
        self.send(&message::request(id, request));
        match message::to_initiator(&self.frame()).unwrap() {
            (of, answer) if of == id => answer,
            other => panic!("{other:?}"),
        }
    }
}

/// A listening socket of a peer that is played by the test.
pub(super) fn listener() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

pub(super) fn next(listener: &TcpListener) -> Raw {
    Raw::new(listener.accept().unwrap().0)
}

/// Both sides' proofs, for handshakes that go wrong.
pub(super) fn proof(secret: Option<&Secret>, nonces: &Nonces) -> [u8; 32] {
    Secret::prove(secret, "mori-rdma", Side::Initiator, &nonces.initiator, &nonces.target)
}

pub(super) fn key(of: &str) -> EngineKey {
    EngineKey::from(of)
}

/// The one type that tests send which no peer has.
pub(super) const NO_TYPE: u8 = 0x33;

const _: () = assert!(NO_TYPE != kind::HELLO);
