//! The protocol spoken by hand, as an initiator and as a target, so that tests can say what no backend says.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use hmac::{Hmac, KeyInit, Mac};
use mori_core::{Access, EngineDesc, MemoryDesc, Region, TransportBlob};
use sha2::Sha256;

pub(crate) const READ: u8 = 1;
pub(crate) const WRITE: u8 = 2;
pub(crate) const DATA: u8 = 3;
pub(crate) const CANCEL: u8 = 4;
pub(crate) const PING: u8 = 5;
pub(crate) const NOTE: u8 = 6;
pub(crate) const CHUNK: u8 = 0x81;
pub(crate) const DONE: u8 = 0x82;
pub(crate) const FAIL: u8 = 0x83;
pub(crate) const PONG: u8 = 0x85;

/// On a chunk: the last of its request.
pub(crate) const LAST: u8 = 1;
/// On a note.
pub(crate) const ANNOUNCE: u8 = 2;
/// On a note.
pub(crate) const ON_FAILURE: u8 = 8;

pub(crate) const HEADER: usize = 64;

/// How long a test waits for bytes before it calls that a failure.
const PATIENCE: Duration = Duration::from_secs(30);

/// A frame, with whatever contradictions a test wants.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    /// The body's length as the header says it; `None`: what it is.
    pub(crate) body_length: Option<u32>,
    pub(crate) id: u64,
    pub(crate) key: u128,
    pub(crate) a: u64,
    pub(crate) b: u64,
    /// The payload's length as the header says it; `None`: what it is.
    pub(crate) payload_length: Option<u64>,
    pub(crate) count: u32,
    pub(crate) body: Vec<u8>,
    pub(crate) payload: Vec<u8>,
}

impl Frame {
    pub(crate) fn new(kind: u8, id: u64) -> Self {
        Self { kind, id, ..Self::default() }
    }

    /// A request to read one piece.
    pub(crate) fn read(id: u64, key: u128, offset: u64, length: u64) -> Self {
        Self { key, a: offset, b: length, count: 1, ..Self::new(READ, id) }
    }

    /// A request to write one piece, with this first part of its payload.
    pub(crate) fn write(id: u64, key: u128, offset: u64, length: u64, payload: &[u8]) -> Self {
        Self { key, a: offset, b: length, count: 1, payload: payload.to_vec(), ..Self::new(WRITE, id) }
    }

    pub(crate) fn pieces(mut self, pieces: &[(u64, u64)]) -> Self {
        self.count = u32::try_from(pieces.len()).unwrap();
        for (offset, length) in pieces {
            self.body.extend_from_slice(&offset.to_le_bytes());
            self.body.extend_from_slice(&length.to_le_bytes());
        }
        self
    }

    /// A message to the application of the target.
    pub(crate) fn note(id: u64, transfer: u128, message: &[u8], flags: u8) -> Self {
        let mut body = u16::try_from(message.len()).unwrap().to_le_bytes().to_vec();
        body.extend_from_slice(message);
        Self { key: transfer, flags, body, ..Self::new(NOTE, id) }
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; HEADER];
        bytes[0] = self.kind;
        bytes[1] = self.flags;
        let body = self.body_length.unwrap_or(u32::try_from(self.body.len()).unwrap());
        bytes[4..8].copy_from_slice(&body.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.id.to_le_bytes());
        bytes[16..32].copy_from_slice(&self.key.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.a.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.b.to_le_bytes());
        let payload = self.payload_length.unwrap_or(self.payload.len() as u64);
        bytes[48..56].copy_from_slice(&payload.to_le_bytes());
        bytes[56..60].copy_from_slice(&self.count.to_le_bytes());
        bytes.extend_from_slice(&self.body);
        bytes.extend_from_slice(&self.payload);
        bytes
    }
}

fn message(body: &[u8]) -> Vec<u8> {
    let mut bytes = u16::try_from(body.len()).unwrap().to_le_bytes().to_vec();
    bytes.extend_from_slice(body);
    bytes
}

fn proof(secret: Option<&[u8]>, side: &str, initiator: &[u8], target: &[u8]) -> Vec<u8> {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret.unwrap_or_default()).unwrap();
    mac.update(b"mori-tcp");
    mac.update(side.as_bytes());
    mac.update(&(secret.map_or(0, <[u8]>::len) as u64).to_le_bytes());
    mac.update(initiator);
    mac.update(target);
    mac.finalize().into_bytes().to_vec()
}

fn identity(key: &str, instance: [u8; 16]) -> Vec<u8> {
    let mut bytes = instance.to_vec();
    bytes.extend_from_slice(&u16::try_from(key.len()).unwrap().to_le_bytes());
    bytes.extend_from_slice(key.as_bytes());
    bytes
}

/// One end of a connection.
pub(crate) struct Raw {
    pub(crate) socket: TcpStream,
}

impl Raw {
    fn new(socket: TcpStream) -> Self {
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket.set_write_timeout(Some(PATIENCE)).unwrap();
        socket.set_nodelay(true).unwrap();
        Self { socket }
    }

    /// A connection on which nothing has been said.
    pub(crate) fn silent(port: u16) -> Self {
        Self::new(TcpStream::connect(("127.0.0.1", port)).unwrap())
    }

    /// A connection after a complete handshake without a secret.
    pub(crate) fn connect(port: u16, key: &str) -> Self {
        Self::connect_with(port, key, None).unwrap()
    }

    /// A connection after a handshake with a secret; the answer of the target if it does not let us in.
    pub(crate) fn connect_with(port: u16, key: &str, secret: Option<&[u8]>) -> Result<Self, Vec<u8>> {
        let mut raw = Self::silent(port);
        let own = [7; 32];
        raw.send(&Self::hello(1, 1, &own));
        let challenge = raw.message().unwrap();
        let target = challenge[12..].to_vec();
        raw.send(&Self::proof(secret, &own, &target));
        let answer = raw.message().unwrap_or_default();
        if answer.is_empty() {
            return Err(answer);
        }
        assert_eq!(&answer[..32], proof(secret, "target", &own, &target), "the target proves itself");
        raw.send(&message(&identity(key, [9; 16])));
        Ok(raw)
    }

    pub(crate) fn hello(lowest: u8, highest: u8, nonce: &[u8; 32]) -> Vec<u8> {
        let mut body = b"mori-tcp".to_vec();
        body.extend_from_slice(&[lowest, highest]);
        body.extend_from_slice(nonce);
        message(&body)
    }

    /// The initiator's proof.
    pub(crate) fn proof(secret: Option<&[u8]>, own: &[u8], target: &[u8]) -> Vec<u8> {
        message(&proof(secret, "initiator", own, target))
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.socket.write_all(bytes).unwrap();
    }

    pub(crate) fn frame(&mut self, frame: &Frame) {
        self.send(&frame.bytes());
    }

    /// The next message of a handshake; `None` at the end of the connection.
    pub(crate) fn message(&mut self) -> Option<Vec<u8>> {
        let length = self.take(2)?;
        self.take(usize::from(u16::from_le_bytes([length[0], length[1]])))
    }

    /// The next bytes; `None` if the connection ends before them.
    pub(crate) fn take(&mut self, length: usize) -> Option<Vec<u8>> {
        let mut bytes = vec![0; length];
        match self.socket.read_exact(&mut bytes) {
            Ok(()) => Some(bytes),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                panic!("{length} bytes did not come within {PATIENCE:?}")
            }
            Err(_) => None,
        }
    }

    /// The next frame; `None` if the connection ends before it.
    pub(crate) fn next(&mut self) -> Option<Frame> {
        let head = self.take(HEADER)?;
        let word = |at: usize| u64::from_le_bytes(head[at..at + 8].try_into().unwrap());
        let half = |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().unwrap());
        let mut frame = Frame {
            kind: head[0],
            flags: head[1],
            id: word(8),
            key: u128::from_le_bytes(head[16..32].try_into().unwrap()),
            a: word(32),
            b: word(40),
            count: half(56),
            ..Frame::default()
        };
        frame.body = self.take(half(4) as usize)?;
        frame.payload = self.take(usize::try_from(word(48)).unwrap())?;
        Some(frame)
    }

    /// The next frame that is no ping.
    pub(crate) fn request(&mut self) -> Option<Frame> {
        loop {
            match self.next() {
                Some(frame) if frame.kind == PING => self.frame(&Frame::new(PONG, 0)),
                other => return other,
            }
        }
    }

    /// Reads until the other side ends the connection.
    pub(crate) fn ended(&mut self) {
        while self.take(1).is_some() {}
    }
}

/// A target that is played by the test.
pub(crate) struct Stage {
    listener: TcpListener,
    pub(crate) key: &'static str,
    instance: [u8; 16],
    secret: Option<&'static [u8]>,
}

impl Stage {
    pub(crate) fn new(key: &'static str) -> Self {
        Self::with_secret(key, None)
    }

    pub(crate) fn with_secret(key: &'static str, secret: Option<&'static [u8]>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        Self { listener, key, instance: super::instance(), secret }
    }

    pub(crate) fn port(&self) -> u16 {
        self.listener.local_addr().unwrap().port()
    }

    pub(crate) fn desc(&self) -> EngineDesc {
        let mut bytes = self.instance.to_vec();
        bytes.extend_from_slice(&self.port().to_le_bytes());
        bytes.extend_from_slice(&9_u16.to_le_bytes());
        bytes.extend_from_slice(b"127.0.0.1");
        EngineDesc {
            key: self.key.into(),
            host: "127.0.0.1".into(),
            port: self.port(),
            transports: vec![TransportBlob { transport: "tcp".into(), version: 1, bytes }],
            ..EngineDesc::default()
        }
    }

    /// A region of this many bytes, as the target claims.
    pub(crate) fn memory(&self, length: usize) -> MemoryDesc {
        let region = Region::zeroed(length, Access::READ_WRITE).unwrap();
        let mut desc = MemoryDesc::for_region(&self.key.into(), &region);
        let mut bytes = 77_u128.to_le_bytes().to_vec();
        bytes.extend_from_slice(&self.instance);
        bytes.push(3);
        desc.transports.push(TransportBlob { transport: "tcp".into(), version: 1, bytes });
        desc
    }

    /// The next connection, before the handshake.
    pub(crate) fn accept_silent(&self) -> Raw {
        Raw::new(self.listener.accept().unwrap().0)
    }

    /// The next connection, after the handshake.
    pub(crate) fn accept(&self) -> Raw {
        let mut raw = self.greet();
        raw.message().unwrap();
        raw
    }

    /// The next connection, with the handshake up to the point where the initiator says who it is.
    pub(crate) fn greet(&self) -> Raw {
        let mut raw = self.accept_silent();
        let hello = raw.message().unwrap();
        let initiator = &hello[10..];
        let own = [5; 32];
        let mut challenge = b"mori-tcp".to_vec();
        challenge.extend_from_slice(&[1, 1, 1, u8::from(self.secret.is_some())]);
        challenge.extend_from_slice(&own);
        raw.send(&message(&challenge));
        let got = raw.message().unwrap();
        assert_eq!(got, proof(self.secret, "initiator", initiator, &own));
        let mut accept = proof(self.secret, "target", initiator, &own);
        accept.extend_from_slice(&identity(self.key, self.instance));
        raw.send(&message(&accept));
        raw
    }
}

/// A message of a handshake with this body.
pub(crate) fn handshake_message(body: &[u8]) -> Vec<u8> {
    message(body)
}

/// The key and the instance that a descriptor's blob carries.
pub(crate) fn key_of(desc: &MemoryDesc) -> u128 {
    let blob = &desc.blob("tcp").unwrap().bytes;
    u128::from_le_bytes(blob[..16].try_into().unwrap())
}
